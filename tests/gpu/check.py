"""python -m tests.gpu.check [--out FILE]: what only a GPU can show, in under eight minutes on one large GPU.

Sampling and one update against the CPU in float32 with the embedded model; then, for a randomly initialised model of
half a billion parameters in bfloat16, seconds of a decode step by the responses in flight and of a training step by the
batch, beside the lower bound of the GPU's data sheet; where vLLM and DeepSpeed are installed, a short sweep with both.
Without a GPU it says "skipped" and exits with 0.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel, Qwen2Config

from analysis.bound import Decoder as Sizes
from analysis.bound import Hardware, bound_s, decode_model, training_model
from analysis.errors import InputError
from analysis.presets import find_gpu, read_config
from harness.algorithm.losses import ClippedPolicyLoss
from harness.config import OptimizerConfig
from harness.rollout.decoder import Decoder
from harness.rollout.engine import Sampling
from harness.rollout.transformers import TransformersEngine
from harness.training.batch import supervised_batch, token_batch
from harness.training.packing import response_logprobs
from harness.training.torch import TorchTrainer
from harness.types import Prompt
from tests.harness.small import TOKENIZER, model

IN_FLIGHT = (1, 2, 4, 8, 16, 32, 64)
TRAIN_BATCHES = (1, 2, 4, 8, 16)
CONTEXT, RESPONSE = 512, 128
REPEATS = 10


def main(arguments: list[str] | None = None) -> int:
    """Run every check; 1 where one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.check", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/gpu_check.json"), help="the file to write")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("skipped: torch sees no GPU here")
        return 0
    found = check("cuda", half_billion(), IN_FLIGHT, TRAIN_BATCHES)
    found["real_engines"] = real_engines(gpus=1.0)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))
    print(options.out)
    return 0 if found["agrees"] and (found["real_engines"] or {"agrees": True})["agrees"] else 1


def check(
    device: str, config: PretrainedConfig, in_flight: tuple[int, ...], train_batches: tuple[int, ...]
) -> dict[str, Any]:
    """All that is measured, on `device`; `agrees` says whether the device samples and trains as the CPU does."""
    sampling, update = sampling_gap(device), update_gap(device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        big = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).to(device).eval()
    hardware = data_sheet(device)
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "packages": {name: _version(name) for name in ("torch", "transformers", "vllm", "deepspeed")},
        "parameters": sum(parameter.numel() for parameter in big.parameters()),
        "sampling_logprob_gap_max": sampling,
        "update_relative_l2": update,
        "agrees": sampling < 1e-3 and update < 1e-3,
        "decode": decode_seconds(big, in_flight, hardware),
        "training": training_seconds(big, train_batches, hardware),
    }


def half_billion() -> PretrainedConfig:
    """The sizes of Qwen2.5-0.5B."""
    return Qwen2Config(
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        vocab_size=151_936,
        tie_word_embeddings=True,
    )


def real_engines(gpus: float) -> dict[str, Any] | None:
    """A short sweep with vLLM and DeepSpeed, engine and trainer in turns on one GPU; None where one is not installed."""
    if _version("deepspeed") is None or find_spec("vllm") is None:
        return None
    settings = ["execution.engine=vllm", "execution.trainer=deepspeed", f"execution.gpus_per_rank={gpus}", "seeds=1"]
    settings += ["budget_samples=512", "timing.rounds=0", "tracking.wandb=false"]
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "harness", "sweep", "sweeps/smoke.yaml", "--results", folder]
        ran = subprocess.run(
            command + [part for setting in settings for part in ("--set", setting)], capture_output=True, text=True
        )
        rows = [json.loads(line) for path in Path(folder).rglob("metrics.jsonl") for line in path.open()]
    gaps = [row["metrics"]["policy/logprob_gap_max"] for row in rows if row["kind"] == "train"]
    largest = max(gaps, default=None)
    agrees = ran.returncode == 0 and largest is not None and largest < 1e-3
    return {"agrees": agrees, "updates": len(gaps), "logprob_gap_max": largest, "says": ran.stdout.splitlines()[-4:]}


def sizes_of(config: PretrainedConfig) -> Sizes:
    """What the bound needs to know of a model."""
    with TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        return read_config(Path(folder) / "config.json")


