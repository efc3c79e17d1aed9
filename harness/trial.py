"""One trial: the loop, read as a table of contents. The only place where the parts meet."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from harness.agreement import require_agreement
from harness.branches import begin_branch
from harness.evaluation import evaluate
from harness.noise import passed
from harness.parts import Parts, build_parts
from harness.plan import PlannedTrial
from harness.provenance import provenance
from harness.rollout.intake import Intake
from harness.run_dir import RunDir
from harness.stopping import Held, evaluations
from harness.streaming import open_intake
from harness.tracking.jsonl import JsonlSink, read_records
from harness.tracking.mirrors import open_mirrors
from harness.tracking.sink import MetricSink
from harness.training.trainer import Diverged
from harness.trial_log import trial_log
from harness.types import Status, StepRecord, TrialOutcome
from harness.update import Progress, Update, run_update

logger = logging.getLogger(__name__)


def run_trial(trial: PlannedTrial, directory: Path, results_dir: Path, attempt: int = 1) -> Iterator[StepRecord]:
    """Run the trial, or go on from its checkpoint, yielding each record once it is kept.

    When the iterator is exhausted outcome.json says `completed` or `diverged`. An exception ends the
    attempt; everything kept stays. `results_dir` holds the warm starts that sweeps share.
    """
    run = RunDir(directory)
    with run.lock(), trial_log(run.path):
        logger.info("attempt %d starts, in process %d", attempt, os.getpid())
        run.start(trial.config.model_dump(mode="json"), provenance())
        started_s = time.perf_counter()
        with closing(build_parts(trial.config, results_dir)) as parts:
            progress = _restore(run, parts, results_dir)
            yield from _attempt(trial, run, parts, progress, attempt, started_s)


def _attempt(
    trial: PlannedTrial, run: RunDir, parts: Parts, progress: Progress, attempt: int, started_s: float
) -> Iterator[StepRecord]:
    apart = {"startup": time.perf_counter() - started_s}
    if progress.rollout_batches > progress.first_rollout_batch:
        logger.info("goes on from its checkpoint at %s samples", f"{progress.samples_trained:,}")
    elif (branch := trial.config.branch) is not None:
        logger.info("branches from %s at %s samples", branch.trial, f"{branch.at_samples:,}")
    truth = JsonlSink(run.metrics_path)
    sinks: list[MetricSink] = [truth, *open_mirrors(trial, run.path.parent.parent, provenance())]
    outcome = None
    try:
        status, reason = yield from _loop(parts, progress, run, truth, sinks, apart)
        outcome = TrialOutcome(
            status=status,
            reason=reason,
            samples_trained=progress.samples_trained,
            samples_generated=progress.samples_generated,
            optimizer_steps=progress.optimizer_steps,
            wall_s=progress.wall_s,
            attempts=attempt,
            seconds_apart=apart,
        )
        run.write_outcome(outcome)
        logger.info("%s: %s; %s samples, %.1f s", status, reason, f"{outcome.samples_trained:,}", outcome.wall_s)
    finally:
        for sink in sinks:
            sink.close(outcome)


def _loop(
    parts: Parts,
    progress: Progress,
    run: RunDir,
    truth: JsonlSink,
    sinks: list[MetricSink],
    apart: dict[str, float],
) -> Generator[StepRecord, None, tuple[Status, str]]:
    config = parts.config
    started_s = time.perf_counter() - progress.wall_s
    intake = open_intake(parts, progress)
    held = Held(config, evaluations(run.metrics_path, config.evaluation.metric, progress.samples_trained))

    def keep(record: StepRecord) -> StepRecord:
        for name, value in record.metrics.items():
            if not math.isfinite(value):
                raise Diverged(f"{name} is {value}")
        for sink in sinks:
            sink.write(record)
        if record.kind == "eval":
            held.add(record.samples_trained, record.metrics)
            scores = ", ".join(f"{name} {value:.4g}" for name, value in record.metrics.items())
            logger.info("evaluated at %s samples: %s", f"{record.samples_trained:,}", scores)
        return record

    try:
        if progress.rollout_batches == progress.first_rollout_batch:
            yield keep(_eval_record(parts, progress, started_s))
        while progress.samples_trained < config.budget_samples:
            if reason := held.well_past(progress.samples_trained):
                return "completed", reason
            before = progress.samples_trained
            update = run_update(parts, progress, intake)
            yield keep(_train_record(parts, progress, started_s, update, intake))
            require_agreement(config, update, progress.rollout_batches - 1)
            score, save = (
                passed(every, before, progress.samples_trained)
                for every in (config.evaluation.every_samples, config.checkpoint_every_samples)
            )
            # A pause waits for the engine's step, so there is none without a reason.
            with intake.paused() if intake and (score or save) else nullcontext():
                if score:
                    yield keep(_eval_record(parts, progress, started_s))
                if save:
                    saving_s = time.perf_counter()
                    truth.sync()
                    _save(run, parts, progress)
                    apart["checkpoint"] = apart.get("checkpoint", 0.0) + time.perf_counter() - saving_s
    except Diverged as reason:
        return "diverged", str(reason)
    return "completed", "the sample budget is used"


def _train_record(
    parts: Parts, progress: Progress, started_s: float, update: Update, intake: Intake | None
) -> StepRecord:
    return _record(
        "train",
        progress,
        started_s,
        update.metrics,
        {
            "step": progress.rollout_batches,
            "num_prompts": len(update.trained.groups),
            "group_size": parts.config.batch.group_size,
            "lr": update.lr,
            **({} if update.critic_lr is None else {"critic_lr": update.critic_lr}),
            "backward_passes": update.stats.backward_passes,
            "tokens_generated": update.tokens_generated,
            "tokens_trained": update.tokens_trained,
            "seconds": update.seconds,
            "throughput": update.throughput,
            "response_tokens": update.response_tokens,
            **update.busy(intake),
            "samples_dropped": update.samples_dropped,
            "samples_in_flight": intake.samples_in_flight if intake else 0,
        },
    )


def _eval_record(parts: Parts, progress: Progress, started_s: float) -> StepRecord:
    # The grid point, not the sample count, numbers the draws: arms share them whatever their batch.
    grid_index = progress.samples_trained // parts.config.evaluation.every_samples
    eval_started_s = time.perf_counter()
    metrics = evaluate(
        parts.eval_prompts,
        parts.eval_answers,
        parts.scorer,
        parts.tokenizer,
        parts.engine,
        parts.trainer,
        parts.eval_sampling(grid_index),
    )
    seconds = {"eval": time.perf_counter() - eval_started_s}
    return _record("eval", progress, started_s, metrics, {"seconds": seconds})


def _record(
    kind: Literal["train", "eval"],
    progress: Progress,
    started_s: float,
    metrics: Mapping[str, float],
    extra: Mapping[str, Any],
) -> StepRecord:
    progress.wall_s = time.perf_counter() - started_s
    return StepRecord(
        kind=kind,
        samples_trained=progress.samples_trained,
        samples_generated=progress.samples_generated,
        optimizer_steps=progress.optimizer_steps,
        wall_s=progress.wall_s,
        metrics=metrics,
        extra=extra,
    )


def _save(run: RunDir, parts: Parts, progress: Progress) -> None:
    state = {**parts.state(), "progress": asdict(progress)}
    run.save_checkpoint(state, progress.samples_trained, parts.config.execution.checkpoints_kept)
    logger.info("checkpoint at %s samples", f"{progress.samples_trained:,}")


def _restore(run: RunDir, parts: Parts, results_dir: Path) -> Progress:
    """Go on from the checkpoint, if every update before it is on record; from the start otherwise."""
    checkpoint = run.load_checkpoint()
    if checkpoint is not None and _builds_on_records(run, Progress(**checkpoint["progress"])):
        parts.load_state(checkpoint)
        progress = Progress(**checkpoint["progress"])
    elif parts.config.branch is not None:
        progress = begin_branch(parts, parts.config.branch, results_dir)
    else:
        return Progress()
    parts.engine.update_weights(parts.trainer.weights(), progress.rollout_batches)
    return progress


def _builds_on_records(run: RunDir, progress: Progress) -> bool:
    records, _ = read_records(run.metrics_path)
    kept = {record.get("step") for record in records if record.get("kind") == "train"}
    if kept.issuperset(range(progress.first_rollout_batch + 1, progress.rollout_batches + 1)):
        return True
    logger.warning("%s lacks records that its checkpoint builds on; the trial starts over", run.metrics_path)
    return False
