"""The client of Weights & Biases, which mirrors metrics.jsonl: one run per trial, every metric over samples_trained.

The n-th row of a run is the n-th record (tracking.rows), so that whoever joins a run knows from its number of rows
which are missing: a later attempt of the trial, or `python -m harness sync`. A trial in mode streaming does not repeat
its records, and the client can take no row back (its rewind needs a server, and one that offers it): there every line
of metrics.jsonl is a row, with its `attempt`. The only file that imports wandb.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import EnvironmentProblem
from harness.tracking.jsonl import read_records
from harness.tracking.rows import Record, every_attempt, in_order, repeats, row_of, summary_of
from harness.types import TrialOutcome

if TYPE_CHECKING:
    from harness.plan import Plan, PlannedTrial

# A person waits for what these send.
SEND_TIMEOUTS = {"init_timeout": 60.0, "finish_timeout": 600.0}
_MODES = {"online": "online", "run": "online", "offline": "offline", "dryrun": "offline", "disabled": "disabled"}


def kept_records(sweep_dir: Path, trial: PlannedTrial) -> list[Record]:
    """The records that count."""
    return in_order(_records(sweep_dir, trial))


def mirrored_records(sweep_dir: Path, trial: PlannedTrial) -> list[Record]:
    """What the run of the trial holds once it is complete."""
    found = _records(sweep_dir, trial)
    return in_order(found) if repeats(trial.config) else every_attempt(found)


def _records(sweep_dir: Path, trial: PlannedTrial) -> list[Record]:
    return list(read_records(sweep_dir / "trials" / trial.trial_id / "metrics.jsonl")[0])


def open_run(
    trial: PlannedTrial,
    sweep_dir: Path,
    provenance: Mapping[str, Any],
    mode: str,
    folder: Path,
    timeouts: Mapping[str, float],
) -> Any:
    """The trial's run, joined where the server has it; its `starting_step` is the number of rows there.

    The client's files go to `folder`/wandb.
    """
    config = trial.config
    said = {
        **config.model_dump(mode="json"),
        "sweep": sweep_dir.name,
        "arm": trial.arm,
        "axes": dict(trial.axes),
        "provenance": dict(provenance),
    }
    tags = [sweep_dir.name, config.algorithm.name, config.optimizer.lr_rule, *config.tracking.tags]
    run = init(
        folder,
        mode,
        timeouts,
        project=config.tracking.project,
        entity=config.tracking.entity,
        id=run_id(sweep_dir.name, trial.trial_id),
        name=trial.trial_id,
        group=trial.arm,
        job_type="trial",
        tags=[tag[:64] for tag in dict.fromkeys(tags) if tag],
        config=said,
    )
    run.define_metric("samples_trained")
    run.define_metric("*", step_metric="samples_trained")
    return run


def init(folder: Path, mode: str, timeouts: Mapping[str, float], **about: Any) -> Any:
    """A run of the real client, which keeps quiet and tells the server nothing of this machine."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    settings = wandb.Settings(
        console="off",
        silent=True,
        finish_timeout_raises=True,
        disable_git=True,
        save_code=False,
        symlink=False,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
        x_transaction_log_flush_interval=0.05,  # what a kill may lose of an offline folder, in seconds
        **timeouts,
    )
    # "allow", offline too: at `wandb sync` a later fragment then joins instead of replacing
    return wandb.init(
        dir=str(folder),
        mode=mode,  # type: ignore[arg-type]
        resume="allow",
        reinit="create_new",
        settings=settings,
        **about,
    )


def finish(run: Any, outcome: TrialOutcome | None, records: Sequence[Record]) -> None:
    """End the run: what the whole trial comes to, and how it ended. Raises where the server did not take it in time."""
    run.summary.update(summary_of(records))
    if outcome is not None:
        run.summary.update({"outcome": outcome.status, "outcome_reason": outcome.reason})
    done = outcome is not None and outcome.status in ("completed", "diverged")
    run.finish(exit_code=0 if done else 1)


def teardown() -> None:
    """Stop the client's core process of this process."""
    import wandb

    wandb.teardown()


def default_entity() -> str:
    """Whose runs these are where the sweep file does not say it."""
    import wandb

    return str(wandb.Api().default_entity)


