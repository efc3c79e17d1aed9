"""The workspace of a sweep: what its JSON shows, read offline, and that the real client saves it in one place."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import harness.tracking.wandb as client
from harness.__main__ import main
from harness.dashboard import workspace
from harness.plan import Plan, make_plan
from harness.plan_file import store_plan
from harness.sweep_file import load_sweep
from harness.tracking.rows import row_of, summary_of
from tests.harness.wandb_client import (
    KEY,
    PLAN,
    own_client,  # noqa: F401  a fixture
)
from tests.harness.wandb_server import wandb_server

pytestmark = [pytest.mark.usefixtures("own_client"), pytest.mark.filterwarnings("ignore:Pydantic V1 style")]
ROOT = Path(__file__).parents[2]


def section(plan: Plan) -> dict[str, Any]:
    """What the workspace says, as the server keeps it."""
    spec: dict[str, Any] = workspace(plan, "me")._to_model().spec.model_dump(by_alias=True, exclude_none=True)
    return json.loads(json.dumps(spec["section"]))  # type: ignore[no-any-return]


def panels(shown: dict[str, Any]) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    sections = shown["panelBankConfig"]["sections"]
    return {each["name"]: [(panel["viewType"], panel["config"]) for panel in each["panels"]] for each in sections}


def test_it_shows_score_norms_throughput_staleness_and_the_table_of_arms() -> None:
    plan = make_plan(load_sweep(ROOT / "sweeps" / "ppo.yaml"))
    shown = section(plan)
    found = panels(shown)
    assert list(found) == ["Score", "Gradient norms", "Throughput", "Staleness", "Arms, as the report has them"]
    [(kind, score)] = found["Score"]
    assert (kind, score["xAxis"], score["metrics"]) == (
        "Run History Line Plot",
        "samples_trained",
        [plan.target.metric],
    )
    assert (score["groupBy"], score["groupAgg"], score["groupArea"]) == ("arm.value", "mean", "minmax")
    assert score["limit"] == len(plan.trials)
    scatters = [config for kind, config in found["Gradient norms"] if kind == "Scatter Plot"]
    assert [config["yAxis"] for config in scatters] == [
        "summary:grad/actor_norm_rms", "summary:grad/critic_norm_rms",
    ]  # fmt: skip
    assert {config["xAxis"] for config in scatters} == {"config:axes.value.train_batch"}
    assert all(config["xAxisLogScale"] and config["yAxisLogScale"] for config in scatters)
    assert [config.get("yAxis") or config["metrics"] for _, config in found["Throughput"]] == [
        "summary:samples_per_s", ["throughput/samples_per_s"],
    ]  # fmt: skip
    assert found["Staleness"][0][1]["metrics"] == ["policy/staleness_samples_mean"]
    table = found["Arms, as the report has them"][0][1]["panel2Config"]["exp"]["fromOp"]["inputs"]
    assert table["key"]["val"] == "arms"


def test_it_shows_the_runs_of_one_sweep_by_arm() -> None:
    [runs] = section(PLAN)["runSets"]
    [only] = runs["filters"]["filters"]
    assert (only["key"], only["op"], only["value"]) == ({"section": "run", "name": "tags"}, "IN", ["faults"])
    assert runs["grouping"] == [{"section": "config", "name": "arm.value"}]
    assert "summary:grad/actor_norm_rms" in runs["runFeed"]["columnPinned"]
    assert not any("critic" in column for column in runs["runFeed"]["columnPinned"])  # GRPO has none


def test_what_it_shows_is_what_runs_have() -> None:
    """Names of the panels against those of rows, summaries and axes, from records as harness.trial makes them."""
    train = {
        "kind": "train", "samples_trained": 64, "num_prompts": 8, "group_size": 8, "seconds": {"train": 0.5},
        "throughput": {"samples_per_s": 128.0, "tokens_per_s": 896.0},
        "metrics": {"grad/actor_norm": 1.0, "policy/staleness_samples_mean": 0.0},
    }  # fmt: skip
    evaluation = {"kind": "eval", "samples_trained": 64, "metrics": {"eval/score": 0.5}}
    in_rows, in_summary = row_of(train) | row_of(evaluation), summary_of([train, evaluation])
    assert in_summary == {"grad/actor_norm_rms": 1.0, "samples_per_s": 128.0}
    configs = [config for each in panels(section(PLAN)).values() for _, config in each]
    lines = [config for config in configs if "metrics" in config]
    scatters = [config for config in configs if "yAxis" in config]
    assert {name for config in lines for name in [*config["metrics"], config["xAxis"]]} <= in_rows.keys()
    assert {config["yAxis"].removeprefix("summary:") for config in scatters} == in_summary.keys()
    assert {config["xAxis"].removeprefix("config:axes.value.") for config in scatters} <= PLAN.trials[0].axes.keys()


def test_saving_again_replaces_what_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "faults"
    store_plan(PLAN, folder)
    with wandb_server() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        for _ in range(2):
            assert main(["dashboard", str(folder)]) == 0
    [(name, view)] = server.views.items()
    assert server.asked.count("UpsertView2") == 2
    assert (view["entityName"], view["projectName"], view["displayName"]) == ("me", "invariance", "sweep faults")
    assert view["id"] == f"id of {name}"  # the second call's, which names the first one's
    assert list(panels(json.loads(view["spec"])["section"])) == list(panels(section(PLAN)))
    said = capsys.readouterr()
    assert said.out.count("saved: http://127.0.0.1") == 2 and KEY not in said.out + said.err


def test_without_a_server_or_the_package_it_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "faults"
    store_plan(PLAN, folder)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setattr(client, "default_entity", lambda: (_ for _ in ()).throw(OSError("Connection refused")))
    assert main(["dashboard", str(folder)]) == 3
    assert capsys.readouterr().err.startswith("error: W&B: OSError: Connection refused; what arrived is kept there")
    monkeypatch.setitem(sys.modules, "wandb_workspaces", None)
    monkeypatch.setitem(sys.modules, "wandb_workspaces.reports.v2", None)
    monkeypatch.setattr(client, "default_entity", lambda: "me")
    assert main(["dashboard", str(folder)]) == 3
    assert "pip install 'batch-invariance[dashboard]'" in capsys.readouterr().err
