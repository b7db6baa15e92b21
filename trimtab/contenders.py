"""The policies that a scenario compares: the controller, its own score at a fixed price, the paper's table,
and fixed rules.

Every one of them runs in the same router core with the same residency, placement and handshake; only the
decision differs. A fixed rule has the preconditions of any router: first turns and turns of a fleet without P
are not its to decide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from controller.config import START_PRICE
from controller.laws import DEFAULT_LAW, LAWS
from controller.laws.protocol import Law
from router.core import Decider
from router.decision import Decision, decide
from router.features import TurnFeatures
from router.policy import Policy, TableKey, Tables, Weights
from router.turn import Reason, Route


@dataclass(frozen=True, slots=True)
class Contender:
    """A name, a first policy, and who moves it (`law` None: nobody)."""

    name: str
    policy: Policy
    law: Law | None = None
    decider: Decider = decide

    @property
    def has_price(self) -> bool:
        """Whether its decisions have a price to show."""
        return self.policy.mode == "load_aware" and self.decider is decide and self.policy.pin_x is None


def fixed_rule(goes_local: Callable[[TurnFeatures], bool]) -> Decider:
    """A decider that asks `goes_local` on every turn that could go either way."""

    def rule(policy: Policy, features: TurnFeatures, coin: float) -> Decision:
        if features.replica or features.prefill is None or features.turn == 1:
            return decide(policy, features, coin)
        route = Route.APPEND_LOCAL if goes_local(features) else Route.PREFILL_TRANSFER
        return Decision(route, Reason.RULE, 1.0, policy.version)

    return rule


def threshold(tokens: int) -> Decider:
    """Local iff D lacks fewer than `tokens`."""
    return fixed_rule(lambda f: f.uncached_d < tokens)


PROTOTYPE = fixed_rule(lambda f: f.n_in < 512)
"""The rule in front of the table in the prototype of the paper's authors: fewer than 512 new tokens."""
DYNAMO = fixed_rule(lambda f: f.uncached_d < 2048 and f.uncached_d / f.prompt_tokens < 0.7)
"""Dynamo's documented default: little to prefill, and at least three tenths of the prompt cached."""
THRESHOLDS = (1024, 1536, 2048, 4096)


def contenders(tables: dict[TableKey, Tables]) -> dict[str, Contender]:
    """All of them by name, the controller first."""
    priced = Policy(1, tables, Weights.from_price(START_PRICE), provenance="start")
    law = LAWS[DEFAULT_LAW]()
    entries = [
        Contender("controller", priced, law),
        Contender("price_0.4", priced),
        Contender("price_0.03", replace(priced, weights=Weights.from_price(0.03))),
        Contender("price_2.9", replace(priced, weights=Weights.from_price(2.9))),
        Contender("controller_start_0.03", replace(priced, weights=Weights.from_price(0.03)), law),
        Contender("controller_start_2.9", replace(priced, weights=Weights.from_price(2.9)), law),
        Contender("paper_table", replace(priced, mode="paper", weights=Weights(1, 1))),
        Contender("x0", replace(priced, pin_x=0.0)),
        Contender("x1", replace(priced, pin_x=1.0)),
        Contender("prototype", priced, decider=PROTOTYPE),
        Contender("dynamo", priced, decider=DYNAMO),
        *(Contender(f"threshold_{t}", priced, decider=threshold(t)) for t in THRESHOLDS),
    ]
    return {entry.name: entry for entry in entries}