def problem(error: Exception) -> EnvironmentProblem:
    """What to tell a person who asked for the server.

    >>> str(problem(ValueError("No API key configured.")))
    'W&B: no account is known here; needs WANDB_API_KEY, or once: wandb login (WANDB_BASE_URL: a server of your own)'
    """
    if "API key configured" in str(error):
        needed = "needs WANDB_API_KEY, or once: wandb login"
        return EnvironmentProblem(f"W&B: no account is known here; {needed} (WANDB_BASE_URL: a server of your own)")
    return EnvironmentProblem(
        f"W&B: {in_one_line(error)}; what arrived is kept there, the same command sends the rest (WANDB_BASE_URL: a "
        "server of your own)"
    )


def in_one_line(error: Exception) -> str:
    """The error's type and the first line of what it says."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200].rstrip('.')}"


def tracking_mode() -> str:
    """`online`, `offline` or `disabled`: what WANDB_MODE says, offline where it says nothing known."""
    return _MODES.get(os.environ.get("WANDB_MODE", "").strip().lower(), "offline")


def run_id(sweep: str, name: str) -> str:
    """The W&B id of a trial, or of what else a sweep has: always the same, and within W&B's 64 characters.

    >>> run_id("default", "P8-G8-sqrt-s0-0badcafe")
    '1d43384b28dab860'
    """
    return hashlib.sha256(f"{sweep}/{name}".encode()).hexdigest()[:16]


def send_trial(
    trial: PlannedTrial, sweep_dir: Path, provenance: Mapping[str, Any], outcome: TrialOutcome | None
) -> int:
    """Send the rows of a trial that the server lacks; returns how many. Raises what the client raises."""
    records = mirrored_records(sweep_dir, trial)
    with tempfile.TemporaryDirectory() as folder:
        run = open_run(trial, sweep_dir, provenance, "online", Path(folder), SEND_TIMEOUTS)
        missing = records[run.starting_step :]
        for record in missing:
            run.log(row_of(record))
        finish(run, outcome, kept_records(sweep_dir, trial))
    return len(missing)


def send_report(plan: Plan, sweep_dir: Path) -> bool:
    """Send the report as a run of its own: table of arms, figures, and as artifacts report, plan and configurations.

    Returns whether there was anything to send: a report that the server has is not sent again.
    """
    report = sweep_dir / "report"
    content, digest = json.loads((report / "report.json").read_bytes()), _digest(report)
    tracking = plan.trials[0].config.tracking
    about = {
        "project": tracking.project,
        "entity": tracking.entity,
        "id": run_id(sweep_dir.name, "report"),
        "name": f"{sweep_dir.name} report",
        "job_type": "report",
        "tags": [sweep_dir.name[:64], "report"],
        "notes": "\n".join(map(str, content.get("headline", []))),
        "config": {"sweep": sweep_dir.name, "question": plan.question, "target": vars(plan.target)},
    }
    with tempfile.TemporaryDirectory() as folder:
        run = init(Path(folder), "online", SEND_TIMEOUTS, **about)
        is_new: bool = run.summary.get("report_sha256") != digest
        if is_new:
            run.log(_shown(report))
            _send_artifacts(run, sweep_dir)
            run.summary["report_sha256"] = digest
        run.finish()
    return is_new


def _shown(report: Path) -> dict[str, Any]:
    """The table of arms and the figures, as the client takes them."""
    import wandb

    with open(report / "tables" / "arms.csv", newline="", encoding="utf-8") as file:
        columns, *rows = csv.reader(file)
    cells: list[Iterable[Any]] = [[_cell(text) for text in row] for row in rows]
    arms = wandb.Table(columns=list(columns), data=cells, allow_mixed_types=True)
    return {"arms": arms} | {f"figures/{path.stem}": wandb.Image(str(path)) for path in report.glob("figures/*.png")}


def _send_artifacts(run: Any, sweep_dir: Path) -> None:
    import wandb

    for name, paths in {
        "report": sorted((sweep_dir / "report").rglob("*")),
        "plan": [sweep_dir / "plan.json"],
        "config": sorted(sweep_dir.glob("trials/*/config.json")),
    }.items():
        artifact = wandb.Artifact(f"{sweep_dir.name}-{name}", type=name)
        for path in paths:
            if path.is_file():
                artifact.add_file(str(path), name=path.relative_to(sweep_dir).as_posix())
        run.log_artifact(artifact).wait(timeout=int(SEND_TIMEOUTS["finish_timeout"]))


def _digest(folder: Path) -> str:
    """Hash of the names and contents of all files below a folder."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder)} {hashlib.sha256(path.read_bytes()).hexdigest()} ".encode())
    return digest.hexdigest()


def _cell(text: str) -> float | str | None:
    try:
        return float(text)
    except ValueError:
        return text or None
