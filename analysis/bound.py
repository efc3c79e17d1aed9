"""Lower bounds of the time of a dense decoder's training step and decode step, from FLOPs and bytes alone (a roofline).

A step of a batch B moves some bytes once and some for each sequence, and computes some FLOPs for each sequence:

    t(B) >= max(B * flops / peak, (fixed + B * bytes) / bandwidth)

Kernel launches, communication, scheduling and caches that miss only add to it. One decoder layer with grouped-query
attention and a gated MLP has W = 2 d n_q h + 2 d n_kv h + 3 d f weights (d hidden size, f intermediate size, n_q and
n_kv heads of h numbers). Vectors (norms, biases) are left out: they are less than a thousandth.

Activations are counted as if every operator wrote its output to memory (`activation_numbers`); kernels that keep them
on the chip can be faster, and `Work.fused` is the bound that holds for them too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

# b, bytes of a number: weights, activations and the KV cache have the same.
BYTES = {"bf16": 2, "fp16": 2, "fp8": 1, "fp32": 4}


@dataclass(frozen=True)
class Decoder:
    """A dense decoder-only transformer. Of its layers `windowed_layers` attend to the last `window` tokens only."""

    name: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    tied_embeddings: bool
    norms_per_layer: int
    windowed_layers: int
    window: int | None
    source: str

    @property
    def layer_weights(self) -> int:
        """W = 2 d n_q h + 2 d n_kv h + 3 d f."""
        attention = 2 * self.hidden_size * (self.num_heads + self.num_kv_heads) * self.head_dim
        return attention + 3 * self.hidden_size * self.intermediate_size

    @property
    def weights(self) -> int:
        """All matrices: the layers, the embedding and, where it is not tied to it, the output head."""
        embeddings = (1 if self.tied_embeddings else 2) * self.vocab_size * self.hidden_size
        return self.num_layers * self.layer_weights + embeddings

    def layers_by_context(self, context: int) -> list[tuple[int, int]]:
        """(number of layers, tokens they attend to) at a context: all of it, or the window."""
        windowed = self.windowed_layers if self.window is not None and self.window < context else 0
        groups = [(self.num_layers - windowed, context), (windowed, self.window or context)]
        return [group for group in groups if group[0]]


@dataclass(frozen=True)
class Hardware:
    """What the bound needs of one GPU, or of several that share the work and communicate for free."""

    peak_flop_per_s: float
    bandwidth_bytes_per_s: float
    memory_bytes: float


@dataclass(frozen=True)
class Work:
    """What a step costs: bytes moved once; KV cache read, activations moved and FLOPs of each sequence of the batch."""

    fixed_bytes: float
    cache_bytes: float
    activation_bytes: float
    sequence_flops: float

    def __add__(self, other: Work) -> Work:
        return Work(
            self.fixed_bytes + other.fixed_bytes,
            self.cache_bytes + other.cache_bytes,
            self.activation_bytes + other.activation_bytes,
            self.sequence_flops + other.sequence_flops,
        )

    def __mul__(self, times: float) -> Work:
        fixed, cache = self.fixed_bytes * times, self.cache_bytes * times
        return Work(fixed, cache, self.activation_bytes * times, self.sequence_flops * times)

    @property
    def fused(self) -> Work:
        """The same with activations that never leave the chip."""
        return replace(self, activation_bytes=0)

    @property
    def sequence_bytes(self) -> float:
        """Bytes that each sequence of the batch adds."""
        return self.cache_bytes + self.activation_bytes

    @property
    def rho(self) -> float:
        """Bytes of a sequence over bytes moved once: while memory-bound t(B) / t(1) = (1 + B rho) / (1 + rho)."""
        return self.sequence_bytes / self.fixed_bytes


def activation_numbers(model: Decoder) -> int:
    """A / b: numbers that one token's activations move through memory in one layer's forward pass.

    Every operator reads its inputs and writes its outputs once; attention is fused, so its scores stay on the chip, and
    what it reads of the KV cache is counted apart. In parts: norms 2 d each; q, k and v projections 3 d read,
    (n_q + 2 n_kv) h written; rotation of q and k (with their norms, where there are any, in the same pass)
    2 (n_q + n_kv) h; attention q read, output written 2 n_q h; output projection n_q h + d; two residual sums 3 d each;
    gate and up projections 2 (d + f); the gated activation 3 f; down projection f + d. With two norms that is
    17 d + 6 f + 6 n_q h + 4 n_kv h.

    Qwen3-8B: 17 * 4096 + 6 * 12288 + 6 * 4096 + 4 * 1024 = 172032 numbers, 344 KB in bf16.

    >>> activation_numbers(Decoder("", 4096, 12288, 36, 32, 8, 128, 151936, False, 2, 0, None, ""))
    172032
    """
    per_hidden = 2 * model.norms_per_layer + 3 + 1 + 6 + 2 + 1
    heads = 6 * model.num_heads + 4 * model.num_kv_heads
    return per_hidden * model.hidden_size + 6 * model.intermediate_size + heads * model.head_dim


def decode_layer(model: Decoder, attended: int, dtype: str, kv_copies: float = 1.0) -> Work:
    """One decode step of one layer, each sequence attending to `attended` tokens.

    Bytes b W + B (2 n_kv h L b + A), FLOPs B (2 W + 4 n_q h L). kv_copies: how often the KV cache is held, above 1
    where more GPUs share a layer than it has KV heads.
    """
    width = BYTES[dtype]
    cache = 2 * model.num_kv_heads * model.head_dim * attended * width * kv_copies
    flops = 2 * model.layer_weights + 4 * model.num_heads * model.head_dim * attended
    return Work(width * model.layer_weights, cache, width * activation_numbers(model), flops)


def training_layer(model: Decoder, context: int, attended: int, dtype: str) -> Work:
    """Forward and backward of one layer over sequences of `context` tokens, each attending to `attended` at most.

    A stand-in for training: the backward pass counts twice the forward. FLOPs of a sequence 3 (2 W L + 4 n_q h pairs),
    with pairs = L^2 / 2 (causal), or w L - w^2 / 2 within a window of w. Bytes: the weights read twice and their
    gradients written, 3 b W; activations 3 L A.
    """
    width, pairs = BYTES[dtype], attended * context - attended**2 / 2
    flops = 2 * model.layer_weights * context + 4 * model.num_heads * model.head_dim * pairs
    activations = 3 * context * width * activation_numbers(model)
    return Work(3 * width * model.layer_weights, 0, activations, 3 * flops)


def head(model: Decoder, tokens: int, dtype: str) -> Work:
    """Embedding row, last norm and output head, forward, for `tokens` tokens of a sequence.

    Bytes b V d + tokens * b (V + 5 d) (row in and out, norm in and out, head in, logits out), FLOPs 2 V d a token.
    """
    width, matrix = BYTES[dtype], model.vocab_size * model.hidden_size
    activations = tokens * width * (model.vocab_size + 5 * model.hidden_size)
    return Work(width * matrix, 0, activations, tokens * 2 * matrix)


def decode_model(model: Decoder, context: int, dtype: str, kv_copies: float = 1.0) -> Work:
    """One decode step of the whole model: a token for every sequence."""
    total = head(model, 1, dtype)
    for layers, attended in model.layers_by_context(context):
        total += decode_layer(model, attended, dtype, kv_copies) * layers
    return total


def training_model(model: Decoder, context: int, dtype: str) -> Work:
    """Forward and backward of the whole model over sequences of `context` tokens; the optimizer step is left out."""
    total = head(model, context, dtype) * 3
    for layers, attended in model.layers_by_context(context):
        total += training_layer(model, context, attended, dtype) * layers
    return total


def bound_s(work: Work, hardware: Hardware, batch_B: np.ndarray) -> np.ndarray:
    """Lower bound of the seconds of a step, for each batch: max(compute, memory).

    Peak 4 FLOP/s, 2 bytes/s; 8 bytes once, 2 bytes and 6 FLOPs a sequence: B = 2: max(3, 6), B = 16: max(24, 20).

    >>> bound_s(Work(8, 2, 0, 6), Hardware(4, 2, 0), np.array([2, 16]))
    array([ 6., 24.])
    """
    compute_s = batch_B * work.sequence_flops / hardware.peak_flop_per_s
    memory_s = (work.fixed_bytes + batch_B * work.sequence_bytes) / hardware.bandwidth_bytes_per_s
    return np.asarray(np.maximum(compute_s, memory_s))


def plateau_per_s(work: Work, hardware: Hardware) -> float:
    """Sequences per second that no batch exceeds: 1 / max(flops / peak, bytes / bandwidth).

    >>> round(plateau_per_s(Work(8, 2, 0, 6), Hardware(4, 2, 0)), 4)  # 4 / 6 FLOPs, less than 2 / 2 bytes
    0.6667
    """
    return 1 / _slowest_s(work, hardware)


def batch_at_share(work: Work, hardware: Hardware, share: float) -> float:
    """The batch at which the bound's rate B / t(B) is a share (below 1) of the plateau.

    The memory side binds there: B = share * m / (M - share * k), with m = fixed / bandwidth, k = bytes / bandwidth and
    M = max(k, flops / peak). Half the plateau of a memory-bound step is at B = 1 / rho.

    m = 4, k = 1, M = 1.5: half at 0.5 * 4 / (1.5 - 0.5) = 2, where t = 6 and the rate is 2 / 6, half of 1 / 1.5.

    >>> batch_at_share(Work(8, 2, 0, 6), Hardware(4, 2, 0), 0.5)
    2.0
    """
    each_s = work.sequence_bytes / hardware.bandwidth_bytes_per_s
    once_s = work.fixed_bytes / hardware.bandwidth_bytes_per_s
    return share * once_s / (_slowest_s(work, hardware) - share * each_s)


def compute_bound_from(work: Work, hardware: Hardware) -> float | None:
    """The batch from which arithmetic binds; None where memory binds at every batch.

    >>> compute_bound_from(Work(8, 2, 0, 6), Hardware(4, 2, 0))  # 1.5 B = 4 + B
    8.0
    """
    compute_s = work.sequence_flops / hardware.peak_flop_per_s
    spare_s = compute_s - work.sequence_bytes / hardware.bandwidth_bytes_per_s
    return work.fixed_bytes / hardware.bandwidth_bytes_per_s / spare_s if spare_s > 0 else None


def _slowest_s(work: Work, hardware: Hardware) -> float:
    return max(work.sequence_flops / hardware.peak_flop_per_s, work.sequence_bytes / hardware.bandwidth_bytes_per_s)


def kv_bytes(model: Decoder, context: int, dtype: str, kv_copies: float = 1.0) -> float:
    """Bytes of the KV cache of one sequence of `context` tokens: 2 n_kv h b for each token that a layer keeps."""
    kept = sum(layers * attended for layers, attended in model.layers_by_context(context))
    return 2 * model.num_kv_heads * model.head_dim * BYTES[dtype] * kept * kv_copies


def feasible_batch(weight_bytes: float, sequence_bytes: float, memory_bytes: float, margin_frac: float) -> int:
    """Sequences whose whole KV cache fits beside the weights, a share of the memory left free; 0 where weights do not.

    >>> feasible_batch(16, 0.6, 80, 0.1)  # (72 - 16) / 0.6
    93
    """
    return max(0, math.floor((memory_bytes * (1 - margin_frac) - weight_bytes) / sequence_bytes))


def attained_share(work: Work, hardware: Hardware, in_flight_A: np.ndarray, per_s_A: np.ndarray) -> np.ndarray:
    """Measured over possible: rates in steps of a sequence (tokens, when decoding) per second at each batch in flight.

    A share above 1 says that the work or the hardware is not the one that was measured.

    >>> attained_share(Work(8, 2, 0, 6), Hardware(4, 2, 0), np.array([2, 16]), np.array([1 / 6, 1 / 3]))
    array([0.5, 0.5])
    """
    return np.asarray(per_s_A * bound_s(work, hardware, in_flight_A) / in_flight_A)
