"""plan.json of a sweep's folder: read it, compare a new plan with it, write it."""

from __future__ import annotations

from pathlib import Path

from harness.errors import EnvironmentProblem, InputError
from harness.plan import Plan, check_extends
from harness.run_dir import exclusive, replacing

_UNREADABLE = "move it away to have it written anew (the records of the trials stay), or give another --results DIR"


def read_plan(sweep_dir: Path) -> Plan | None:
    """The plan on disk, None where there is none; InputError where it cannot be understood."""
    path = sweep_dir / "plan.json"
    try:
        return Plan.from_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise EnvironmentProblem(f"{sweep_dir}: a file is in the way of this folder") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not text; {_UNREADABLE}") from None
    except OSError as error:
        raise EnvironmentProblem(f"{path}: cannot be read ({error.strerror})") from None
    except InputError as error:
        raise InputError(f"{sweep_dir}/{error}; {_UNREADABLE}") from None


def check_plan(plan: Plan, sweep_dir: Path) -> bool:
    """Whether plan.json has to be written for `plan`; InputError where that would orphan a trial with records."""
    existing = read_plan(sweep_dir)
    check_extends(existing, plan, _started(sweep_dir), str(sweep_dir))
    return existing != plan


def store_plan(plan: Plan, sweep_dir: Path) -> None:
    """Write plan.json, atomically, unless it is there already. Refuses as check_plan does."""
    if not check_plan(plan, sweep_dir):
        return
    try:
        sweep_dir.mkdir(parents=True, exist_ok=True)
        with replacing(sweep_dir / "plan.json") as file:
            file.write(plan.to_json().encode())
    except OSError as error:
        raise EnvironmentProblem(f"{sweep_dir}: plan.json cannot be written ({error.strerror})") from None


def write_plan(plan: Plan, sweep_dir: Path) -> None:
    """store_plan for a caller without the folder's lock: EnvironmentProblem while a sweep is running there."""
    if not check_plan(plan, sweep_dir):
        return
    busy = f"{sweep_dir}: a sweep is running in this folder by another plan; wait for it, or give another --results DIR"
    try:
        sweep_dir.mkdir(parents=True, exist_ok=True)
        with exclusive(sweep_dir / "lock", 0.0, busy):
            store_plan(plan, sweep_dir)
    except OSError as error:
        raise EnvironmentProblem(f"{sweep_dir}: plan.json cannot be written ({error.strerror})") from None


def _started(sweep_dir: Path) -> set[str]:
    """The ids of the trials that have records or an outcome."""
    kept = ("metrics.jsonl", "outcome.json")
    found = (path for name in kept for path in (sweep_dir / "trials").glob(f"*/{name}") if path.stat().st_size > 0)
    return {path.parent.name for path in found}
