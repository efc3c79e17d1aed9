"""The shape of the project: who imports what, and that everything shipped can be planned."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from harness.config import TrialConfig
from harness.model_files import check_model
from harness.plan import Plan, make_plan
from harness.sweep_file import load_sweep

ROOT = Path(__file__).parents[1]
SWEEPS = sorted((ROOT / "sweeps").glob("*.yaml"))
# Each heavy library is imported in one file of a package, Ray in one folder.
HOME = {
    "ray": {f"harness/cluster/{name}.py" for name in ("__init__", "connection", "pool", "processes")},
    "wandb": {"harness/tracking/wandb.py", "analysis/importing/wandb.py"},
    "wandb_workspaces": {"harness/dashboard.py"},
    "tensorboard": {"analysis/importing/tensorboard.py"},
    "vllm": {"harness/rollout/vllm.py"},
    "deepspeed": {"harness/training/deepspeed.py"},
    "reasoning_gym": {"harness/tasks/reasoning_gym.py"},
    "math_verify": {"harness/tasks/mathematics.py"},
    "huggingface_hub": {"harness/hub.py"},
    "pebble": {"harness/rewards.py"},
}


def imports(path: Path) -> set[str]:
    """Every module that a file imports, at its top or inside a function."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module)
    return found


def importers(library: str, package: str) -> set[str]:
    """The files of `package` that import `library` or a part of it."""
    return {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / package).rglob("*.py")
        if any(name.split(".")[0] == library for name in imports(path))
    }


@pytest.mark.parametrize("library", HOME)
def test_a_heavy_library_has_one_home(library: str) -> None:
    found = importers(library, "harness") | importers(library, "analysis")
    assert found == {home for home in HOME[library] if (ROOT / home).exists()}


def test_analysis_knows_results_only() -> None:
    assert importers("harness", "analysis") == set()
    assert importers("analysis", "harness") == set()


@pytest.mark.parametrize(
    "command", [["plan", "sweeps/smoke.yaml"], ["batch", "--num-prompts", "8", "--group-size", "8"]]
)
def test_planning_imports_nothing_heavy(command: list[str], tmp_path: Path) -> None:
    arguments = [*command, "--results", str(tmp_path)] if command[0] == "plan" else command
    code = (
        "import sys; from harness.__main__ import main; code = main(sys.argv[1:]); "
        "heavy = {'torch', 'ray', 'transformers', 'wandb'} & sys.modules.keys(); "
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_shipped_sweep_loads_and_plans(path: Path) -> None:
    sweep = load_sweep(path)
    plan = make_plan(sweep)
    assert sweep.sweep == path.stem
    assert Plan.from_json(plan.to_json()) == plan
    for trial in plan.trials:
        check_model(trial.config.model)
    head = path.read_text(encoding="utf-8").splitlines()
    comment = " ".join(line for line in head[: head.index(f"sweep: {sweep.sweep}")] if line.startswith("#"))
    assert "Asks:" in comment and "Costs:" in comment


def shipped(name: str) -> list[TrialConfig]:
    return [trial.config for trial in make_plan(load_sweep(ROOT / "sweeps" / f"{name}.yaml")).trials]


def test_the_smoke_sweep_is_small() -> None:
    trials = shipped("smoke")
    assert len(trials) == 2
    assert sum(trial.budget_samples for trial in trials) <= 8192


def test_the_default_sweep_asks_what_it_has_to() -> None:
    trials = shipped("default")
    assert {trial.seed for trial in trials} == {0, 1, 2, 3, 4}
    ruled = {trial.batch.train_batch for trial in trials if trial.optimizer.lr_rule == "sqrt"}
    assert len(ruled) >= 8 and max(ruled) >= 100 * min(ruled)
    assert len({trial.batch.train_batch for trial in trials if trial.optimizer.lr_rule == "fixed"}) == 2
    # the budget is a whole number of every batch: all curves end at one N
    assert all(trial.budget_samples % trial.batch.train_batch == 0 for trial in trials)


def test_the_reference_rate_is_tuned_on_seeds_and_settings_of_the_study() -> None:
    tuning, study = shipped("reference_lr"), shipped("default")
    assert not {trial.seed for trial in tuning} & {trial.seed for trial in study}
    reference = next(t for t in study if t.optimizer.lr == t.optimizer.lr_ref and t.optimizer.lr_rule == "sqrt")
    rates = {trial.optimizer.lr for trial in tuning}
    assert reference.optimizer.lr in rates and min(rates) < reference.optimizer.lr < max(rates)
    for trial in tuning:
        assert (trial.model, trial.task, trial.batch) == (reference.model, reference.task, reference.batch)
        assert (trial.algorithm, trial.evaluation) == (reference.algorithm, reference.evaluation)


def test_the_rules_are_compared_in_the_setting_of_the_study() -> None:
    rules, study = shipped("lr_rules"), shipped("default")
    for trial in rules:
        assert (trial.model, trial.task, trial.algorithm) == (study[0].model, study[0].task, study[0].algorithm)
        assert (trial.evaluation, trial.budget_samples) == (study[0].evaluation, study[0].budget_samples)
        assert (trial.optimizer.lr_ref, trial.batch.group_size) == (study[0].optimizer.lr_ref, 8)
    batches: dict[str, set[int]] = {}
    for trial in rules:
        batches.setdefault(trial.optimizer.lr_rule, set()).add(trial.batch.train_batch)
    beyond = {128, 256, 512, 1024, 2048}
    # kappa (1 - .9) < 1 ends adam_sde below 640; at 64 all rules are one arm
    assert batches == {"sqrt": beyond | {64}, "adam_sde": {128, 256, 512}} | dict.fromkeys(
        ("linear", "adam_sde_power", "surge", "fixed"), beyond
    )
