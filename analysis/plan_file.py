"""plan.json, checked: what a sweep planned, as frozen objects. Wrong files are one sentence."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from analysis.errors import InputError

FORMAT = 1
# Above this, integers are no exact numbers in the tables any more.
LARGEST_COUNT = 2**53


def _printable(text: str) -> str:
    if not text.isprintable() or not text.strip():
        raise ValueError("needed is a name of printable characters")
    return text


def _folder(text: str) -> str:
    if text in (".", "..") or "/" in text or "\\" in text or len(text.encode()) > 255:
        raise ValueError("needed is the plain name of a folder below trials/")
    return text


def readable(value: Any) -> Any:
    """A JSON value whose texts any file can hold: a lone surrogate, which JSON allows, becomes a question mark."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [readable(item) for item in value]
    return {readable(key): readable(item) for key, item in value.items()} if isinstance(value, dict) else value


def _axis_value(value: Any) -> Any:
    """One value: a list or an object is shown as the JSON it is."""
    if isinstance(value, list | dict):
        return json.dumps(value)
    if isinstance(value, int | float) and not -1e100 < value < 1e100:
        raise ValueError("needed is a finite number, a text, true, false or null")
    return readable(value)


def _responses(value: Any) -> Any:
    """Nothing is counted in samples while the responses of a prompt are not known."""
    if value is None:
        raise ValueError("needed is the number of responses per prompt: import it again with --group-size")
    return value


Name = Annotated[str, Field(max_length=400), AfterValidator(_printable)]
Text = Annotated[str, BeforeValidator(readable)]
Count = Annotated[int, Field(gt=0, le=LARGEST_COUNT)]
Finite = Annotated[float, Field(allow_inf_nan=False, ge=-1e100, le=1e100)]
AxisValue = Annotated[Any, BeforeValidator(_axis_value)]


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class Target(_Model):
    """The score to reach. value: None, it is to be chosen from the data."""

    metric: Name
    value: Finite | None


class Axes(_Model):
    """What an arm is: P, G, B = P*G (responses), its learning rate (None: not known), whatever else was varied."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, AxisValue]

    algorithm: Name
    num_prompts: Count
    group_size: Annotated[Count, BeforeValidator(_responses)]
    train_batch: Count
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None
    lr_rule: Name

    @model_validator(mode="after")
    def _product(self) -> Axes:
        product = self.num_prompts * self.group_size
        if self.train_batch != product:
            parts = f"num_prompts * group_size = {self.num_prompts} * {self.group_size} = {product}"
            raise ValueError(f"train_batch is {self.train_batch}, needed is {parts}")
        for name in self.__pydantic_extra__:
            _printable(name)
        return self


class PlannedTrial(_Model):
    """A trial of the plan. config: the nested configuration, {} where it is not stated."""

    trial_id: Annotated[Name, AfterValidator(_folder)]
    arm: Name
    seed: Annotated[int, Field(ge=-LARGEST_COUNT, le=LARGEST_COUNT)]
    axes: Axes
    config: Annotated[dict[str, Any], BeforeValidator(lambda value: {} if value is None else value)] = {}

    def configured(self, *path: str) -> Any:
        """A value of the configuration by the names that lead to it; None where it is not stated."""
        value: Any = self.config
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return value


class Plan(_Model):
    """A sweep: its trials, its reference, its target, and what was assumed where it was imported."""

    sweep: Name
    question: Text | None = None
    reference_arm: Name
    target: Target
    assumptions: list[Text] = []
    trials: Annotated[list[PlannedTrial], Field(min_length=1)]

    @model_validator(mode="after")
    def _consistent(self) -> Plan:
        arms: dict[str, PlannedTrial] = {}
        known: set[str] = set()
        for trial in self.trials:
            if trial.trial_id in known:
                raise ValueError(f"two trials are named {trial.trial_id!r}")
            known.add(trial.trial_id)
            first = arms.setdefault(trial.arm, trial)
            if first.axes != trial.axes:
                names = ", ".join(differing(first.axes.model_dump(), trial.axes.model_dump()))
                raise ValueError(f"{first.trial_id} and {trial.trial_id} are of one arm but differ in {names}")
        if self.reference_arm not in arms:
            raise ValueError(f"reference_arm is {self.reference_arm!r}, needed is one of {', '.join(sorted(arms))}")
        return self


def differing(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """The names whose values differ, in order of appearance."""
    return [name for name in {**a, **b} if a.get(name) != b.get(name) or (name in a) != (name in b)]


def read_plan(folder: Path) -> Plan:
    """The plan of the sweep in a folder. Raises InputError where there is none or it is not what format 1 says."""
    file = folder / "plan.json"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{folder} has no plan.json: name the folder of one sweep, such as results/default") from None
    except NotADirectoryError:
        raise InputError(f"{folder} is a file: name the folder of one sweep, such as results/default") from None
    except RecursionError:
        raise InputError(f"{file} cannot be read: it is nested too deep") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise InputError(f"{file} holds {_shown(content)}, needed is an object of format {FORMAT}")
    if type(content.get("format")) is not int or content["format"] != FORMAT:
        raise InputError(f"{file} has format {_shown(content.get('format'))}; this version reads format {FORMAT}")
    return check_plan(content, file)


def check_plan(content: dict[str, Any], file: Path) -> Plan:
    """The plan that a JSON object holds. Raises InputError, naming the file, where it is not what format 1 says."""
    try:
        return Plan.model_validate(content)
    except ValidationError as error:
        raise InputError(f"{file}: {_sentence(error)}") from None


def _sentence(error: ValidationError) -> str:
    """The first problem: the field, what it holds, what is needed."""
    first = error.errors(include_url=False)[0]
    place = _place(first["loc"])
    if first["type"] == "value_error":
        text = str(first["ctx"]["error"])
        if not text.startswith("needed"):
            return f"{place}: {text}" if place else text
        return f"{place} is {_shown(first['input'])}, {text}"
    if first["type"] == "missing":
        return f"{place} is missing"
    return f"{place} is {_shown(first['input'])}, {_needed(first['msg'])}"


def _needed(message: str) -> str:
    """pydantic's message in the words of ours: `Input should be a valid integer` -> `needed is a whole number`."""
    message = message.partition(" or instance of")[0].partition(" after validation")[0]
    for theirs, ours in (
        ("Input should be ", "needed is "),
        ("List should have ", "needed is "),
        ("a valid dictionary", "an object"),
        ("a valid integer", "a whole number"),
        ("a valid string", "a text"),
        ("a valid ", "a "),
    ):
        message = message.replace(theirs, ours)
    return message[0].lower() + message[1:]


def _place(location: Iterable[int | str]) -> str:
    """`trials[3].axes.lr`."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in location]
    return "".join(parts).removeprefix(".")


def _shown(value: Any) -> str:
    """A value as JSON, cut where it is long."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= 60 else f"{text[:57]}..."
