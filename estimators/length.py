"""How many tokens the next reply of a conversation will have, before it exists.

Lengths are near lognormal, so the state is in ln tokens: per conversation an average that forgets (weight
alpha = .4 for the newest reply), drawn towards the model's own average as if that were k0 = 2 replies. Such
an average never carries more than (2 - alpha) / alpha = 4 replies' worth of evidence, so long conversations
count as 4. The estimate is the median of the lognormal, and max_tokens caps it (a
learned predictor was judged not worth its cost).

A conversation's state is a small value that its owner keeps; here is one average a model, and the number of
models is bounded. Left out: the kind of application, and the length of the new message.
"""

import math
from dataclasses import dataclass

ALPHA = 0.4
PRIOR_REPLIES = 2.0
DEFAULT_TOKENS = 256.0
MAX_MODELS = 64  # further models share one average
MEMORY_REPLIES = 1000  # a model's average follows its last thousand replies or so

_MOST_REPLIES = (2.0 - ALPHA) / ALPHA
_OTHER = ""


@dataclass(frozen=True, slots=True)
class LengthState:
    """What a conversation's replies say of the next: their forgetting mean of ln tokens, and their number."""

    mean_ln_tokens: float
    replies: int


class LengthEstimator:
    """Expected output tokens per turn, for all conversations and models."""

    __slots__ = ("_models",)

    def __init__(self) -> None:
        self._models: dict[str, LengthState] = {}

    def update(self, model: str, state: LengthState | None, output_tokens: int) -> LengthState:
        """Takes a finished reply; returns the conversation's new state (`state` is None for its first).

        Leave replies out that were cut short by the client or by a fault: they say nothing about length.
        """
        ln_tokens = math.log(max(1, output_tokens))
        key = model if model in self._models or len(self._models) < MAX_MODELS else _OTHER
        prior = self._prior(model)
        # The default counts as k0 replies, so that one odd first reply does not speak for the model.
        weight = 1.0 / (min(prior.replies, MEMORY_REPLIES) + PRIOR_REPLIES + 1.0)
        mean = prior.mean_ln_tokens + weight * (ln_tokens - prior.mean_ln_tokens)
        self._models[key] = LengthState(mean, prior.replies + 1)
        if state is None:
            return LengthState(ln_tokens, 1)
        mean = state.mean_ln_tokens + ALPHA * (ln_tokens - state.mean_ln_tokens)
        return LengthState(mean, state.replies + 1)

    def expected_tokens(self, model: str, state: LengthState | None, max_tokens: int | None = None) -> float:
        """The median of the next reply's length in tokens, at least 1; 256 before any data."""
        prior = self._prior(model)
        mean = prior.mean_ln_tokens
        if state is not None:
            weight = min(float(state.replies), _MOST_REPLIES)
            mean = (weight * state.mean_ln_tokens + PRIOR_REPLIES * mean) / (weight + PRIOR_REPLIES)
        expected = max(1.0, math.exp(mean))
        return expected if max_tokens is None or max_tokens < 1 else min(expected, float(max_tokens))

    def _prior(self, model: str) -> LengthState:
        known = self._models.get(model) or self._models.get(_OTHER)
        return known or LengthState(math.log(DEFAULT_TOKENS), 0)
