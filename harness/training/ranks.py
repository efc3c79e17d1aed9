"""A trainer over several ranks, as the trial's own process sees it: one model, whatever their number.

A state has the form of the trainer torch's, whatever ranks and stage it came from. It holds every weight and both
moments in float32: 12 bytes for each parameter of a model, in this process (84 GB for 7 billion).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness.config import TrialConfig
from harness.errors import EnvironmentProblem
from harness.members import Members, Spawn, call_all, call_each
from harness.training.batch import consecutive
from harness.training.blocks import block_size
from harness.training.pieces import in_pieces
from harness.training.shares import Layout, RankStats, Role, deal, stand_in
from harness.training.trainer import Loss, ValueLoss
from harness.types import BlockNorms, NoiseProbe, TokenBatch, TrainBatch, UpdateStats
from harness.warm_start import ensure_warm_start

MESSAGE_ELEMENTS = 16 * 1024**2


def start_ranks(config: TrialConfig, spawn: Spawn) -> Members:
    """The ranks of the trial's trainer in processes of their own, connected to one another."""
    if find_spec("deepspeed") is None:
        raise EnvironmentProblem(
            "execution.trainer: deepspeed, a package that is not installed; run: make engines "
            "(or pip install -e '.[deepspeed]')"
        )
    ranks = config.execution.ranks
    members = spawn("rank", "harness.training.deepspeed:Rank", [(rank, ranks) for rank in range(ranks)])
    try:
        hosts = call_all(members, "host")
        host = hosts[0] if len(set(hosts)) > 1 else "127.0.0.1"  # on one node nothing listens to the outside
        port = members.start(0, "listen", host).result()
        call_all(members, "connect", host, port)
    except BaseException:
        members.close()
        raise
    return members


class _OnRanks:
    """A model that every rank holds, or a part of it."""

    def __init__(self, members: Members, config: TrialConfig, results_dir: Path, role: Role) -> None:
        self.members = members
        self.role = role
        self.micro = config.batch_shape.micro
        ensure_warm_start(config, results_dir)  # once, not on every rank
        call_all(members, "build", role, config, results_dir)

    def _forward(self, batch: TokenBatch) -> np.ndarray:
        """What the forward pass gives each response token, shape [N]."""
        shares = deal(batch, self.members.size, self.micro)
        return np.concatenate(self._call_each("forward", [(share,) for share in shares]))

    def _call(self, method: str, *args: Any) -> Any:
        """A call of all ranks; what the first returned."""
        return call_all(self.members, "call", self.role, method, *args)[0]

    def _call_each(self, method: str, args_M: Sequence[tuple[Any, ...]]) -> list[Any]:
        return call_each(self.members, "call", [(self.role, method, *args) for args in args_M])


class FrozenOnRanks(_OnRanks):
    """The policy that the trial starts from, on every rank: log-probabilities of each response's tokens, arrays [T]."""

    def __init__(self, members: Members, config: TrialConfig, results_dir: Path) -> None:
        super().__init__(members, config, results_dir, role="reference")

    def __call__(self, batch: TokenBatch) -> list[np.ndarray]:
        return np.split(self._forward(batch), np.cumsum(batch.lengths_S)[:-1])


