"""Reads a sweep file and says in one sentence a problem what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from harness.config import SweepConfig, flatten
from harness.errors import InputError
from harness.explain import closest, explain, kind_of


def load_sweep(path: Path, overrides: Sequence[str] = ()) -> SweepConfig:
    """The sweep file with the overrides `dotted.name=value` applied. Raises InputError."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        siblings = sorted(str(p) for p in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
        raise InputError(f"{path}: no such sweep file{closest(str(path), siblings)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as a sweep file ({error})") from None
    data = parse_yaml(text, str(path))
    if not isinstance(data, dict):
        raise InputError(f"{path}: holds {kind_of(data)}; needs a mapping that starts like 'sweep: default'")
    for override in overrides:
        _apply_override(data, override)
    try:
        sweep = SweepConfig.model_validate(data)
    except ValidationError as error:
        raise InputError(f"{path}: {explain(error, SweepConfig)}") from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    for override in overrides:
        _require_effect(sweep, override)
    return sweep


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, where YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def parse_yaml(text: str, source: str) -> Any:
    """YAML to plain values; a syntax error names `source`, line and column."""
    try:
        return yaml.load(text, _StrictLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InputError(f"{source}{place}: not valid YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise InputError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from None


def _apply_override(data: dict[str, Any], override: str) -> None:
    """Set one dotted name in the nested `data`. The keys of `reference` are dotted names themselves."""
    name, equals, text = override.partition("=")
    parts = name.strip().split(".")
    if not equals or not all(parts):
        raise InputError(f"--set {override}: needs dotted.name=value, for instance --set batch.group_size=4")
    if parts[0] == "reference" and len(parts) > 1:
        parts = ["reference", ".".join(parts[1:])]
    target = data
    for depth, part in enumerate(parts[:-1], start=1):
        inner = target.setdefault(part, {})
        if not isinstance(inner, dict):
            raise InputError(f"--set {override}: {'.'.join(parts[:depth])} is {kind_of(inner)}, which holds no names")
        target = inner
    target[parts[-1]] = parse_yaml(text, f"--set {override}")


def _require_effect(sweep: SweepConfig, override: str) -> None:
    """An override that every arm replaces by its own value would be silently lost."""
    name = override.partition("=")[0].strip()
    if all(name in flatten(arm) for arm in sweep.arms):
        raise InputError(
            f"--set {override}: has no effect, because every arm sets {name} itself; choose arms with --only, "
            f"or replace them with --set 'arms=[{{{name}: ...}}]'"
        )
