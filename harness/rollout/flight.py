"""The responses in flight in this process: begun together or one after another, advanced token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from harness import seeds
from harness.rollout.decoder import Decoder, draw_tokens
from harness.rollout.engine import Sampling
from harness.types import Prompt, Rollout

DRAWN_TOGETHER = 64
"""Tokens of a response whose draws are looked up at once, because a look-up costs more than its numbers."""

NewDecoder = Callable[[Sequence[np.ndarray], np.ndarray], Decoder]


class Flight:
    """Up to `capacity` responses, each with a place of its own until it ends. Places of ended ones are taken again.

    new_decoder: from the distinct prompts' token ids and, of each response, the number of its prompt.
    """

    def __init__(self, new_decoder: NewDecoder, sampling: Sampling, end_ids: np.ndarray, capacity: int) -> None:
        self.new_decoder = new_decoder
        self.sampling = sampling
        self.end_ids = end_ids
        limit = sampling.max_response_tokens
        # By place (S); rows (R) are the places in flight, in the order of the decoder.
        self.tokens_ST = np.zeros((capacity, limit), dtype=np.int64)
        self.logprobs_ST = np.zeros((capacity, limit), dtype=np.float32)
        self.versions_ST = np.zeros((capacity, limit), dtype=np.int64)
        self.lengths_S = np.zeros(capacity, dtype=np.int64)
        self.index_S = np.zeros(capacity, dtype=np.int64)
        self.response_S = np.zeros(capacity, dtype=np.int64)
        self.uniform_SD = np.zeros((capacity, DRAWN_TOGETHER))
        self.place_R = np.zeros(0, dtype=np.int64)
        self.decoder: Decoder | None = None

    @property
    def size(self) -> int:
        """Responses in flight."""
        return len(self.place_R)

    def begin(
        self, prompts: Sequence[Prompt], prompt_ids: Sequence[np.ndarray], prompt_R: np.ndarray, response_R: np.ndarray
    ) -> np.ndarray:
        """Put response response_R[r] to prompts[prompt_R[r]] in flight; returns the places they have."""
        place_R = np.setdiff1d(np.arange(len(self.lengths_S)), self.place_R)[: len(prompt_R)]
        self.index_S[place_R] = np.array([prompt.index for prompt in prompts])[prompt_R]
        self.response_S[place_R] = response_R
        self.lengths_S[place_R] = 0
        decoder = self.new_decoder(prompt_ids, prompt_R)
        if self.decoder is None:
            self.decoder = decoder
        else:
            self.decoder.join(decoder)
        self.place_R = np.concatenate([self.place_R, place_R])
        return place_R

    def step(self, version: int) -> np.ndarray:
        """One more token for each response; returns the places of those that ended with it."""
        assert self.decoder is not None
        place_R, at_R = self.place_R, self.lengths_S[self.place_R]
        self._look_up_draws(place_R[at_R % DRAWN_TOGETHER == 0])
        greedy_R = self.response_S[place_R] >= self.sampling.num_sampled
        uniform_R = self.uniform_SD[place_R, at_R % DRAWN_TOGETHER]
        tokens, logprobs = draw_tokens(self.decoder.logits_RV, uniform_R, greedy_R, self.sampling.temperature)
        drawn_R = tokens.numpy(force=True)
        self.tokens_ST[place_R, at_R] = drawn_R
        self.logprobs_ST[place_R, at_R] = logprobs.numpy(force=True)
        self.versions_ST[place_R, at_R] = version
        self.lengths_S[place_R] = at_R + 1
        ended_R = at_R + 1 == self.sampling.max_response_tokens
        if not self.sampling.ignore_end:
            ended_R |= np.isin(drawn_R, self.end_ids)
        if ended_R.all():
            self.decoder = None
        else:
            self.decoder.advance(tokens, np.flatnonzero(~ended_R) if ended_R.any() else None)
        self.place_R = place_R[~ended_R]
        return place_R[ended_R]

    def clear(self) -> int:
        """Take everything out of flight; returns the tokens that are lost."""
        lost = int(self.lengths_S[self.place_R].sum())
        self.place_R, self.decoder = self.place_R[:0], None
        return lost

    def rollout(self, place: int) -> Rollout:
        """The response at a place, as long as nothing new has taken it."""
        length = self.lengths_S[place]
        tokens_T = self.tokens_ST[place, :length].copy()
        truncated = tokens_T[-1] not in self.end_ids
        return Rollout(
            tokens_T, self.logprobs_ST[place, :length].copy(), truncated, self.versions_ST[place, :length].copy()
        )

    def _look_up_draws(self, place_R: np.ndarray) -> None:
        """The next draws of the responses at these places."""
        if len(place_R) == 0:
            return
        first_R1 = self.lengths_S[place_R][:, None]
        tokens_RD = first_R1 + np.arange(min(DRAWN_TOGETHER, self.sampling.max_response_tokens))
        indices = self.sampling.round, self.index_S[place_R][:, None], self.response_S[place_R][:, None], tokens_RD
        uniform_RD = seeds.uniforms(self.sampling.seed, self.sampling.purpose, *indices)
        self.uniform_SD[place_R, : uniform_RD.shape[1]] = uniform_RD
