"""One run of drawn conversations on a configuration: what figures about conversations are made of.

Conversations of a mix arrive as a Poisson process and take their turns as its thinking times say. Later turns go
local by a coin (`x`), or by the paper's table at some weights (`rule`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from emulator.workload import ConversationPlan, Mix
from router.core import Decider
from router.decision import decide
from router.paper_table import PaperTable
from router.policy import Policy, Weights
from router.record import TurnRecord
from slos.objective import Outcome

from ..contenders import fixed_rule
from ..grid import Conditions, simulate, stats
from ..measured import TurnStats


@dataclass(frozen=True, slots=True)
class Rule:
    """Algorithm 1: a table and the operator's weights."""

    table: PaperTable
    w_ttft: float = 1.0
    w_tpot: float = 1.0

    def decider(self) -> Decider:
        """What the router asks."""
        return fixed_rule(lambda features: self.table.choose(features, self.w_ttft, self.w_tpot)[0])


@dataclass(frozen=True, slots=True)
class Trial:
    """What to run."""

    config: str
    mix: Mix
    qps: float
    """Conversations per second."""
    conversations: int
    conditions: Conditions
    x: float = 0.0
    rule: Rule | None = None
    """Instead of x."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What a trial came to. Times as the client sees them, with its own wait for a place."""

    success: float
    """Share of turns that were answered, of all that were planned."""
    first: TurnStats
    later: TurnStats
    sent: TurnStats
    """All turns, from when each was sent: without its wait for a place in the client."""
    e2e_s: tuple[float, ...]
    """Of each of them, sorted."""
    planned: int
    """Turns."""
    local_share: float
    """Of later turns."""
    sent_turns: float
    """Share of turns whose KV crossed the link."""
    sent_tokens: int
    """Prompt tokens of those turns."""
    turns: float
    """Per conversation, as planned."""
    tokens_per_s: float

    def within(self, limit_s: float) -> float:
        """Share of planned turns whose answer was whole so long after they were sent."""
        return bisect_right(self.e2e_s, limit_s) / self.planned


def run_trial(trial: Trial, seed: int) -> Ran:
    """One run to its end. The conversations depend on seed, mix, QPS and number, so all configurations and rules meet
    the same."""
    rng = np.random.default_rng([seed, crc32(trial.mix.name.encode()), round(trial.qps * 100)])
    starts = np.cumsum(rng.exponential(1 / trial.qps, trial.conversations))
    plans = [ConversationPlan(f"c{n}", float(at_s), trial.mix.draw(rng)) for n, at_s in enumerate(starts)]
    pin = None if trial.rule is not None else trial.x
    run = simulate(
        trial.config,
        plans,
        trial.conditions,
        seed,
        policy=Policy(1, {}, Weights(1, 1), pin_x=pin),
        decider=decide if trial.rule is None else trial.rule.decider(),
    )
    answered = [r for r in run.records if r.outcome is Outcome.COMPLETED]
    return _summary(answered, plans, run.held_s)


def _summary(answered: Sequence[TurnRecord], plans: Sequence[ConversationPlan], held_s: dict[str, float]) -> Ran:
    later = [r for r in answered if r.turn > 1]
    sent = [r for r in answered if not r.went_local]
    planned = sum(len(plan.turns) for plan in plans)
    ended_s = max((r.ended_s for r in answered), default=0.0)
    return Ran(
        success=len(answered) / planned,
        first=stats([r for r in answered if r.turn == 1], held_s),
        later=stats(later, held_s),
        sent=stats(answered, {}),
        e2e_s=tuple(sorted(r.e2e_s for r in answered)),
        planned=planned,
        local_share=sum(r.went_local for r in later) / len(later) if later else 0.0,
        sent_turns=len(sent) / len(answered) if answered else 0.0,
        sent_tokens=sum(r.prompt_tokens for r in sent),
        turns=planned / len(plans),
        tokens_per_s=sum(r.output_tokens for r in answered) / ended_s if ended_s > 0 else 0.0,
    )
