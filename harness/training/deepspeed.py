"""One rank of the trainer deepspeed, in a process of its own. The only file that imports deepspeed.

The trial's process sees the ranks through harness.training.ranks. All of them take part in every step, forward pass
and gathering of a parameter: such calls are made of all of them at once.
"""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from harness.config import TrialConfig
from harness.errors import EnvironmentProblem
from harness.models import load_tokenizer
from harness.tasks import make_task
from harness.training.critic import with_value_head
from harness.training.deepspeed_config import engine_config
from harness.training.forward import StepSums, policy_loss, token_values, value_loss
from harness.training.local_norms import LocalNorms
from harness.training.packing import token_logprobs
from harness.training.pieces import Piece
from harness.training.shares import Layout, RankStats, Role, Share
from harness.training.torch import make_optimizer, ruled_by_epsilon
from harness.training.trainer import Diverged, TokenLoss
from harness.types import TokenBatch, TrainBatch
from harness.warm_start import load_policy

try:
    import deepspeed
    from deepspeed import utils
except ImportError as error:
    raise EnvironmentProblem(f"the package deepspeed cannot be imported ({error}); run: make engines") from None

Kind = Literal["weight", "master", "exp_avg", "exp_avg_sq"]


class Rank:
    """A process of the trainer: made, connected to the others, then given the models it works on."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank = rank
        self.ranks = ranks
        self.models: dict[Role, _Policy] = {}
        self.store: Any = None
        # Deprecated calls of the libraries, at every step, and a check that a forward pass without gradient fails.
        warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
        warnings.filterwarnings("ignore", "None of the inputs have requires_grad", module="torch.utils.checkpoint")

    def host(self) -> str:
        """Address of this node in its network."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(("192.0.2.1", 9))  # sends nothing: it only asks which way packets would go
            except OSError:
                return "127.0.0.1"
            return str(probe.getsockname()[0])

    def listen(self, host: str) -> int:
        """Open the meeting point of all ranks on a free port of this node."""
        listener = socket.create_server((host, 0))
        port = int(listener.getsockname()[1])
        self.store = torch.distributed.TCPStore(
            host, port, self.ranks, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )
        return port

    def connect(self, host: str, port: int) -> None:
        """Meet the other ranks. Returns when all are there."""
        if host == "127.0.0.1":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ["LOCAL_RANK"] = "0"  # each process has its own device and sees no other
        store = self.store or torch.distributed.TCPStore(host, port, self.ranks, wait_for_workers=False)
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        torch.distributed.init_process_group(backend, store=store, rank=self.rank, world_size=self.ranks)
        # It would be compiled at the first start, and serves inference on CPUs only.
        deepspeed.ops.__compatible_ops__ = {"deepspeed_shm_comm": False}
        deepspeed.init_distributed()

    def build(self, role: Role, config: TrialConfig, results_dir: Path) -> None:
        """Make the model of this role from the policy that the trial starts from, in place of an earlier one."""
        if isinstance(old := self.models.pop(role, None), _Trained):
            old.model.destroy()
        self.models[role] = (_Policy if role == "reference" else _Trained)(role, config, results_dir)

    def call(self, role: Role, method: str, *args: Any) -> Any:
        """Call a method of the model of this role."""
        return getattr(self.models[role], method)(*args)


class _Policy:
    """A model whose forward pass gives log-probabilities, or for the critic values."""

    model: Any

    def __init__(self, role: Role, config: TrialConfig, results_dir: Path) -> None:
        self.role = role
        self.temperature = config.sampling.temperature
        self.longest_shared_row = config.execution.share_prompt_up_to_tokens
        tokenizer = load_tokenizer(config.model, make_task(config.task).alphabet)
        self.model = load_policy(config, tokenizer, results_dir)

    @torch.no_grad()
    def forward(self, share: Share[TokenBatch]) -> np.ndarray:
        """Log-probabilities or values of the tokens of this rank's responses, shape [N]."""
        found = [self._forward(part).numpy(force=True) for part in share.parts]
        return np.concatenate([np.zeros(0, np.float32), *found[: share.real]])

    def _forward(self, part: TokenBatch) -> torch.Tensor:
        if self.role == "critic":
            return token_values(self.model, part, self.longest_shared_row)
        return token_logprobs(self.model, part, self.temperature, self.longest_shared_row)


