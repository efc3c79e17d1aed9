"""Language models and their tokenizers: small ones built here, any other loaded by transformers.

Past this file nothing knows which of the two it has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers import models as tokenizer_models
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.utils.logging import disable_progress_bar

from harness import seeds
from harness.config import EMBEDDED_MODELS, ModelConfig
from harness.errors import InputError
from harness.model_files import ModelFiles, find_model
from harness.run_dir import build_once
from harness.types import Prompt

disable_progress_bar()  # a sweep prints its own progress

PAD, END = "<pad>", "<end>"


def model_folder(config: ModelConfig, results_dir: Path) -> Path | None:
    """The folder with the model's weights; None for an embedded one, which has none.

    A GGUF file is written out once as an ordinary folder in results/models: reading it takes long, and engines and
    ranks need no way of their own to it.
    """
    files = find_model(config)
    if files is None:
        return None
    if files.gguf is None:
        return files.folder
    stat = (files.folder / files.gguf).stat()
    digest = hashlib.sha256(f"{files.gguf} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:16]
    return build_once(results_dir / "models" / digest, partial(_write_out, files, files.gguf))


def _write_out(files: ModelFiles, gguf: str, folder: Path) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(files.folder, gguf_file=gguf, dtype=torch.float32)
    # The weights are ordinary numbers from here on; nothing may take them for quantised ones.
    model.hf_quantizer = None
    del model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(files.folder, gguf_file=gguf).save_pretrained(folder)


def load_model(config: ModelConfig, tokenizer: PreTrainedTokenizerBase, folder: Path | None = None) -> PreTrainedModel:
    """The causal language model in evaluation mode (no dropout), every parameter trainable.

    Without a folder an embedded model, randomly initialised, which depends on `config.seed` alone.
    """
    dtype = getattr(torch, config.dtype)
    if folder is None:
        llama = policy_config(config, tokenizer, None)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeds.torch_seed(config.seed, "model initialisation"))
            model = AutoModelForCausalLM.from_config(llama, dtype=dtype, attn_implementation=config.attention)
    else:
        with _code_of_its_own_refused(config):
            model = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=dtype,
                attn_implementation=config.attention,
                trust_remote_code=config.trust_remote_code,
                use_safetensors=True,  # a pickle can run code
            )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return model.to(device).eval()


def policy_config(config: ModelConfig, tokenizer: PreTrainedTokenizerBase, folder: Path | None) -> PretrainedConfig:
    """The configuration of the model in the folder, of an embedded one where there is none."""
    if folder is not None:
        with _code_of_its_own_refused(config):
            return AutoConfig.from_pretrained(folder, trust_remote_code=config.trust_remote_code)
    return LlamaConfig(
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        **EMBEDDED_MODELS[config.name],
    )


@contextmanager
def _code_of_its_own_refused(config: ModelConfig) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise InputError(
            f"model.trust_remote_code: false; {config.name} comes with code of its own, which loading it would run; "
            "needs true if you trust it, or another model"
        ) from None


def load_tokenizer(config: ModelConfig, alphabet: str) -> PreTrainedTokenizerBase:
    """The model's own tokenizer, or for embedded models one token for each character of `alphabet`.

    Raises InputError for one without an end token, or without a chat template to put model.system_prompt into.
    """
    files = find_model(config)
    if files is None:
        tokenizer: Any = character_tokenizer(alphabet)
    else:
        gguf = {} if files.gguf is None else {"gguf_file": files.gguf}
        with _code_of_its_own_refused(config):
            tokenizer = AutoTokenizer.from_pretrained(files.folder, trust_remote_code=config.trust_remote_code, **gguf)
    if tokenizer.eos_token_id is None:
        raise InputError(
            f"model.name: the tokenizer of {config.name} has no end token, so no response would ever end; needs an "
            "eos_token in its tokenizer_config.json"
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token  # for libraries that want one: masks here come from lengths
    if config.system_prompt is not None:
        if tokenizer.chat_template is None:
            raise InputError(
                f"model.system_prompt: the tokenizer of {config.name} has no chat template to put it into; needs to be "
                "left out"
            )
        tokenizer.chat_template = with_system_prompt(tokenizer.chat_template, config.system_prompt)
    return tokenizer


def with_system_prompt(template: str, system_prompt: str) -> str:
    """A chat template whose conversations all begin with this system message."""
    escaped = system_prompt.encode("unicode_escape").decode().replace("'", "\\'")
    return f"{{%- set messages = [{{'role': 'system', 'content': '{escaped}'}}] + messages -%}}{template}"


def end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """Ids [E] of the tokens that end a response: the tokenizer's and those of the model's generation configuration."""
    of_model = model.generation_config.eos_token_id if model.generation_config is not None else None
    ids = of_model if isinstance(of_model, list) else [of_model]
    return np.unique([tokenizer.eos_token_id, *(token for token in ids if token is not None)])


def require_room(
    prompts: Sequence[Prompt], prompt_ids: Sequence[np.ndarray], response_tokens: int, config: PretrainedConfig
) -> None:
    """InputError unless each prompt and its longest response fit the context of the model with this configuration."""
    context = getattr(config.get_text_config(), "max_position_embeddings", None)
    lengths_P = [len(ids) for ids in prompt_ids]
    longest = max(lengths_P, default=0)
    if context is None or longest + response_tokens <= context:
        return
    prompt = prompts[lengths_P.index(longest)]
    raise InputError(
        f"sampling.max_response_tokens: {response_tokens}; prompt {prompt.index} ({prompt.text[:40]!r}) takes "
        f"{longest} of the {context} tokens that the model's context holds, which leaves "
        f"{max(context - longest, 0)} for a response: needs fewer, shorter prompts, or another model"
    )


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
