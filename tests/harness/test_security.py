"""Files of others run no code here and name no path outside the results folder."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.__main__ import main
from harness.config import ModelConfig
from harness.errors import InputError
from harness.model_files import check_model
from harness.models import load_model, load_tokenizer, policy_config
from harness.plan import Plan
from harness.run_dir import RunDir, is_whole_folder
from harness.warm_start import ensure_warm_start
from tests.harness import small
from tests.harness.faults import small_plan


class RunsCode:
    """Unpickled, it makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A folder that is there only if code of a file was run."""
    return tmp_path / "code was run"


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    small.model().save_pretrained(folder)
    small.TOKENIZER.save_pretrained(folder)
    return folder


def change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_the_trap_works(tmp_path: Path, trap: Path) -> None:
    torch.save({"weights": RunsCode(trap)}, tmp_path / "file.pt")
    torch.load(tmp_path / "file.pt", weights_only=False)
    assert trap.is_dir()


def test_a_checkpoint_runs_no_code_and_the_one_before_it_is_used(
    tmp_path: Path, trap: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = RunDir(tmp_path / "trial")
    run.save_checkpoint({"progress": 64}, 64)
    torch.save({"progress": RunsCode(trap)}, run.checkpoint_dir / f"{128:012d}.pt")
    assert run.load_checkpoint() == {"progress": 64}
    assert not trap.exists()
    [warning] = [record.getMessage() for record in caplog.records]
    assert warning.endswith("000000000128.pt is damaged or no checkpoint: it is passed over")


def test_a_warm_start_that_was_replaced_runs_no_code_and_is_made_again(tmp_path: Path, trap: Path) -> None:
    config = small.planned_trial(model__warm_start={"steps": 1}).config
    folder = ensure_warm_start(config, tmp_path)
    assert folder is not None
    (folder / "model.safetensors").unlink()
    torch.save({"weights": RunsCode(trap)}, folder / "pytorch_model.bin")
    with pytest.raises(OSError, match="safetensors"):
        load_model(config.model, small.TOKENIZER, folder)
    assert ensure_warm_start(config, tmp_path) == folder and is_whole_folder(folder)
    assert (folder / "model.safetensors").is_file() and not (folder / "pytorch_model.bin").exists()
    load_model(config.model, small.TOKENIZER, folder)
    assert not trap.exists()


def test_a_model_folder_with_pickled_weights_is_refused(model_folder: Path, trap: Path) -> None:
    shutil.move(model_folder / "model.safetensors", model_folder.parent / "weights")
    torch.save({"weights": RunsCode(trap)}, model_folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="holds its weights as pickles, which can run code; needs safetensors"):
        check_model(ModelConfig(name=str(model_folder)))
    shutil.move(model_folder.parent / "weights", model_folder / "model.safetensors")
    check_model(ModelConfig(name=str(model_folder)))
    load_model(ModelConfig(name=str(model_folder)), small.TOKENIZER, model_folder)  # the pickle beside is left alone
    assert not trap.exists()


def test_code_that_comes_with_a_model_is_refused_unless_the_sweep_file_asks_for_it(
    model_folder: Path, trap: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    (model_folder / "own.py").write_text(
        f"import os\nfrom transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast\n"
        f"os.makedirs({str(trap)!r}, exist_ok=True)\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'own'\n"
        "class OwnModel(LlamaForCausalLM):\n    config_class = OwnConfig\n"
        "class OwnTokenizer(PreTrainedTokenizerFast):\n    pass\n"
    )
    classes = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    change(model_folder / "config.json", model_type="own", auto_map=classes)
    change(
        model_folder / "tokenizer_config.json",
        tokenizer_class="OwnTokenizer",
        auto_map={"AutoTokenizer": [None, "own.OwnTokenizer"]},
    )
    refused = ModelConfig(name=str(model_folder))
    message = (
        "model.trust_remote_code: false; .*model comes with code of its own, which loading it would run; needs true"
    )
    for load in (
        lambda: load_model(refused, small.TOKENIZER, model_folder),
        lambda: policy_config(refused, small.TOKENIZER, model_folder),
        lambda: load_tokenizer(refused, ""),
    ):
        with pytest.raises(InputError, match=message):
            load()
    assert not trap.exists()
    trusted = ModelConfig(name=str(model_folder), trust_remote_code=True)
    assert type(load_model(trusted, small.TOKENIZER, model_folder)).__name__ == "OwnModel"
    assert trap.is_dir()


@pytest.mark.parametrize(
    "name", ["../../elsewhere", "/etc", "..", "", "a/b", "a\\b", "a\0b", "a b", ".hidden", 7, None]
)
def test_a_plan_names_no_folder_outside_its_own(name: Any) -> None:
    whole = small_plan([8], seeds=2).to_json()
    renamed, moved = json.loads(whole), json.loads(whole)
    renamed["trials"][1]["trial_id"] = name
    moved["sweep"] = name
    for field, data in (("trial_id", renamed), ("sweep", moved)):
        with pytest.raises(InputError, match=rf"plan.json: {field}: .*; needs a plain folder name"):
            Plan.from_json(json.dumps(data))


@pytest.mark.parametrize("name", ["../elsewhere", "/etc", "..", ".hidden", "a/b", "a b", "a\n"])
def test_a_sweep_file_names_no_folder_outside_the_results(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(
        json.dumps({
            "sweep": name, "question": "Why?", "optimizer": {"lr": 1e-3}, "budget_samples": 512, "seeds": 1,
            "reference": {"batch.num_prompts": 8}, "arms": [{"batch.num_prompts": 8}],
        })
    )  # fmt: skip
    assert main(["plan", str(path), "--results", str(tmp_path / "results")]) == 2
    assert "sweep: " in capsys.readouterr().err
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["sweep.yaml"]


def test_what_is_varied_names_no_folder_outside_the_results(model_folder: Path) -> None:
    plan = small_plan([8], seeds=1, arms=[{"model.name": ["tiny-llama", str(model_folder), f"{model_folder}/../model/."]}],
                      reference={"model.name": "tiny-llama"})  # fmt: skip
    ids = [trial.trial_id for trial in plan.trials]
    assert all("/" not in name and name[0] == "P" for name in ids) and len(set(ids)) == 3
    assert Plan.from_json(plan.to_json()) == plan
