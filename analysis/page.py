"""What the HTML pages have in common: their template, the figures inside them, and how files are put in place."""

from __future__ import annotations

import base64
import math
import shutil
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from analysis.records import number as number_of
from analysis.records import read_object
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


def keep_other_target(file: Path, target: float) -> list[Path]:
    """Move the folder of a report of another target out of the way; returns where it is now, [] where there is none.

    An earlier one of that target, from the same records, gives way to it.
    """
    folder, stated = file.parent, read_object(file).get("target")
    found = number_of(stated.get("value")) if isinstance(stated, dict) else math.nan
    if math.isnan(found) or found == target:
        return []
    kept = folder.with_name(f"{folder.name}_target_{found:g}")
    if kept.exists():
        shutil.rmtree(kept)
    folder.rename(kept)
    return [kept]
