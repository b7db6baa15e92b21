"""What is allowed in a file of SLOs and will disappoint: the W codes.

    W206   a lower percentile with a limit no tighter than that of a higher one on the same turns says nothing new
    W303   rate x slice x allowed share < 1: one slow turn breaks a slice
    W304   fewer turns in a slice than prove the percentile at 95 %: ln .05 / ln objective, 299 for a P99
    W305   a threshold that is no bound of vLLM's histograms: the engines' own numbers cannot confirm it exactly
    W501   no runbook: whoever is woken up has nowhere to look

W303 and W304 need the expected traffic. W302 is given where the burn rules are read (`alerts_spec.py`). The bounds
are those of vLLM 0.32; a test compares them with what the emulated engine shows.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from . import phrases
from .allowance import SLICES_S
from .nodes import Spot
from .objective import Condition, Signal, Slo
from .policy import AlertPolicy

PROVEN = 0.05
TTFT_BOUNDS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
TPOT_BOUNDS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
E2E_BOUNDS_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0),
    *(1920.0, 7680.0),
)
BOUNDS_S = {
    Signal.TTFT: TTFT_BOUNDS_S,
    Signal.TPOT: TPOT_BOUNDS_S,
    Signal.ITL: TPOT_BOUNDS_S,
    Signal.E2E: E2E_BOUNDS_S,
}


@dataclass(frozen=True, slots=True)
class Found:
    """An SLO, and where its promise is written."""

    slo: Slo
    spot: Spot


def advise(found: Sequence[Found], alerts: AlertPolicy, alerts_spot: Spot, rps: float | None) -> None:
    """Puts the advice on these SLOs where the spots' problems go."""
    for each in found:
        _redundant(each, found)
        if rps is not None:
            _thin(each, rps)
        _unconfirmed(each)
    if alerts.runbook is None:
        fix = "write alerts: {runbook: 'https://runbooks.example/slo/{slo}'}"
        alerts_spot.complain("W501", "no runbook", fix)


def turns_to_prove(objective: float) -> int:
    """All of so many turns have to be good to show the objective at 95 %: 299 for a P99."""
    return math.ceil(math.log(PROVEN) / math.log(objective))


def _redundant(this: Found, found: Iterable[Found]) -> None:
    slo = this.slo
    if slo.threshold_s is None:
        return
    for other in (each.slo for each in found):
        same = other.signal is slo.signal and other.match == slo.match and other.threshold_s is not None
        if same and other.objective > slo.objective and slo.threshold_s >= (other.threshold_s or math.inf):
            message = f"follows from {other.name}, which promises more turns a limit that is no wider"
            fix = f"remove it, or write a limit below {phrases.duration(other.threshold_s or 0.0)}"
            this.spot.complain("W206", message, fix)
            return


def _thin(this: Found, rps: float) -> None:
    slo, slice_s = this.slo, this.slo.budget.slice_s
    turns = rps * slice_s
    needed = turns_to_prove(slo.objective)
    shown = f"at {rps:g} turns a second a slice of {phrases.span(slice_s)} holds {turns:.4g}"
    enough = next((each for each in SLICES_S if each * rps >= needed), None)
    longer = (
        "write a lower percentile" if enough is None else f"write slice: {phrases.span(enough)}, or a lower percentile"
    )
    if turns * slo.epsilon < 1.0:
        this.spot.complain("W303", f"{shown}, and one bad turn of them is too many", f"{longer}, or method: slices")
    elif turns < needed:
        this.spot.complain("W304", f"{shown}, and {needed} good ones prove it", longer)


def _unconfirmed(this: Found) -> None:
    for each in this.slo.needed:
        bounds = _bounds(each)
        if bounds and each.threshold_s not in bounds:
            limit = each.threshold_s or 0.0
            near = sorted(sorted(bounds, key=lambda bound: abs(math.log(bound / limit)))[:2])
            message = f"{phrases.duration(limit)} is no bound of vLLM's {each.signal} histogram"
            fix = f"nothing, or write {' or '.join(map(phrases.duration, near))} if engine panels have to confirm it"
            this.spot.complain("W305", message, fix)


def _bounds(needed: Condition) -> tuple[float, ...]:
    return () if needed.threshold_s is None else BOUNDS_S.get(needed.signal, ())
