"""Models and data of the hub, by the real client: fetched once at a commit, refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, GPT2Config

from harness.__main__ import main
from harness.errors import EnvironmentProblem, InputError
from harness.hub import snapshot
from harness.model_files import ask_hub
from harness.models import character_tokenizer
from harness.tasks.config import DataConfig
from harness.tasks.data import read_questions
from harness.trial import run_trial
from tests.harness.hub_server import COMMIT, GATED, hub, point_client_at
from tests.harness.small import planned_trial, trial_dir

NOWHERE = "http://127.0.0.1:9"  # nothing listens there


def write_model(folder: Path) -> None:
    tokenizer = character_tokenizer("0123456789=")
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=64, n_embd=32, n_layer=1, n_head=2)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def test_a_trial_of_a_hub_model_and_its_second_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path / "hub" / "lab" / "tiny")
    (tmp_path / "hub" / "lab" / "tiny" / "model.onnx").write_text("a copy for another library")
    trial = planned_trial(model__name="lab/tiny", model__revision=COMMIT, budget_samples=16)
    with hub(tmp_path / "hub", monkeypatch, tmp_path / "cache") as asked:
        ask_hub(trial.config.model)
        assert any(path.endswith("config.json") for path in asked)
        assert not any("model.safetensors" in path for path in asked)  # the weights wait for who needs them
        first = list(run_trial(trial, trial_dir(tmp_path, "first"), tmp_path))
        assert any("model.safetensors" in path for path in asked) and not any("onnx" in path for path in asked)
    again = list(run_trial(trial, trial_dir(tmp_path, "again"), tmp_path))
    assert [record.metrics for record in again] == [record.metrics for record in first]
    ask_hub(trial.config.model)


def test_data_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "hub" / "lab" / "sums" / "main"
    folder.mkdir(parents=True)
    for split in ("train", "test"):
        (folder / f"{split}.jsonl").write_text(f'{{"question": "{split}: 1 + 1?", "answer": "2"}}\n')
    data = DataConfig(data="lab/sums", revision=COMMIT, files="main/train*")
    with hub(tmp_path / "hub", monkeypatch, tmp_path / "cache") as asked:
        assert list(read_questions(data, "task.train[0]").values()) == [("train: 1 + 1?", "2")]
        assert not any("test" in path for path in asked)
    assert len(read_questions(data, "task.train[0]")) == 1  # and without it


def test_what_the_hub_does_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "hub" / "lab" / "tiny")

    def refusal(name: str, commit: str = COMMIT) -> str:
        with pytest.raises(InputError) as caught:
            snapshot("model", "model.name", name, commit)
        return str(caught.value)

    with hub(tmp_path / "hub", monkeypatch, tmp_path / "cache"):
        assert refusal("lab/tinny") == (
            "model.name: the hub has no model lab/tinny, or not for you; needs another name, or a login: hf auth login"
        )
        assert refusal("lab/tiny", "f" * 40).startswith(
            f"model.name: lab/tiny has no commit {'f' * 40}; huggingface.co/"
        )
        assert refusal(GATED) == "model.name: lab/gated asks for an agreement; needs one, and a login: hf auth login"


def test_a_hub_out_of_reach_is_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point_client_at(NOWHERE, monkeypatch, tmp_path / "cache")
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)  # between its attempts
    with pytest.raises(EnvironmentProblem) as caught:
        snapshot("model", "model.name", "lab/tiny", COMMIT)
    assert str(caught.value).startswith(
        "model.name: lab/tiny at 01234567 is not all on this machine and the hub cannot be reached; needs a network, or a "
        "local folder instead ("
    )


def test_the_command_says_so_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    monkeypatch.setattr("harness.sweep.run_sweep", lambda *_: pytest.fail("workers would have started"))
    sweep = str(Path(__file__).parents[2] / "sweeps" / "gpu_1p5b.yaml")
    point_client_at(NOWHERE, monkeypatch, tmp_path / "cache")
    assert main(["plan", sweep, "--results", str(tmp_path)]) == 0  # a plan asks nobody
    assert main(["sweep", sweep, "--results", str(tmp_path)]) == 3
    assert capsys.readouterr().err.startswith(
        "error: model.name: Qwen/Qwen2.5-1.5B-Instruct at 989aa798 is not all on this"
    )
    write_model(tmp_path / "hub" / "Qwen" / "other")
    with hub(tmp_path / "hub", monkeypatch, tmp_path / "cache"):
        assert main(["sweep", sweep, "--results", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(
        "error: model.name: the hub has no model Qwen/Qwen2.5-1.5B-Instruct, or not"
    )
    assert main(["sweep", sweep, "--set", "model.revision=main", "--results", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("error: model.revision: 'main'; Qwen/Qwen2.5-1.5B-Instruct is on the hub")
