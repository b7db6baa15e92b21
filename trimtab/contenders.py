"""The policies that a scenario compares: the controller, its own score at a fixed price, the paper's table,
and fixed rules.

Some have names of their own, the others are named by a number:

    price_P                 the score at the fixed price P
    controller_start_P      the controller from price P
    paper_table_A_B         the paper's table at w_ttft = A, w_tpot = B
    xS                      the share S of later turns local, by a coin; x0 and x1 are the ends
    threshold_N             local iff D lacks fewer than N tokens
    dynamo_N_S              local iff D lacks fewer than N tokens and less than the share S of the prompt

Without a table for the model the first two decide by `Policy.without_table_tokens`, as a router does. The rivals that
need a table, the paper's and `shorter_queue`, then send everything through P.

Every one of them runs in the same router core with the same residency, placement and handshake; only the
decision differs. A fixed rule has the preconditions of any router: first turns and turns of a fleet without P
are not its to decide.
"""

from __future__ import annotations

import re
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
        scored = self.policy.mode == "load_aware" and self.decider is decide and self.policy.pin_x is None
        return scored and self.policy.weights.price > 0


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


def dynamo(tokens: int, share: float) -> Decider:
    """Dynamo's rule: local iff D lacks fewer than `tokens`, and less than that share of the prompt."""
    return fixed_rule(lambda f: f.uncached_d < tokens and f.uncached_d / f.prompt_tokens < share)


DYNAMO = dynamo(2048, 0.7)
"""Dynamo's documented default: little to prefill, and at least three tenths of the prompt cached."""
LLM_D = threshold(16)
"""llm-d's `prefix-based-pd-decider` (llm-d-router, pkg/epp/framework/plugins/.../disagg): prefill elsewhere iff the
prompt has `nonCachedTokens` or more that the decode node lacks. The configurations published for its P/D path set 16;
the plugin's own default of 0 never prefills elsewhere, which for later turns is x1."""
THRESHOLDS = (1024, 1536, 2048, 4096)


def contenders(tables: dict[TableKey, Tables]) -> dict[str, Contender]:
    """All of them by name, the controller first."""
    priced = Policy(1, tables, Weights.from_price(START_PRICE), provenance="start")
    law = LAWS[DEFAULT_LAW]()
    entries = [
        Contender("controller", priced, law),
        *(_numbered(name, priced, law) for name in ("price_0.4", "price_0.03", "price_2.9")),
        *(_numbered(name, priced, law) for name in ("controller_start_0.03", "controller_start_2.9")),
        Contender("paper_table", _of_the_paper(priced, Weights(1, 1))),
        *(_numbered(name, priced, law) for name in ("x0", "x1")),
        Contender("prototype", priced, decider=PROTOTYPE),
        Contender("dynamo", priced, decider=DYNAMO),
        *(_numbered(f"threshold_{tokens}", priced, law) for tokens in THRESHOLDS),
    ]
    return {entry.name: entry for entry in entries}


def further(tables: dict[TableKey, Tables]) -> dict[str, Contender]:
    """Those that only the scenario suite runs unasked.

    `shorter_queue` is the score at price 0: local iff its predicted TTFT, backlogs included, is the shorter one.
    """
    priced = Policy(1, tables, Weights.from_price(START_PRICE), provenance="start")
    entries = [
        Contender("llm_d", priced, decider=LLM_D),
        Contender("aimd", priced, LAWS["aimd"]()),
        Contender("shorter_queue", replace(priced, weights=Weights(1, 0), without_table_tokens=0)),
    ]
    return {entry.name: entry for entry in entries}


def contender(name: str, tables: dict[TableKey, Tables]) -> Contender:
    """The policy of that name, one with a number in it included. Raises ValueError with the known ones."""
    known = contenders(tables) | further(tables)
    if name in known:
        return known[name]
    if _NUMBERED.fullmatch(name) is None:
        forms = "price_P, controller_start_P, paper_table_A_B, xS, threshold_N, dynamo_N_S"
        raise ValueError(f"unknown policy {name!r}; known: {', '.join(known)}, and with numbers {forms}")
    hero = known["controller"]
    assert hero.law is not None
    return _numbered(name, hero.policy, hero.law)


def _of_the_paper(priced: Policy, weights: Weights) -> Policy:
    """Its table alone: where it has none, the traditional route."""
    return replace(priced, mode="paper", weights=weights, without_table_tokens=0)


_NUMBER = r"\d+(?:\.\d+)?"
_NUMBERED = re.compile(
    rf"price_(?P<price>{_NUMBER})|controller_start_(?P<start>{_NUMBER})|x(?P<share>0(?:\.\d+)?|1(?:\.0+)?)"
    rf"|paper_table_(?P<w_ttft>{_NUMBER})_(?P<w_tpot>{_NUMBER})|threshold_(?P<tokens>\d{{1,7}})"
    rf"|dynamo_(?P<lacks>\d{{1,7}})_(?P<below>0(?:\.\d+)?|1(?:\.0+)?)"
)


def _numbered(name: str, priced: Policy, law: Law) -> Contender:
    found = _NUMBERED.fullmatch(name)
    assert found is not None
    numbers = {key: float(text) for key, text in found.groupdict().items() if text is not None}
    if any(numbers.get(key) == 0 for key in ("price", "start")):
        raise ValueError(f"policy {name!r}: a price is positive; x1 is what a price of 0 means")
    match numbers:
        case {"price": price}:
            return Contender(name, replace(priced, weights=Weights.from_price(price)))
        case {"start": price}:
            return Contender(name, replace(priced, weights=Weights.from_price(price)), law)
        case {"share": share}:
            return Contender(name, replace(priced, pin_x=share))
        case {"w_ttft": w_ttft, "w_tpot": w_tpot}:
            return Contender(name, _of_the_paper(priced, Weights(w_ttft, w_tpot)))
        case {"lacks": tokens, "below": below}:
            return Contender(name, priced, decider=dynamo(int(tokens), below))
    return Contender(name, priced, decider=threshold(int(numbers["tokens"])))
