"""What is done once for all trials of a model and a task, before the first of them starts."""

from __future__ import annotations

from pathlib import Path

from harness.config import TrialConfig
from harness.models import encode_prompts, load_tokenizer, policy_config, require_room
from harness.tasks import make_task
from harness.warm_start import start_folder

TRIED_PROMPTS = 64


def prepare(config: TrialConfig, results_dir: Path) -> None:
    """Make the weights that trials start from; InputError where a prompt and its response do not fit the model.

    Those are looked at that are known: the longest training prompts of a task in files, the first of an endless stream,
    and the held-out ones.
    """
    folder = start_folder(config, results_dir)
    limit = config.sampling.max_response_tokens
    if not config.task.speaks_language or limit is None:
        return
    task = make_task(config.task)
    tokenizer = load_tokenizer(config.model, task.alphabet)
    prompts = [
        *task.longest_prompts(),
        *(task.train_prompt(config.seed, index) for index in range(TRIED_PROMPTS)),
        *task.eval_prompts(config.evaluation.num_prompts, config.evaluation.seed),
    ]
    require_room(prompts, encode_prompts(tokenizer, prompts), limit, policy_config(config.model, tokenizer, folder))
