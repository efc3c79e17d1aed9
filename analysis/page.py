"""What the HTML pages have in common: their template, the figures inside them, and how files are put in place."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from analysis.words import interval, number


@cache
def template(name: str) -> Template:
    """A template of analysis/templates, with what writes numbers and intervals."""
    loader = FileSystemLoader(Path(__file__).parent / "templates")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.globals |= {"number": number, "estimate": estimate, "estimate_line": interval}
    return environment.get_template(name)


def estimate(value: Mapping[str, Any], digits: int = 2) -> Any:
    """An estimate with its interval in small print below it."""
    text, _, limits = interval(value, digits).partition(" (")
    return Markup(f"{escape(text)}<small>{escape(limits.rstrip(')'))}</small>") if limits else escape(text)


def images(figures: Sequence[Path], captions: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    """Each figure (its PNG's path; the SVG lies beside it) with its title and caption, to be put into the page."""
    return [
        {"title": title, "caption": caption, "svg": base64.b64encode(path.with_suffix(".svg").read_bytes()).decode()}
        for path, (title, caption) in zip(figures, captions, strict=True)
    ]


def replace_file(path: Path, text: str) -> None:
    """Write the file whole or leave it as it is."""
    partial = path.with_suffix(path.suffix + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