def sampling_gap(device: str) -> float:
    """Largest difference of log-probabilities of what the device samples, recomputed on the CPU."""
    prompts = [Prompt(index, f"{index:03d}=") for index in range(32)]
    sampling = Sampling(temperature=1.0, max_response_tokens=8, seed=0, purpose="train", num_sampled=4)
    batch = token_batch(TransformersEngine(model().to(device), TOKENIZER).generate(prompts, sampling))
    again_N = np.concatenate(response_logprobs(model().to("cpu"), 64, 1.0, 1024, batch))
    return float(np.abs(again_N - batch.behaviour_logprobs_N).max())


def update_gap(device: str) -> float:
    """Relative L2 of the change that one optimizer step makes, device against CPU, in float32 with plain epsilon.

    Epsilon is large, so that the step is nearly proportional to the gradient: Adam's signs would hide its size.
    """
    prompts = [np.array([2, 3, 4]), np.array([5, 6])]
    batch = supervised_batch(prompts, [np.array([4, 3, 2, 1]), np.array([6, 5, 1])])
    changes = []
    for where in ("cpu", device):
        policy = model().to(where)
        before = torch.cat([weight.detach().cpu().flatten() for weight in policy.parameters()])
        trainer = TorchTrainer(policy, OptimizerConfig(lr=1e-2, eps=1.0), 2, 1.0, 1024)
        trainer.step(batch, ClippedPolicyLoss(0.2, 1e9), 1e-2)
        changes.append(torch.cat([weight.detach().cpu().flatten() for weight in policy.parameters()]) - before)
    return float((changes[1] - changes[0]).norm() / changes[0].norm())


@torch.inference_mode()
def decode_seconds(
    policy: PreTrainedModel, in_flight: tuple[int, ...], hardware: Hardware | None
) -> list[dict[str, float | None]]:
    """Seconds of one decode step at a context of CONTEXT tokens, by the responses in flight."""
    prompt = np.arange(CONTEXT) % policy.config.vocab_size
    rows = []
    for size in in_flight:
        decoder = Decoder(policy, [prompt], np.zeros(size, dtype=np.int64))
        tokens_R = torch.zeros(size, dtype=torch.int64, device=policy.device)
        rows.append({"in_flight": size, "seconds": timed(policy.device, lambda: decoder.advance(tokens_R, None))})  # noqa: B023
    return _beside(rows, "in_flight", decode_model(sizes_of(policy.config), CONTEXT, "bf16"), hardware)


def training_seconds(
    policy: PreTrainedModel, train_batches: tuple[int, ...], hardware: Hardware | None
) -> list[dict[str, float | None]]:
    """Seconds of one optimizer step on prompts and responses of CONTEXT tokens together, by the batch."""
    trainer = TorchTrainer(policy.requires_grad_(True), OptimizerConfig(lr=1e-6), 4, 1.0, 0)
    loss = ClippedPolicyLoss(0.2, 0.2)
    rows = []
    for size in train_batches:
        prompts = [np.arange(CONTEXT - RESPONSE) for _ in range(size)]
        batch = supervised_batch(prompts, [np.arange(RESPONSE) for _ in range(size)])
        rows.append({"train_batch": size, "seconds": timed(policy.device, lambda: trainer.step(batch, loss, 1e-6))})  # noqa: B023
    return _beside(rows, "train_batch", training_model(sizes_of(policy.config), CONTEXT, "bf16"), hardware)


def timed(device: torch.device, call: Callable[[], object], repeats: int = REPEATS) -> float:
    """Median seconds of a call, the device synchronised at both ends, after one that does not count."""
    seconds = []
    for _ in range(repeats + 1):
        _synchronise(device)
        started_s = time.perf_counter()
        call()
        _synchronise(device)
        seconds.append(time.perf_counter() - started_s)
    return float(np.median(seconds[1:]))


def data_sheet(device: str) -> Hardware | None:
    """Peak and bandwidth of the GPU by its data sheet; None where it is not among the presets."""
    if device != "cuda":
        return None
    words = torch.cuda.get_device_name().replace("NVIDIA", "").split()
    for name in ("-".join(words), words[0], *(word for word in words)):
        try:
            gpu = find_gpu(name)
        except InputError:
            continue
        return gpu.hardware("bf16")
    return None


def _beside(
    rows: list[dict[str, Any]], axis: str, work: Any, hardware: Hardware | None
) -> list[dict[str, float | None]]:
    """The rows with their lower bound, None where the GPU's data sheet is not known."""
    batches = np.array([row[axis] for row in rows])
    bounds = [None] * len(rows) if hardware is None else bound_s(work, hardware, batches).tolist()
    return [row | {"bound_s": bound} for row, bound in zip(rows, bounds, strict=True)]


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
