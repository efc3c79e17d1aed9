"""Turns what pydantic found into sentences: dotted field, value, what is needed, nearest right value."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

_NEEDS = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "dict_type": "a mapping",
    "string_too_short": "text that is not empty",
    "finite_number": "a finite number",
}
_BOUNDS = {"greater_than": ("gt", "above"), "greater_than_equal": ("ge", "of at least")}
_BOUNDS |= {"less_than": ("lt", "below"), "less_than_equal": ("le", "of at most")}


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """One sentence for each problem, separated by semicolons."""
    return "; ".join(_sentence(detail, model) for detail in error.errors(include_url=False))


def closest(wrong: str, right: Iterable[str], many: str = "known: ") -> str:
    """`; did you mean x?` where something is near, otherwise the list of what there is.

    >>> closest("num_prompt", ["num_prompts", "group_size"])
    '; did you mean num_prompts?'
    >>> closest("xyz", ["adam", "adamw"])
    '; known: adam, adamw'
    """
    choices = sorted(set(right))
    near = difflib.get_close_matches(wrong, choices, n=1)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; {many}{', '.join(choices)}" if choices else ""


def kind_of(value: Any) -> str:
    """A value as a sentence names it.

    >>> kind_of("3e-4"), kind_of([1]), kind_of(None), kind_of(True)
    ("'3e-4', which is text", 'a list', 'empty', 'true')
    """
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"{value!r}, which is text"
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else repr(value)


def field_names(model: type[BaseModel]) -> list[str]:
    """The dotted names of all fields below `model`, those of every variant included."""
    names: list[str] = []
    for name, info in model.model_fields.items():
        inner = _models_in(info)
        names += [name] if not inner else [f"{name}.{leaf}" for part in inner for leaf in field_names(part)]
    return names


def variants(info: FieldInfo) -> dict[str, type[BaseModel]]:
    """The classes a section may be, by the value of their field `name`."""
    return {part.model_fields["name"].default: part for part in _models_in(info) if "name" in part.model_fields}


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """The configuration classes in an annotation: one, several for a union, none for a plain value."""
    if isinstance(annotation, FieldInfo):
        annotation = annotation.annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]


def _locate(model: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[str, list[str], FieldInfo | None]:
    """Dotted name (without union tags), the names valid beside it, and the field if there is one."""
    here: list[type[BaseModel]] = [model]
    names, beside, info = "", list[str](), None
    for part in loc:
        fields = {name: info for cls in here for name, info in cls.model_fields.items()}
        tagged = [cls for cls in here if "name" in cls.model_fields and cls.model_fields["name"].default == part]
        if len(here) > 1 and tagged:
            here = tagged
            continue
        if isinstance(part, int):
            names += f"[{part}]"
            continue
        if part == "[key]":
            names += ", the key"
            continue
        names, beside = f"{names}.{part}" if names else str(part), list(fields)
        info = fields.get(part)
        here = _models_in(info) if info else []
    return names, beside, info


def _sentence(detail: ErrorDetails, model: type[BaseModel]) -> str:
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    name, beside, info = _locate(model, detail["loc"])
    if kind == "extra_forbidden":
        return f"{name}: unknown{_nearest_name(str(detail['loc'][-1]), name, beside, model)}"
    if kind == "missing":
        return f"{name}: missing" + (f"; needs the {info.description}" if info and info.description else "")
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        tags = re.findall(r"'([^']+)'", context.get("expected_tags", "")) or list(variants(model.model_fields[name]))
        if kind == "union_tag_not_found":
            return f"{name}.name: missing; needs one of {', '.join(tags)}"
        return f"{name}.name: {context['tag']!r} does not exist; known: {', '.join(tags)}{_near(context['tag'], tags)}"
    if kind == "literal_error":
        allowed = re.findall(r"'([^']+)'|(\d+)", context["expected"])
        words = [text or number for text, number in allowed]
        return f"{name}: {value!r} is not one of {', '.join(words)}{_near(str(value), words)}"
    if kind in _BOUNDS:
        return f"{name}: {value!r}; needs a value {_bounds(info, kind, context)}"
    if kind == "string_pattern_mismatch":
        safe = re.sub(r"[^A-Za-z0-9._-]+", "-", str(value)).strip("-._") or "my-sweep"
        return f"{name}: {value!r}; needs letters, digits, '.', '_' and '-' only, for instance {safe}"
    if kind in _NEEDS:
        return f"{name}: {kind_of(value)}; needs {_NEEDS[kind]}{_written_right(value, _NEEDS[kind])}"
    return f"{name}: {kind_of(value)}; {detail['msg'][0].lower()}{detail['msg'][1:]}"


def _nearest_name(wrong: str, dotted: str, beside: list[str], model: type[BaseModel]) -> str:
    """Nearest among the names of the same section, else the place where such a name does belong."""
    section = dotted.rpartition(".")[0]
    near = difflib.get_close_matches(wrong, beside, n=1)
    if near:
        return f"; did you mean {section + '.' if section else ''}{near[0]}?"
    shallow_first = sorted(field_names(model), key=lambda name: name.count("."))
    elsewhere = difflib.get_close_matches(wrong, [name.rpartition(".")[2] for name in shallow_first], n=1)
    if elsewhere and elsewhere[0] == wrong and dotted in shallow_first:
        return f"; another {section} has it"
    if elsewhere:
        return f"; did you mean {next(name for name in shallow_first if name.rpartition('.')[2] == elsewhere[0])}?"
    return f"; known: {', '.join(beside)}"


def _near(wrong: str, right: list[str]) -> str:
    near = difflib.get_close_matches(wrong, right, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _bounds(info: FieldInfo | None, kind: str, context: dict[str, Any]) -> str:
    """Every bound of the field, so that the sentence gives the whole range; at least the one that was missed."""
    missed = context[_BOUNDS[kind][0]]
    declared = [
        f"{word} {getattr(constraint, key):g}"
        for key, word in _BOUNDS.values()
        for constraint in (info.metadata if info else [])
        if hasattr(constraint, key)
    ]
    return " and ".join(declared) or f"{_BOUNDS[kind][1]} {missed:g}"


def _written_right(value: Any, needs: str) -> str:
    """How to write a number that was given as text or with a fraction."""
    if isinstance(value, float) and needs == "a whole number" and value.is_integer():
        return f"; write {int(value)}"
    if not isinstance(value, str) or "number" not in needs:
        return ""
    match = re.fullmatch(r"\s*([+-]?\d+(?:\.\d*)?)(?:[eE]([+-]?)(\d+))?\s*", value)
    if match is None:
        return ""
    mantissa, sign, exponent = match.groups()
    if exponent is None:
        return f"; write {mantissa} without quotes"
    mantissa += "" if "." in mantissa else ".0"
    return f"; write {mantissa}e{sign or '+'}{exponent} (YAML wants a dot and a sign in a number with e)"
