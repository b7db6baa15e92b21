"""Traffic in virtual time through the ledgers, the judging and the incidents of production: who is told what, when.

Turns come at random (Poisson) at a rate, and each is bad with a chance that may change with time. Ticks every five
seconds, as in a control process. Left out: turns that depend on each other, and receivers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from slos.alerts import Change
from slos.counts import Count
from slos.epoch import Epoch
from slos.incidents import Family, Incidents
from slos.objective import Slo
from slos.policy import AlertPolicy, Declaration

from .judging import Judging
from .ledgers import Ledgers
from .tick import TICK_S

BEGIN_S = 1_800_000_000.0


@dataclass(frozen=True, slots=True)
class Message:
    """Something that a human was told. Seconds since the beginning."""

    at_s: float
    change: Change
    family: Family
    severity: str


def rehearse(
    slo: Slo,
    seconds: float,
    rate_hz: float,
    bad: Callable[[np.ndarray], np.ndarray],
    random: np.random.Generator,
    alerts: AlertPolicy | None = None,
) -> list[Message]:
    """The messages of so many seconds; `bad` gives the chance of a bad turn at times."""
    at_s = np.arange(round(seconds / TICK_S)) * TICK_S
    turns = random.poisson(rate_hz * TICK_S, at_s.size)
    misses = random.binomial(turns, bad(at_s))
    ledgers = Ledgers((slo,), Epoch(BEGIN_S, 0.0), start={slo.name: Count()})
    judging = Judging(Declaration((slo,), alerts=alerts or AlertPolicy()), ledgers, settle_s=0.0)
    incidents, messages = Incidents(), []
    rows = zip(at_s.tolist(), np.cumsum(turns).tolist(), np.cumsum(misses).tolist(), strict=True)
    for now_s, valid, missed in rows:
        counts = {slo.name: Count(valid, missed)}
        ledgers.take(counts, now_s, BEGIN_S + now_s)
        judging.take(now_s, counts, {"m": valid})
        if judging.due(now_s):
            incidents, told = incidents.after(judging.evaluate(now_s, lambda _: ""), ledgers.now_s)
            messages += [
                Message(now_s, one.change, one.incident.family, one.incident.labels["severity"]) for one in told
            ]
    return messages


def notifications(messages: list[Message]) -> int:
    """How often somebody was told that something is wrong."""
    return sum(message.change is not Change.RESOLVED for message in messages)
