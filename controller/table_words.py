"""What is said of how a table fits its fleet, in words and as JSON: for the audit, the status, the page and alarms."""

from __future__ import annotations

from math import exp

from router.turn import Route

from .table_drift import Drifted, Fit

TURNS = {Route.APPEND_LOCAL: "local turns", Route.PREFILL_TRANSFER: "transferred turns"}
DO = "the table no longer describes this fleet: measure again (trimtab calibrate)"


def raised_words(drifted: Drifted) -> str:
    """An alarm, as it is raised."""
    was = f"they took {_times(drifted.before)} what the table predicts"
    return f"{TURNS[drifted.route]} have become {drifted.drift.value}, {was} before; {DO}"


def drift_words(fit: Fit) -> str:
    """A drift that stands; empty without one."""
    drifted = fit.drifted
    if drifted is None or fit.level is None:
        return ""
    took = f"{_times(fit.level)} what the table predicts, and took {_times(drifted.before)} before"
    return f"{TURNS[fit.route]} take {took}; {DO}"


def fit_document(fit: Fit, since: str | None) -> dict[str, object]:
    """One route in the status document; levels in ln of measured over predicted TTFT. `since`: when the drift began."""
    drifted = fit.drifted
    return {
        "route": fit.route.value,
        "residual_log": _rounded(fit.level),
        "reference_log": _rounded(fit.reference),
        "drifted": None
        if drifted is None
        else {"direction": drifted.drift.value, "since": since, "before_log": _rounded(drifted.before)},
    }


def _times(level: float) -> str:
    """A level, as a multiple."""
    return f"{exp(level):.2f} times"


def _rounded(level: float | None) -> float | None:
    return None if level is None else round(level, 4)
