"""What a tokenizer and a model bring: system prompt, end tokens, padding, context; GGUF in the slow story of SmolLM2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config

from harness.algorithm.losses import negative_log_likelihood
from harness.config import ModelConfig, OptimizerConfig
from harness.errors import InputError
from harness.models import (
    character_tokenizer,
    encode_answers,
    encode_prompts,
    end_tokens,
    load_model,
    load_tokenizer,
    require_room,
)
from harness.prepare import prepare
from harness.rollout.engine import Sampling
from harness.rollout.transformers import TransformersEngine
from harness.training.batch import supervised_batch
from harness.training.torch import TorchTrainer
from harness.types import Prompt
from tests.harness.small import planned_trial

CHAT = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[me]{% endif %}"


def save(
    folder: Path, *, chat: bool = False, without: tuple[str, ...] = (), context: int = 64, **generation: Any
) -> str:
    """A small GPT-2 and its tokenizer in a folder; `without` names special tokens that it does not have."""
    tokenizer = character_tokenizer("".join(map(chr, range(32, 127))) + "é☃")
    for token in without:
        setattr(tokenizer, token, None)
    if chat:
        tokenizer.chat_template = CHAT
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=context, n_embd=32, n_layer=1, n_head=2, **generation)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def load(name: str, **settings: Any) -> tuple[Any, Any]:
    config = ModelConfig(name=name, **settings)
    tokenizer = load_tokenizer(config, "")
    return load_model(config, tokenizer, Path(name)), tokenizer


def test_the_system_prompt_stands_before_every_question(tmp_path: Path) -> None:
    name = save(tmp_path / "chat", chat=True)
    said = 'Don\'t say "why": \\boxed{é ☃} {{ 1 + 1 }} {% raw %}'
    _, tokenizer = load(name, system_prompt=said)
    prompts = [Prompt(0, "1+1?"), Prompt(1, "2+2?")]
    texts = [tokenizer.decode(ids) for ids in encode_prompts(tokenizer, prompts)]
    assert texts == [f"[system]{said}[user]{question}[me]" for question in ("1+1?", "2+2?")]
    plain = load(name)[1]
    assert [plain.decode(ids) for ids in encode_prompts(plain, prompts)] == ["[user]1+1?[me]", "[user]2+2?[me]"]


def test_a_system_prompt_needs_a_chat_template(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no chat template to put it into; needs to be left out"):
        load(save(tmp_path / "plain"), system_prompt="Be brief.")


def test_a_response_ends_with_any_of_the_end_tokens_and_keeps_it(tmp_path: Path) -> None:
    model, tokenizer = load(save(tmp_path / "model"))
    digits = tokenizer("0123456789", add_special_tokens=False)["input_ids"]
    model.generation_config.eos_token_id = digits
    ends = end_tokens(model, tokenizer)
    assert ends.tolist() == sorted([tokenizer.eos_token_id, *digits])
    groups = TransformersEngine(model, tokenizer).generate(
        [Prompt(index, "?") for index in range(8)], Sampling(1.0, 20, 0, "test", num_sampled=8)
    )
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    for rollout in rollouts:
        found = np.flatnonzero(np.isin(rollout.token_ids_T, ends)).tolist()
        assert found == ([] if rollout.truncated else [len(rollout.token_ids_T) - 1])
    last = {int(rollout.token_ids_T[-1]) for rollout in rollouts if not rollout.truncated}
    # 11 of 99 tokens end a response, drawn nearly at random: of 64 responses most end, and with many different ones.
    assert len(last) > 5 and last <= set(ends.tolist())


def test_an_end_token_that_is_the_padding_too_is_still_learnt(tmp_path: Path) -> None:
    model, tokenizer = load(save(tmp_path / "model", without=("pad_token",)))
    assert AutoTokenizer.from_pretrained(tmp_path / "model").pad_token_id is None
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    trainer = TorchTrainer(model, OptimizerConfig(lr=1e-2), 4, temperature=1.0, longest_shared_row=0)
    # Answers of two lengths, so that rows are padded.
    batch = supervised_batch(
        encode_prompts(tokenizer, [Prompt(0, "1+1="), Prompt(1, "20+21=")]), encode_answers(tokenizer, ["2", "41"])
    )
    before = [logprobs_T[-1] for logprobs_T in trainer.logprobs(batch)]
    for _ in range(20):
        trainer.step(batch, negative_log_likelihood, 1e-2)
    after = [logprobs_T[-1] for logprobs_T in trainer.logprobs(batch)]
    assert max(before) < -3 and min(after) > -0.7  # from about 1/99 to more than 1/2


def test_a_tokenizer_without_an_end_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load(save(tmp_path / "model", without=("eos_token", "pad_token")))
    assert str(caught.value).endswith(
        "has no end token, so no response would ever end; needs an eos_token in its tokenizer_config.json"
    )


def test_a_prompt_and_its_response_fit_the_context(tmp_path: Path) -> None:
    model, tokenizer = load(save(tmp_path / "model", context=16))
    prompts = [Prompt(0, "short"), Prompt(1, "twelve chars")]
    ids = encode_prompts(tokenizer, prompts)
    require_room(prompts, ids, 4, model.config)  # 12 + 4 = 16
    with pytest.raises(InputError) as caught:
        require_room(prompts, ids, 5, model.config)
    assert str(caught.value) == (
        "sampling.max_response_tokens: 5; prompt 1 ('twelve chars') takes 12 of the 16 tokens that the model's context "
        "holds, which leaves 4 for a response: needs fewer, shorter prompts, or another model"
    )
    with pytest.raises(InputError, match="which leaves 4 for a response"):
        TransformersEngine(model, tokenizer).generate(prompts, Sampling(1.0, 5, 0, "test"))


def test_a_training_question_that_does_not_fit_is_found_before_the_trials(tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    rows = [f'{{"question": "{"x" * length}", "answer": "1"}}' for length in (*range(1, 20), 60)]
    data.write_text("\n".join(rows))
    held_out = tmp_path / "held_out.jsonl"
    held_out.write_text('{"question": "a", "answer": "1"}\n{"question": "b", "answer": "1"}\n')
    task = {
        "name": "math",
        "train": [{"data": str(data)}],
        "held_out": [{"data": str(held_out)}],
        "prompt": "{question}",
    }
    trial = planned_trial(
        task=task,
        model__name=save(tmp_path / "model"),
        sampling__max_response_tokens=8,
        evaluation__metric="eval/score",
        evaluation__num_prompts=2,
    )
    with pytest.raises(InputError, match="takes 60 of the 64 tokens that the model's context holds, which leaves 4"):
        prepare(trial.config, tmp_path)
