"""Language models and their tokenizers: small ones built here, any other loaded by transformers.

Past this file nothing knows which of the two it has.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers import models as tokenizer_models
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.utils.logging import disable_progress_bar

from harness import seeds
from harness.config import EMBEDDED_MODELS, ModelConfig
from harness.types import Prompt

disable_progress_bar()  # a sweep prints its own progress

PAD, END = "<pad>", "<end>"


def load_model(config: ModelConfig, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """The causal language model in evaluation mode (no dropout), every parameter trainable.

    Embedded names give a randomly initialised model that depends on `config.seed` alone; any other
    name is a local folder or a hub id.
    """
    dtype = getattr(torch, config.dtype)
    if config.name in EMBEDDED_MODELS:
        llama = LlamaConfig(
            vocab_size=len(tokenizer),
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
            **EMBEDDED_MODELS[config.name],
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeds.torch_seed(config.seed, "model initialisation"))
            model = AutoModelForCausalLM.from_config(llama, dtype=dtype, attn_implementation=config.attention)
    else:
        model = AutoModelForCausalLM.from_pretrained(
            config.name,
            revision=config.revision,
            dtype=dtype,
            attn_implementation=config.attention,
            trust_remote_code=config.trust_remote_code,
        )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return model.to(device).eval()


def load_tokenizer(config: ModelConfig, alphabet: str) -> PreTrainedTokenizerBase:
    """The model's own tokenizer, or for embedded models one token for each character of `alphabet`."""
    if config.name in EMBEDDED_MODELS:
        return character_tokenizer(alphabet)
    tokenizer = AutoTokenizer.from_pretrained(
        config.name, revision=config.revision, trust_remote_code=config.trust_remote_code
    )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def character_tokenizer(alphabet: str) -> PreTrainedTokenizerFast:
    """One token a character, with a pad and an end token.

    >>> character_tokenizer("01=")("10=")["input_ids"]
    [3, 2, 4]
    """
    vocabulary = {token: index for index, token in enumerate([PAD, END, *alphabet])}
    tokenizer = Tokenizer(tokenizer_models.WordLevel(vocabulary, unk_token=PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=END)


def encode_prompts(tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt]) -> list[np.ndarray]:
    """Token ids (int64, shape [L]) of each prompt, through the chat template where the tokenizer has one."""
    texts = [prompt.text for prompt in prompts]
    is_chat = tokenizer.chat_template is not None
    if is_chat:
        messages = [[{"role": "user", "content": text}] for text in texts]
        texts = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)  # type: ignore[assignment]
    # A chat template brings its own special tokens.
    return [np.asarray(ids, dtype=np.int64) for ids in tokenizer(texts, add_special_tokens=not is_chat)["input_ids"]]


def encode_answers(tokenizer: PreTrainedTokenizerBase, answers: Sequence[str]) -> list[np.ndarray]:
    """Token ids (int64, shape [T]) of full responses: each answer and the end token."""
    encoded = tokenizer(list(answers), add_special_tokens=False)["input_ids"]
    return [np.asarray([*ids, tokenizer.eos_token_id], dtype=np.int64) for ids in encoded]


def decode_responses(tokenizer: PreTrainedTokenizerBase, token_ids: list[np.ndarray]) -> list[str]:
    """Text of each response (int64 arrays [T]), special tokens left out."""
    return tokenizer.batch_decode([ids.tolist() for ids in token_ids], skip_special_tokens=True)