class _Trained(_OnRanks):
    """A model with its optimizer. `role` is its name in the metrics."""

    def __init__(self, members: Members, config: TrialConfig, results_dir: Path, role: Role) -> None:
        super().__init__(members, config, results_dir, role)
        layout: Layout = self._call("layout")
        self.names, self.shapes, self.dtypes = layout.names, layout.shapes, layout.dtypes
        self.eps = layout.settings["eps"]
        self.elements = [prod(shape) for shape in layout.shapes]

    def describe(self) -> dict[str, Any]:
        """What does the work: the engine's class and version, ranks and stage."""
        found: dict[str, Any] = self._call("describe")
        return found

    def state(self) -> dict[str, Any]:
        layout: Layout = self._call("layout")
        masters = dict(zip(self.names, self._read("master"), strict=True))
        moments = {kind: list(self._read(kind)) if layout.step else [] for kind in ("exp_avg", "exp_avg_sq")}
        adam = {
            number: {"step": torch.tensor(layout.step)} | {kind: moments[kind][number] for kind in moments}
            for number in range(len(self.names) if layout.step else 0)
        }
        groups = [{**layout.settings, "params": list(range(len(self.names)))}]
        model = {key: masters[name] for key, name in layout.aliases.items()}
        return {"model": model | layout.buffers, "optimizer": {"state": adam, "param_groups": groups}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        adam = state["optimizer"]["state"]
        self._call("begin_write", float(adam[0]["step"]) if adam else 0.0)
        self._write("master", [state["model"][name] for name in self.names])
        for kind in ("exp_avg", "exp_avg_sq") if adam else ():
            self._write(kind, [adam[number][kind] for number in range(len(self.names))])
        self._call("end_write")

    def _step(self, batch: TrainBatch, loss: Loss | ValueLoss, lr: float, probe: NoiseProbe | None) -> UpdateStats:
        size = None if probe is None else block_size(batch, self.micro)
        shares = deal(batch, self.members.size, size or self.micro, size or 1)
        signed_M = self._signed(batch, size, probe)
        num_tokens = len(batch.token_ids_N)
        found: list[RankStats] = self._call_each(
            "step",
            [
                (share, loss, lr, num_tokens, probe is not None, signed)
                for share, signed in zip(shares, signed_M, strict=True)
            ],
        )
        return UpdateStats(
            optimizer_steps=1,
            backward_passes=len(shares[0].parts),
            metrics=self._metrics(found, measured=probe is not None),
            block_norms=None if size is None else _block_norms(found, size, batch.num_responses),
        )

    def _signed(self, batch: TrainBatch, size: int | None, probe: NoiseProbe | None) -> list[TrainBatch | None]:
        """For the first rank the first block with a sign on each token's loss; a stand-in for the others."""
        if probe is None or probe.signs_S is None or size is None:
            return [None] * self.members.size
        first = consecutive(batch, 0, size)
        signs_N = np.repeat(probe.signs_S[:size], first.lengths_S)
        signed = replace(first, loss_weights_N=first.loss_weights_N * signs_N)
        return [signed, *[stand_in(batch)] * (self.members.size - 1)]

    def _metrics(self, found: Sequence[RankStats], measured: bool) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for stats in found:
            for name, value in stats.metrics.items():
                if name.endswith("_max"):
                    metrics[name] = max(metrics.get(name, -np.inf), value)
                else:
                    metrics[name] = metrics.get(name, 0.0) + value
        metrics[f"loss/{self.role}"] = sum(stats.loss for stats in found)
        metrics[f"grad/{self.role}_norm"] = found[0].norm
        if measured:
            # Shards are padded with coordinates that have no gradient.
            num_padding = sum(stats.elements for stats in found) - sum(self.elements)
            small = sum(stats.small for stats in found) - (num_padding if self.eps else 0)
            metrics[f"grad/{self.role}_applied_norm"] = sum(stats.change_sq for stats in found) ** 0.5
            metrics[f"grad/{self.role}_epsilon_frac"] = small / sum(self.elements)
        return metrics

    def _read(self, kind: str) -> Iterator[torch.Tensor]:
        """The whole of each parameter, or of what the optimizer keeps of it, in order."""
        pending: list[np.ndarray] = []
        for pieces in in_pieces(self.elements, MESSAGE_ELEMENTS):
            for (number, _, end), value in zip(pieces, self._call("read", kind, pieces), strict=True):
                pending.append(value)
                if end == self.elements[number]:
                    dtype = self.dtypes[number] if kind == "weight" else torch.float32
                    yield torch.from_numpy(np.concatenate(pending)).view(dtype).view(self.shapes[number])
                    pending = []

    def _write(self, kind: str, values: Sequence[torch.Tensor]) -> None:
        """The way back. The first rank is sent the values and gives them to the others."""
        for pieces in in_pieces(self.elements, MESSAGE_ELEMENTS):
            cut = [values[number].flatten()[first:end].float().numpy(force=True) for number, first, end in pieces]
            others = self.members.size - 1
            self._call_each("write", [(kind, pieces, cut), *[(kind, pieces, None)] * others])


class DeepSpeedTrainer(_Trained):
    """Trains the policy."""

    def __init__(self, members: Members, config: TrialConfig, results_dir: Path) -> None:
        super().__init__(members, config, results_dir, role="actor")

    def step(self, batch: TrainBatch, loss: Loss, lr: float, probe: NoiseProbe | None = None) -> UpdateStats:
        return self._step(batch, loss, lr, probe)

    def logprobs(self, batch: TokenBatch) -> list[np.ndarray]:
        return np.split(self._forward(batch), np.cumsum(batch.lengths_S)[:-1])

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        return zip(self.names, self._read("weight"), strict=True)


class DeepSpeedCritic(_Trained):
    """Trains the critic, in the same processes."""

    def __init__(self, members: Members, config: TrialConfig, results_dir: Path) -> None:
        super().__init__(members, config, results_dir, role="critic")

    def values(self, batch: TokenBatch) -> np.ndarray:
        return self._forward(batch)

    def step(self, batch: TrainBatch, loss: ValueLoss, lr: float, probe: NoiseProbe | None = None) -> UpdateStats:
        return self._step(batch, loss, lr, probe)


def _block_norms(found: Sequence[RankStats], size: int, num_responses: int) -> BlockNorms:
    """Scaled from token weights with the denominators of the whole step to the mean over a block's own responses."""
    scale_sq = (num_responses / size) ** 2
    norms_sq_K = tuple(scale_sq * norm_sq for stats in found for norm_sq in stats.norms_sq)
    signed_sq = found[0].signed_sq
    return BlockNorms(size, norms_sq_K, None if signed_sq is None else scale_sq * signed_sq)
