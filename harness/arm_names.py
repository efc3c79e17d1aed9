"""What an arm is called: readable, unique, safe as a folder name. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from harness.config import Sections, flatten

_LONGEST_ARM_NAME = 100
# What most arms leave as it is: no part of a name.
_SILENT = (
    ("batch.gen_batch", None),
    ("algorithm.correction", "none"),
    ("optimizer.name", "adam"),
    ("optimizer.weight_decay", 0.0),
    ("optimizer.weight_decay_rule", "fixed"),
    ("optimizer.clip_norm", None),
    ("optimizer.clip_norm_rule", "fixed"),
    ("optimizer.warmup_samples", 0),
)


def arm_names(arms: Sequence[Sections], varied: Sequence[str]) -> list[str]:
    """Readable, unique, safe as a folder name; a hash of the settings settles what stays ambiguous."""
    names = []
    for arm in arms:
        batch, leaves = arm.batch, leaves_of(arm)
        parts = [f"P{batch.num_prompts}", f"G{batch.group_size}", arm.optimizer.lr_rule]
        parts += [_name_part(name, leaves[name]) for name in varied if name in leaves]
        names.append("-".join(part for part in parts if part))
    counts = Counter(names)
    return [
        name if counts[name] == 1 and len(name) <= _LONGEST_ARM_NAME else f"{name[:_LONGEST_ARM_NAME]}-{digest(arm)}"
        for name, arm in zip(names, arms, strict=True)
    ]


def _name_part(name: str, value: Any) -> str:
    """`lr3e-4` for optimizer.lr 3e-4. What speaks for itself needs no label, what is left to its default often no name.

    >>> _name_part("optimizer.lr", 0.0003), _name_part("model.name", "models/small"), _name_part("model.seed", 1)
    ('lr3e-4', 'small', 'model_seed1')
    >>> _name_part("optimizer.betas", [0.9, 0.95]), _name_part("algorithm.loss_average", "token")
    ('betas0.9_0.95', 'loss_average_token')
    >>> _name_part("algorithm.critic.lr_rule", "fixed"), _name_part("sampling.max_response_tokens", None)
    ('critic_lr_rule_fixed', 'max_response_tokens_unset')
    >>> _name_part("execution.mode", "streaming"), _name_part("batch.gen_batch", None)
    ('streaming', '')
    >>> _name_part("algorithm.correction", "none"), _name_part("algorithm.correction", "truncated")
    ('', 'truncated')
    >>> _name_part("optimizer.weight_decay", 0.0), _name_part("optimizer.weight_decay", 0.1)
    ('', 'weight_decay0.1')
    """
    if (name, value) in _SILENT:
        return ""
    section, _, last = name.rpartition(".")
    plain = {"name": "", "mode": "", "correction": "", "seed": f"{section.replace('.', '_')}_seed"}
    label = plain.get(last, last)
    label = f"critic_{label}" if section.endswith(".critic") else label
    words = [
        _short_number(v) if isinstance(v, float) else "unset" if v is None else str(v)
        for v in (value if isinstance(value, list) else [value])
    ]
    text = "_".join(word.rstrip("/").rpartition("/")[2] for word in words)
    separator = "_" if label and text[:1].isalpha() else ""
    return label + separator + re.sub(r"[^A-Za-z0-9._+-]+", "_", text)


def _short_number(value: float) -> str:
    """The shortest text that gives the number back exactly.

    >>> _short_number(0.0003), _short_number(0.5), _short_number(1.0), _short_number(0.00042426406871192855)
    ('3e-4', '0.5', '1', '4.2426406871192855e-4')
    """
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    if 0.01 <= abs(value) < 1e6 or value == 0:
        return repr(value).removesuffix(".0")
    mantissa = str(digits[0]) + ("." + "".join(map(str, digits[1:])) if len(digits) > 1 else "")
    return f"{'-' if sign else ''}{mantissa}e{exponent + len(digits) - 1}"


def leaves_of(settings: Sections) -> dict[str, Any]:
    """Every setting by its dotted name, as JSON holds it."""
    return flatten(settings.model_dump(mode="json"))


# What a trial's records cannot depend on: changing it must not make finished trials another sweep's.
NOT_OF_THE_TRIAL: dict[str, Any] = {
    "timing": True,
    "tracking": True,
    "execution": {"workers", "max_attempts", "hang_minutes", "resources", "checkpoints_kept"},
}


# Left out while unset: what says nothing must not rename a trial.
_TOLD_ONCE_SET = ("stop_past_target_frac", "branch")


def digest(config: Sections) -> str:
    """8 hex digits of the sha256 of the whole configuration, less what no record depends on."""
    dumped = config.model_dump(mode="json", exclude=NOT_OF_THE_TRIAL)
    content = {name: value for name, value in dumped.items() if name not in _TOLD_ONCE_SET or value is not None}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:8]
