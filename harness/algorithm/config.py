"""The configuration of each algorithm: the union that `algorithm.name` tells apart.

An algorithm that others are known by is a class of its own here and a file of its own beside this one, with the
defaults of its publication; every class shows only what is its own.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from harness.algorithm.lr_rules import LrRule
from harness.fields import Count, LrTable, PositiveInt, Strict

LossAverage = Literal["token", "sample", "constant"]


class PolicyConfig(Strict):
    """What all algorithms have: a clipped ratio, a loss average, and the cadence."""

    clip_low: float = Field(0.2, gt=0, lt=1, description="the ratio is clipped below at 1 - clip_low")
    clip_high: float = Field(0.2, gt=0, description="the ratio is clipped above at 1 + clip_high")
    loss_average: LossAverage = Field("token", description="denominator of the loss")
    constant_tokens: PositiveInt | None = Field(None, description="tokens per response, the constant of `constant`")
    kl_coef: float = Field(0.0, ge=0, description="weight of the KL to the reference policy; 0: no reference")
    passes: PositiveInt = Field(1, description="passes over each rollout batch")
    shuffle_passes: bool = Field(False, description="put the groups in a new order before each pass")
    correction: Literal["none", "truncated", "decoupled"] = Field(
        "none", description="of responses that older weights sampled: the clip alone, or a weight on each token"
    )
    correction_cap: float = Field(2.0, ge=1, description="most that the weight of correction truncated may be")
    measure_move: bool = Field(False, description="record how far each rollout batch moved the policy")

    @property
    def uses_group_baseline(self) -> bool:
        """Whether an advantage compares a response with the others of its group."""
        return False


class GroupConfig(PolicyConfig):
    """Advantages relative to the group."""

    advantage_std: Literal["std", "none"] = Field("std", description="divide advantages by the group's std or not")
    std_ddof: Literal[0, 1] = Field(1, description="std with n - std_ddof in the denominator")
    std_epsilon: float = Field(1e-6, ge=0, description="added to the std")

    @property
    def uses_group_baseline(self) -> bool:
        """A response is compared with the others of its group."""
        return True


class GrpoConfig(GroupConfig):
    """GRPO: group-relative advantages, clipped ratio."""

    name: Literal["grpo"] = "grpo"


class DrGrpoConfig(GroupConfig):
    """Dr. GRPO: no division by the std, none by the length."""

    name: Literal["dr_grpo"] = "dr_grpo"
    advantage_std: Literal["none"] = Field("none", description="advantages are never divided by the group's std")
    loss_average: Literal["constant"] = Field("constant", description="the denominator does not know the lengths")


class DapoConfig(GroupConfig):
    """DAPO: a higher clip above, token mean, and only groups with a signal."""

    name: Literal["dapo"] = "dapo"
    clip_high: float = Field(0.28, gt=0, description="the ratio is clipped above at 1 + clip_high")
    dynamic_sampling: bool = Field(True, description="train on no group whose rewards are all equal")
    refill_rounds: Count = Field(4, description="most rounds of generation that replace dropped groups; 0: none")


class GspoConfig(GroupConfig):
    """GSPO: one ratio a response, clipped closely."""

    name: Literal["gspo"] = "gspo"
    correction: Literal["none"] = Field("none", description="the loss has a correction of its own")
    clip_low: float = Field(3e-4, gt=0, lt=1, description="the sequence ratio is clipped below at 1 - clip_low")
    clip_high: float = Field(4e-4, gt=0, description="the sequence ratio is clipped above at 1 + clip_high")
    loss_average: LossAverage = Field("sample", description="denominator of the loss")


class CispoConfig(GroupConfig):
    """CISPO: the importance weight is clipped and carries no gradient."""

    name: Literal["cispo"] = "cispo"
    correction: Literal["none"] = Field("none", description="the loss has a correction of its own")
    clip_low: float = Field(1.0, gt=0, le=1, description="the weight is clipped below at 1 - clip_low; 1: not")
    clip_high: float = Field(0.2, gt=0, description="the weight is clipped above at 1 + clip_high")


class RlooConfig(PolicyConfig):
    """RLOO: the mean reward of the other responses of the group as baseline."""

    name: Literal["rloo"] = "rloo"

    @property
    def uses_group_baseline(self) -> bool:
        """A response is compared with the others of its group."""
        return True


class RemaxConfig(PolicyConfig):
    """ReMax: the reward of the greedy response as baseline."""

    name: Literal["remax"] = "remax"


class ReinforceConfig(PolicyConfig):
    """REINFORCE: a moving average of the rewards as baseline."""

    name: Literal["reinforce"] = "reinforce"
    baseline_samples: float = Field(512.0, gt=1, description="samples the moving baseline looks back over")


class CriticConfig(Strict):
    """The critic's own learning rate and rule; the rest of its optimizer is the actor's."""

    lr: float | None = Field(None, gt=0, description="learning rate at the reference arm; unset: the actor's")
    lr_rule: LrRule | None = Field(None, description="how lr follows kappa; unset: as the actor's")
    noise_scale: float | None = Field(None, gt=0, description="train batch where the rate of lr_rule surge peaks")
    lr_table: LrTable | None = Field(None, description="rates of lr_rule table by train batch, {64: 2.0e-4}")


class ActorCriticConfig(PolicyConfig):
    """A critic's values as baseline of every token, by generalised advantage estimation."""

    critic: CriticConfig = Field(default_factory=CriticConfig, description="optimizer of the critic")
    gamma: float = Field(1.0, gt=0, le=1, description="discount per token")
    gae_lambda: float = Field(0.95, ge=0, le=1, description="lambda of the advantage estimate")
    value_clip: float | None = Field(None, gt=0, description="most a value may move from the rollout's; unset: no clip")
    kl_reward_coef: float = Field(0.0, ge=0, description="weight of the KL to the reference policy in the rewards")


class PpoConfig(ActorCriticConfig):
    """PPO: the rollout batch's own moments whiten its advantages."""

    name: Literal["ppo"] = "ppo"
    whiten: Literal["mean_and_std", "std", "none"] = Field("mean_and_std", description="what advantages are freed of")


class PpoEwmaConfig(ActorCriticConfig):
    """PPO-EWMA: clips around a moving average of the policy, moving moments whiten the advantages."""

    name: Literal["ppo_ewma"] = "ppo_ewma"
    correction: Literal["none"] = Field("none", description="the loss has a correction of its own")
    proximal_samples: float = Field(512.0, gt=0, description="mean age in samples of the weights it averages")
    moments_samples: float = Field(512.0, gt=1, description="samples the advantage moments look back over")


# A new algorithm adds its class here, and a line in harness/algorithm/registry.py.
AlgorithmConfig = Annotated[
    GrpoConfig
    | DrGrpoConfig
    | DapoConfig
    | GspoConfig
    | CispoConfig
    | RlooConfig
    | RemaxConfig
    | ReinforceConfig
    | PpoConfig
    | PpoEwmaConfig,
    Field(discriminator="name"),
]
