"""How many tokens the next reply of a conversation will have, before it exists.

Lengths are near lognormal, so the state is in ln tokens: per conversation an average that forgets (weight
alpha = .4 for the newest reply), drawn towards the average of its kind as if that were k0 = 2 replies. Such
an average never carries more than (2 - alpha) / alpha = 4 replies' worth of evidence, so long conversations
count as 4. The kind is the model or, where the caller names one, the application on it, whose own average is
drawn towards the model's as if that were 10 replies. The estimate is the median of the lognormal, and
max_tokens caps it (a learned predictor was judged not worth its cost).

A conversation's state is a small value that its owner keeps; here is one average a model and one an
application, and the number of both is bounded. Whether an expectation is good enough is asked of the decisions
that it turns (`flips`). Left out: the length of the new message.
"""

import math
from dataclasses import dataclass
from typing import Self

from .protocol import State

ALPHA = 0.4
PRIOR_REPLIES = 2.0
PRIOR_APP_REPLIES = 10.0
DEFAULT_TOKENS = 256.0
MAX_MODELS = 64  # further models share one average
MAX_APPS = 256  # further applications have their model's
MEMORY_REPLIES = 1000  # a model's average follows its last thousand replies or so

_MOST_REPLIES = (2.0 - ALPHA) / ALPHA
_DEFAULT_LN = math.log(DEFAULT_TOKENS)
_OTHER = ""


@dataclass(frozen=True, slots=True)
class LengthState:
    """What a conversation's replies say of the next: their forgetting mean of ln tokens, and their number."""

    mean_ln_tokens: float
    replies: int


class LengthEstimator:
    """Expected output tokens per turn, for all conversations, models and applications."""

    __slots__ = ("_apps", "_models")

    def __init__(self) -> None:
        self._models: dict[str, LengthState] = {}
        self._apps: dict[tuple[str, str], LengthState] = {}

    def update(self, model: str, state: LengthState | None, output_tokens: int, app: str | None = None) -> LengthState:
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
        if app is not None and ((key, app) in self._apps or len(self._apps) < MAX_APPS):
            own = self._apps.get((key, app)) or LengthState(0.0, 0)
            weight = 1.0 / (min(own.replies, MEMORY_REPLIES) + 1.0)
            mean = own.mean_ln_tokens + weight * (ln_tokens - own.mean_ln_tokens)
            self._apps[key, app] = LengthState(mean, own.replies + 1)
        if state is None:
            return LengthState(ln_tokens, 1)
        mean = state.mean_ln_tokens + ALPHA * (ln_tokens - state.mean_ln_tokens)
        return LengthState(mean, state.replies + 1)

    def expected_tokens(
        self, model: str, state: LengthState | None, max_tokens: int | None = None, app: str | None = None
    ) -> float:
        """The median of the next reply's length in tokens, at least 1; 256 before any data."""
        mean = self._prior(model).mean_ln_tokens
        if app is not None:
            own = self._apps.get((model if model in self._models else _OTHER, app))
            if own is not None:
                replies = float(min(own.replies, MEMORY_REPLIES))
                mean = (replies * own.mean_ln_tokens + PRIOR_APP_REPLIES * mean) / (replies + PRIOR_APP_REPLIES)
        if state is not None:
            weight = min(float(state.replies), _MOST_REPLIES)
            mean = (weight * state.mean_ln_tokens + PRIOR_REPLIES * mean) / (weight + PRIOR_REPLIES)
        expected = max(1.0, math.exp(mean))
        return expected if max_tokens is None or max_tokens < 1 else min(expected, float(max_tokens))

    def merged(self, other: Self) -> Self:
        """What both have learnt: as one that had seen every reply, up to MEMORY_REPLIES. Models and applications beyond
        the bounds are shared or left out as ever, the alphabetically last first."""
        both = type(self)()
        models = sorted({*self._models, *other._models} - {_OTHER})
        kept, rest = models[:MAX_MODELS], models[MAX_MODELS:]
        for model in kept:
            both._models[model] = _together((self._models.get(model), other._models.get(model)), PRIOR_REPLIES)
        shared = [each._models.get(model) for model in (_OTHER, *rest) for each in (self, other)]
        if any(shared):
            both._models[_OTHER] = _together(shared, PRIOR_REPLIES)
        apps = sorted({*self._apps, *other._apps})
        for key in [key for key in apps if key[0] in both._models][:MAX_APPS]:
            both._apps[key] = _together((self._apps.get(key), other._apps.get(key)), 0.0)
        return both

    def snapshot(self) -> State:
        """Averages only; conversations are their owner's."""
        return {
            "models": [[model, each.mean_ln_tokens, each.replies] for model, each in self._models.items()],
            "apps": [[model, app, each.mean_ln_tokens, each.replies] for (model, app), each in self._apps.items()],
        }

    @classmethod
    def restore(cls, state: State) -> Self:
        """Raises ValueError for what no `snapshot` gave."""
        lengths = cls()
        try:
            for model, mean, replies in state["models"]:
                lengths._models[str(model)] = _state(mean, replies)
            for model, app, mean, replies in state["apps"]:
                lengths._apps[str(model), str(app)] = _state(mean, replies)
        except (KeyError, TypeError, ValueError) as problem:
            raise ValueError(f"no state of a LengthEstimator: {problem!r}") from problem
        if len(lengths._models) > MAX_MODELS + 1 or len(lengths._apps) > MAX_APPS:
            raise ValueError("no state of a LengthEstimator: too many models or applications")
        return lengths

    def _prior(self, model: str) -> LengthState:
        known = self._models.get(model) or self._models.get(_OTHER)
        return known or LengthState(_DEFAULT_LN, 0)


def _state(mean_ln_tokens: float, replies: int) -> LengthState:
    state = LengthState(float(mean_ln_tokens), int(replies))
    if not 0.0 <= state.mean_ln_tokens < math.inf or state.replies < 1:
        raise ValueError(f"{state} is no average")
    return state


def _together(parts: "list[LengthState | None] | tuple[LengthState | None, ...]", prior_replies: float) -> LengthState:
    """Averages of which each holds the default as `prior_replies`, as one that holds it once."""
    known = [part for part in parts if part is not None]
    weights = [min(part.replies, MEMORY_REPLIES) + prior_replies for part in known]
    total = sum(weight * part.mean_ln_tokens for weight, part in zip(weights, known, strict=True))
    doubled = prior_replies * (len(known) - 1)
    mean = (total - doubled * _DEFAULT_LN) / (sum(weights) - doubled)
    return LengthState(max(0.0, mean), sum(part.replies for part in known))