class _Trained(_Policy):
    """An actor or a critic in its DeepSpeed engine."""

    def __init__(self, role: Role, config: TrialConfig, results_dir: Path) -> None:
        super().__init__(role, config, results_dir)
        self.rank = torch.distributed.get_rank()
        self.ranks = torch.distributed.get_world_size()
        settings = config.execution.deepspeed
        self.stage = settings.zero_stage
        optimizer = config.optimizer if role == "actor" else config.critic_optimizer
        assert optimizer is not None  # the plan makes one for every algorithm with a critic
        model = self.model if role == "actor" else with_value_head(self.model)
        if settings.activation_checkpointing:
            _checkpoint_activations(model)
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        on_gpu = torch.cuda.is_available()
        self.model, *_ = deepspeed.initialize(
            model=model,
            optimizer=make_optimizer(self.parameters, optimizer),
            config=engine_config(settings, config.batch_shape, config.model.dtype, optimizer.clip_norm, on_gpu),
        )
        self.incoming: list[np.ndarray] = []

    def describe(self) -> dict[str, Any]:
        """What does the work."""
        parts = {"engine": self.model, "optimizer": self.model.optimizer}
        return {
            **{name: f"{type(part).__module__}.{type(part).__name__}" for name, part in parts.items()},
            "deepspeed": deepspeed.__version__,
            "backend": torch.distributed.get_backend(),
            "ranks": self.ranks,
            "stage": self.model.zero_optimization_stage(),
        }

    def step(
        self,
        share: Share[TrainBatch],
        loss: Any,
        lr: float,
        num_tokens: int,
        measure: bool,
        signed: TrainBatch | None,
    ) -> RankStats:
        """This rank's part of an optimizer step over `num_tokens` tokens; Diverged on every rank alike.

        With `measure` the gradient norm of each micro-batch is taken, and that of `signed`, which is not trained on.
        """
        sums = StepSums(num_tokens)
        norms_sq: list[float] = []
        signed_sq = None
        with LocalNorms(self.parameters) if measure else nullcontext() as norms:
            if norms is not None and signed is not None:
                norms.discard = True
                self._backward(signed, loss, is_last=False)
                norms.discard, signed_sq = False, norms.take() / self.ranks**2
            for number, part in enumerate(share.parts):
                found, part_loss = self._backward(part, loss, is_last=number + 1 == len(share.parts))
                if number < share.real:
                    sums.add(part_loss, found.diagnostics)
                    if norms is not None:
                        norms_sq.append(norms.take() / self.ranks**2)
        before = [master.detach().clone() for master in self._masters()] if measure else None
        norm = self._apply(sums.loss, lr)
        change = (0.0, 0, 0) if before is None else self._adams_view(before)
        return RankStats(sums.loss, sums.metrics, norm, norms_sq, signed_sq, *change)

    def _backward(self, part: TrainBatch, loss: Any, is_last: bool) -> tuple[TokenLoss, float]:
        """Add the gradient of a micro-batch to the step's; returns its token losses and its share of the loss."""
        self.model.set_gradient_accumulation_boundary(is_last)
        if self.role == "actor":
            found = policy_loss(self.model, part, loss, self.temperature, self.longest_shared_row)
        else:
            found = value_loss(self.model, part, loss, self.longest_shared_row)
        part_loss = (found.loss_N * torch.from_numpy(part.loss_weights_N).to(found.loss_N)).sum()
        # The weights have the denominators of the whole step already, and the engine averages over ranks.
        self.model.backward(part_loss * self.ranks, scale_wrt_gas=False)
        return found, part_loss.item()

    def _apply(self, loss: float, lr: float) -> float:
        """Step on the accumulated gradient; returns its norm over all ranks before clipping."""
        total = torch.tensor(loss, dtype=torch.float64, device=self.model.device)
        torch.distributed.all_reduce(total)
        norm = None
        if self.stage == 0:  # every rank has the whole gradient, and the engine tells no norm
            norm = torch.nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None]).item()
        if np.isfinite(total.item()) and (norm is None or np.isfinite(norm)):
            for group in self.model.basic_optimizer.param_groups:
                group["lr"] = lr
            self.model.step()
            if norm is None:
                norm = float(self.model.get_global_grad_norm())
            if self.model.was_step_applied():  # not where the engine found the norm not finite
                return norm
        raise Diverged(f"{self.role}: loss is {total.item()}, gradient norm is {norm}")

    def _masters(self) -> list[torch.Tensor]:
        """What the optimizer steps on: this rank's shard of the weights in float32, all of them at stage 0."""
        if self.stage == 3:
            return list(self.model.optimizer.fp32_partitioned_groups_flat)
        return [master for group in self.model.basic_optimizer.param_groups for master in group["params"]]

    def _adams_view(self, before: Sequence[torch.Tensor]) -> tuple[float, int, int]:
        """Of this rank's shard: squared norm of the change, coordinates ruled by epsilon, coordinates."""
        if self.stage == 0 and self.rank > 0:
            return 0.0, 0, 0
        masters = self._masters()
        changes = [master.detach() - old for master, old in zip(masters, before, strict=True)]
        elements = sum(master.numel() for master in masters)
        small = ruled_by_epsilon(self.model.basic_optimizer)
        return torch.nn.utils.get_total_norm(changes).item() ** 2, small, elements

    def layout(self) -> Layout:
        """What there is to read and write."""
        names = {parameter: name for name, parameter in self.model.module.named_parameters()}
        state = self.model.module.state_dict(keep_vars=True)
        optimizer = self.model.basic_optimizer
        return Layout(
            names=[names[parameter] for parameter in self.parameters],
            shapes=[tuple(getattr(parameter, "ds_shape", parameter.shape)) for parameter in self.parameters],
            dtypes=[parameter.dtype for parameter in self.parameters],
            aliases={key: names[tensor] for key, tensor in state.items() if tensor in names},
            buffers={key: tensor.cpu() for key, tensor in state.items() if tensor not in names},
            settings={key: value for key, value in optimizer.param_groups[0].items() if key != "params"},
            step=max((state["step"].item() for state in optimizer.state.values()), default=0.0),
        )

    @torch.no_grad()
    def read(self, kind: Kind, pieces: Sequence[Piece]) -> list[np.ndarray] | None:
        """The bytes of these pieces of the parameters, from rank 0. Arrays travel faster than tensors do."""
        touched = [self.parameters[number] for number, _, _ in pieces]
        is_sharded = kind == "weight" and self.stage == 3
        with deepspeed.zero.GatheredParameters(touched) if is_sharded else nullcontext():
            found = []
            for parameter, (_, first, end) in zip(touched, pieces, strict=True):
                whole = self._whole(parameter, kind)
                if self.rank == 0:
                    piece = whole.detach().flatten()[first:end].to("cpu", copy=True)
                    found.append(piece.view(torch.uint8).numpy())
        return found if self.rank == 0 else None

    def _whole(self, parameter: torch.nn.Parameter, kind: Kind) -> torch.Tensor:
        if kind == "weight" or (kind == "master" and self.stage == 0):
            return parameter
        if self.stage == 0:
            return self.model.basic_optimizer.state[parameter][kind]
        if kind == "master":
            return utils.safe_get_full_fp32_param(parameter)
        return utils.safe_get_full_optimizer_state(parameter, kind)

    def begin_write(self, step: float) -> None:
        """Prepare the optimizer to be written as after so many steps."""
        state = self.model.basic_optimizer.state
        state.clear()
        for master in self._masters() if step else ():
            moments = {kind: torch.zeros_like(master.detach()) for kind in ("exp_avg", "exp_avg_sq")}
            state[master] = {"step": torch.tensor(step, device=master.device), **moments}
        if self.stage in (1, 2):
            # The engine finds the moments by links, which it makes after its first step.
            self.model.optimizer._hp_optimizer_states_linked = False
            if step:
                self.model.optimizer._lazy_init_hp_params_optimizer_state()

    @torch.no_grad()
    def write(self, kind: Kind, pieces: Sequence[Piece], values: Sequence[np.ndarray] | None) -> None:
        """Take up pieces in the order of `read`; rank 0 alone is given their values."""
        for place, (number, _, end) in enumerate(pieces):
            parameter: Any = self.parameters[number]
            shape = getattr(parameter, "ds_shape", parameter.shape)
            if values is not None:
                self.incoming.append(values[place])
            if end == shape.numel():
                whole = torch.empty(shape, device=self.model.device)
                if values is not None:
                    whole.copy_(torch.from_numpy(np.concatenate(self.incoming)).view(shape))
                    self.incoming = []
                torch.distributed.broadcast(whole, 0)
                self._put(parameter, kind, whole)

    def _put(self, parameter: Any, kind: Kind, whole: torch.Tensor) -> None:
        if self.stage == 0:
            self._whole(parameter, kind).copy_(whole)
        elif self.stage < 3 and kind == "master":
            utils.safe_set_full_fp32_param(parameter, whole)
        elif self.stage < 3:
            utils.safe_set_full_optimizer_state(parameter, whole, kind)
        else:
            size = parameter.ds_tensor.numel()
            padded = torch.nn.functional.pad(whole.flatten(), (0, size * self.ranks - whole.numel()))
            own = padded[size * self.rank : size * (self.rank + 1)]
            if kind == "master":
                utils.safe_set_local_fp32_param(parameter, own)
                with deepspeed.zero.GatheredParameters(parameter, modifier_rank=0):
                    if self.rank == 0:
                        parameter.copy_(whole)
            else:
                utils.safe_set_local_optimizer_state(parameter, own, kind)

    def end_write(self) -> None:
        """Bring the weights of the forward pass up to what was written."""
        if self.stage in (1, 2):
            self.model.optimizer.update_lp_params()


def _checkpoint_activations(model: PreTrainedModel) -> None:
    """Keep only what enters each layer, and compute the rest again. Dropout stays off."""
    model.gradient_checkpointing_enable({"use_reentrant": True})
    for layer in model.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.training = True  # its own flag turns checkpointing on; that of what it holds would turn on dropout
