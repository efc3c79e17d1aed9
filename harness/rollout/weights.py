"""A policy as engines that read saved models take it: a configuration, and weights by the names of a checkpoint."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.core_model_loading import revert_weight_conversion

from harness.errors import InputError

LEAST_HEAD_DIM = 32
"""Attention heads narrower than this have no kernel in vLLM."""


class CheckpointForm:
    """Turns a trainer's parameters into those of a saved model, and holds each of them to the architecture.

    transformers joins some weights that saved models hold apart, such as those of experts. Llama heads narrower than
    LEAST_HEAD_DIM are padded with zeros, which add nothing to a product; rotation leaves the padding out, and the
    factor sqrt(wide / narrow) in the queries makes up for the engine's scale of 1 / sqrt(wide). The policy stays the
    same up to rounding.
    """

    def __init__(self, config: PretrainedConfig, trust_remote_code: bool = False) -> None:
        with torch.device("meta"):
            self._model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
        self._shapes = {name: parameter.shape for name, parameter in self._model.named_parameters()}
        self._embedding = self._model.get_input_embeddings().weight
        self._narrow = head_dim(config)
        self._wide = max(self._narrow, LEAST_HEAD_DIM)
        self.config = copy.deepcopy(config)
        self.config.architectures = [type(self._model).__name__]
        if self._wide > self._narrow:
            if config.model_type != "llama":
                raise InputError(
                    f"model: {config.model_type} with attention heads of {self._narrow} numbers; the engine vllm needs "
                    f"at least {LEAST_HEAD_DIM}"
                )
            self.config.head_dim = self._wide
            rotated = {"partial_rotary_factor": self._narrow / self._wide}
            self.config.rope_parameters = {**config.rope_parameters, **rotated}

    def weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """The weights of a checkpoint, as these come. InputError unless each of the architecture comes exactly once."""
        missing = dict(self._shapes)
        for name, weight in weights:
            self._check(name, weight, missing)
            for saved_name, saved in revert_weight_conversion(self._model, {name: weight.detach()}).items():
                yield saved_name, self._widened(saved_name, saved)
        if missing:
            raise InputError(
                f"model: the engine's model has a weight {next(iter(missing))}, the trainer's none; "
                "needs one model for both"
            )

    def _check(self, name: str, weight: torch.Tensor, missing: dict[str, torch.Size]) -> None:
        shape = missing.pop(name, None)
        if shape is None:
            if name in self._shapes:
                raise RuntimeError(f"the trainer gave {name} twice")
            raise InputError(
                f"model: the trainer's model has a weight {name}, the engine's none; needs one model for both"
            )
        if weight.shape == shape:
            return
        if self._model.get_parameter(name) is self._embedding:
            raise InputError(
                f"model: the trainer's vocabulary has {len(weight)} tokens, the engine's {shape[0]}; needs one model "
                "for both"
            )
        raise InputError(
            f"model: {name} is {tuple(weight.shape)} in the trainer and {tuple(shape)} in the engine; needs one model "
            "for both"
        )

    def _widened(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        if self._wide == self._narrow:
            return weight
        match name.split(".")[-2:]:
            case ["q_proj", _]:
                return _pad_heads(weight, 0, self._narrow, self._wide) * math.sqrt(self._wide / self._narrow)
            case ["k_proj" | "v_proj", _]:
                return _pad_heads(weight, 0, self._narrow, self._wide)
            case ["o_proj", "weight"]:
                return _pad_heads(weight, 1, self._narrow, self._wide)
        return weight


def head_dim(config: PretrainedConfig) -> int:
    """Numbers in the key of one attention head."""
    text = config.get_text_config()
    return getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads


def _pad_heads(weight: torch.Tensor, dim: int, narrow: int, wide: int) -> torch.Tensor:
    """Zeros behind each run of `narrow` along `dim`, to runs of `wide`.

    >>> _pad_heads(torch.tensor([[1, 2], [3, 4], [5, 6], [7, 8]]), 0, narrow=2, wide=3).tolist()
    [[1, 2], [3, 4], [0, 0], [5, 6], [7, 8], [0, 0]]
    """
    heads = weight.unflatten(dim, (-1, narrow))
    shape = list(heads.shape)
    shape[dim + 1] = wide - narrow
    return torch.cat([heads, heads.new_zeros(shape)], dim + 1).flatten(dim, dim + 1)
