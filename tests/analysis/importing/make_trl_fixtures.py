"""Makes fixtures/trl: two short GRPO runs of TRL 1.16 on the embedded model, in a few seconds.

Run from the project's root in an environment with the extra `bench`: python -m
tests.analysis.importing.make_trl_fixtures. It leaves trainer_state.json, training_args.bin and what the console showed,
of the first run its event file too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "fixtures" / "trl"
SETTINGS: dict[str, dict[str, Any]] = {
    # One optimizer step per rollout batch of 8 prompts x 4, a row each, evaluation every 4, no progress bar.
    "plain": {
        "report_to": "tensorboard",
        "max_steps": 8,
        "per_device_train_batch_size": 16,
        "gradient_accumulation_steps": 2,
        "logging_steps": 1,
        "disable_tqdm": True,
    },
    # 8 prompts x 4 in four slices of 8 responses, gone over twice; an optimizer step takes two slices, so a rollout
    # batch makes four, and two of its rows.
    "reuse": {
        "max_steps": 16,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "steps_per_generation": 4,
        "num_iterations": 2,
        "logging_steps": 2,
    },
    # As plain, but a row is the mean of four rollout batches.
    "sparse": {
        "max_steps": 16,
        "per_device_train_batch_size": 16,
        "gradient_accumulation_steps": 2,
        "logging_steps": 4,
        "disable_tqdm": True,
    },
}


def train(name: str) -> None:
    """One run, in the folder `name` of the working directory."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    from harness.tasks import make_task
    from harness.warm_start import ensure_warm_start
    from tests.bench.common import NO_NOISE, RESULTS, default_trial

    torch.set_num_threads(1)
    config = default_trial(64, NO_NOISE).config
    task = make_task(config.task)
    start = ensure_warm_start(config, RESULTS)
    prompts = [task.train_prompt(config.seed, index) for index in range(272)]
    by_text = {prompt.text: prompt for prompt in prompts}

    def reward(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        return [task.score(by_text[text], given) for text, given in zip(prompts, completions, strict=True)]

    arguments = GRPOConfig(
        output_dir=name,
        num_generations=4,
        max_completion_length=task.max_response_tokens,
        shuffle_dataset=False,
        beta=0.0,
        learning_rate=config.optimizer.lr,
        lr_scheduler_type="constant",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        eval_strategy="steps",
        eval_steps=4,
        per_device_eval_batch_size=64,
        save_strategy="no",
        seed=0,
        **{"report_to": "none"} | SETTINGS[name],
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(start),
        reward_funcs=reward,
        train_dataset=Dataset.from_dict({"prompt": [prompt.text for prompt in prompts[:256]]}),
        eval_dataset=Dataset.from_dict({"prompt": [prompt.text for prompt in prompts[256:]]}),
        args=arguments,
    )
    trainer.train()
    trainer.save_state()
    torch.save(trainer.args, Path(name) / "training_args.bin")  # as trainer.save_model does, without the model


def main() -> None:
    """Every run in a process of its own, whose output is the console log."""
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd()), "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    environment["TENSORBOARD_LOGGING_DIR"] = "events"
    shutil.rmtree(HERE / "events", ignore_errors=True)
    for name in SETTINGS:
        command = [sys.executable, "-m", "tests.analysis.importing.make_trl_fixtures", name]
        with (HERE / f"{name}.log").open("wb") as console:
            subprocess.run(command, cwd=HERE, env=environment, stdout=console, stderr=subprocess.STDOUT, check=True)
    for file in (HERE / "events").iterdir():
        file.rename(file.with_name("events.out.tfevents.1"))  # without the name of the machine


if __name__ == "__main__":
    train(sys.argv[1]) if len(sys.argv) > 1 else main()
