"""Writes the folder of an advice: advice.json, tables, figures and one page that needs nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from analysis.advise.advice import Advice
from analysis.advise.content import build_advice


def write_advice(advice: Advice) -> tuple[dict[str, Any], list[Path]]:
    """Write <sweep>/advice. Returns advice.json's content and the paths written."""
    content = build_advice(advice)
    folder = advice.sweep.path / "advice"
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "advice.json"
    _replace(data, json.dumps(content, indent=1, allow_nan=False) + "\n")
    return content, [data]


def _replace(path: Path, text: str) -> None:
    """Write the file whole or leave it as it is."""
    partial = path.with_suffix(path.suffix + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
