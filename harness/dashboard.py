"""python -m harness dashboard: a workspace of Weights & Biases for one sweep, built here and saved there.

The only file that imports wandb_workspaces.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from harness.errors import EnvironmentProblem
from harness.plan import Plan
from harness.plan_file import read_plan
from harness.run_dir import write_json
from harness.status_command import add_folder, folder_of
from harness.tables import console, plain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `dashboard` takes."""
    add_folder(parser)


def run(args: argparse.Namespace) -> int:
    """Save the workspace, in place of the one that an earlier call saved. EnvironmentProblem where that fails."""
    sweep_dir = folder_of(args)
    plan = read_plan(sweep_dir)
    assert plan is not None  # folder_of has looked
    os.environ.setdefault("WANDB_SILENT", "true")
    try:
        url = save(plan, sweep_dir)
    except ImportError as error:
        raise EnvironmentProblem(
            f"the dashboard needs a package that cannot be imported ({error}); run: "
            "pip install 'batch-invariance[dashboard]'"
        ) from None
    except Exception as error:  # the client raises its own, the socket's and the operating system's errors
        from harness.tracking.wandb import problem

        raise problem(error) from None
    console().print(plain(f"saved: {url}"), soft_wrap=True)
    return 0


def save(plan: Plan, sweep_dir: Path) -> str:
    """Save the workspace of a sweep; its address. A note in the sweep's folder tells the next call which it is."""
    from harness.tracking.wandb import default_entity

    note = sweep_dir / "wandb" / "dashboard.json"
    made = workspace(plan, plan.trials[0].config.tracking.entity or default_entity())
    if note.exists():
        before = json.loads(note.read_bytes())
        made._internal_name, made._internal_id = before["name"], before["id"]
    made.save()
    note.parent.mkdir(exist_ok=True)
    write_json(note, {"name": made._internal_name, "id": made._internal_id})
    return str(made.url)


def workspace(plan: Plan, entity: str) -> Any:
    """Score, gradient norms, throughput and staleness of the sweep's runs, by arm, and what its report says of arms."""
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces import expr

    from harness.tracking.wandb import run_id

    norms = ["actor"] + (["critic"] if any(trial.config.critic_optimizer for trial in plan.trials) else [])

    def over_samples(title: str, metric: str) -> Any:
        return wr.LinePlot(
            title=title,
            x="samples_trained",
            y=[metric],
            groupby=wr.Config("arm"),
            groupby_aggfunc="mean",
            groupby_rangefunc="minmax",
            max_runs_to_show=len(plan.trials),
        )

    def over_batch(title: str, summary: str, log_y: bool) -> Any:
        batch, value = wr.Config("axes.train_batch"), wr.SummaryMetric(summary)
        return wr.ScatterPlot(title=title, x=batch, y=value, log_x=True, log_y=log_y)

    sections = {
        "Score": [
            over_samples(f"J: {plan.target.metric} over samples, mean and range of an arm's seeds", plan.target.metric)
        ],
        "Gradient norms": [
            *(
                over_batch(f"{norm} gradient norm (rms of a trial) against B", f"grad/{norm}_norm_rms", True)
                for norm in norms
            ),
            *(over_samples(f"{norm} gradient norm over samples", f"grad/{norm}_norm") for norm in norms),
        ],
        "Throughput": [
            over_batch("samples/s of a trial against B; trials may share the machine", "samples_per_s", False),
            over_samples("samples/s over samples", "throughput/samples_per_s"),
        ],
        "Staleness": [over_samples("samples trained since a response was sampled", "policy/staleness_samples_mean")],
        "Arms, as the report has them": [wr.WeavePanelSummaryTable(table_name="arms")],
    }
    columns = ["config:axes.value.train_batch", "config:axes.value.lr", f"summary:{plan.target.metric}"]
    columns += [f"summary:grad/{norm}_norm_rms" for norm in norms] + ["summary:samples_per_s", "summary:outcome"]
    return ws.Workspace(
        entity=entity,
        project=plan.trials[0].config.tracking.project,
        name=f"sweep {plan.sweep}",
        sections=[ws.Section(name=name, panels=panels, is_open=True) for name, panels in sections.items()],
        settings=ws.WorkspaceSettings(x_axis="samples_trained", max_runs=len(plan.trials)),
        runset_settings=ws.RunsetSettings(
            filters=expr.And(expr.Tags().isin([plan.sweep[:64]])),  # the sweep's trials and its report have this tag
            groupby=[expr.Config("arm")],
            order=[expr.Ordering(expr.Config("axes.value.train_batch"), ascending=True)],
            pinned_columns=columns,
            pinned_runs=[run_id(plan.sweep, "report")],
        ),
    )
