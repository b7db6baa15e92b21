"""The one sentence of a notification: what happens to users, how much of it is allowed, how many bad turns are left,
what the controller does about it, and where to look.

    later-ttft: users waited over 2 s for the first token in 6.13 % of 1,240 later turns (76) in the last 5 min,
    where 1 % is allowed; 71 % of the budget for 28 days is left (20,448 bad turns), at this rate for 3.3 days; the
    controller keeps more turns on their decode node; see https://runbooks.example/later-ttft and http://admin:9400/
"""

from .allowance import Method
from .budget import ErrorBudget
from .counts import Count
from .objective import Match, Signal, Slo
from .promise import needed

MAX_DOING = 300
"""Characters of what the controller is said to do."""


def breach(slo: Slo, window: Count, span_s: float, doing: str, left: str = "", where: str = "") -> str:
    """For a breach that fires."""
    return _joined(
        f"{slo.name}: {_counted(slo, window, span_s)}, where {percent(slo.epsilon)} is allowed", left, doing, where
    )


def burning(slo: Slo, window: Count, span_s: float, rate: float, doing: str, left: str = "", where: str = "") -> str:
    """For a budget that is spent `rate` times as fast as it may be."""
    fast = (
        f"{rate:.3g} times what is allowed"
        if slo.budget.method is Method.REQUESTS
        else (f"and slices that broke the objective are {rate:.3g} times as many as allowed")
    )
    return _joined(f"{slo.name}: {_counted(slo, window, span_s)}, {fast}", left, doing, where)


def exhausted(slo: Slo, budget: ErrorBudget, doing: str, where: str = "") -> str:
    """For a budget that is gone."""
    spent = (
        f"{slo.name}: the error budget is gone, {budget.spent:,} {_spent(slo)} in the last {duration(budget.elapsed_s)}"
    )
    return _joined(
        f"{spent} where {budget.allowed:,.0f} are allowed in {duration(slo.budget.over_s)}", "", doing, where
    )


def no_data(slo: Slo, turns: int, after_s: float, where: str = "") -> str:
    """For an SLO that nothing is measured of although users come."""
    came = f"{turns:,} turns of its models ended in the last {duration(after_s)} and none was judged by it"
    return _joined(f"{slo.name}: nobody knows whether users are served well: {came}", "", "", where)


def recovery(
    slo: Slo, window: Count, span_s: float, lasted_s: float, doing: str, left: str = "", where: str = ""
) -> str:
    """For an incident that is over."""
    kept = f"{slo.name} is kept again after {duration(lasted_s)}: {_counted(slo, window, span_s)}"
    return _joined(f"{kept}, and {percent(slo.epsilon)} is allowed", left, doing, where)


def budget_left(slo: Slo, budget: ErrorBudget, exhausted_in_s: float | None) -> str:
    """How much may still go wrong; nothing where nothing was counted."""
    if not budget.known:
        return ""
    over = duration(slo.budget.over_s)
    if budget.left <= 0.0:
        return f"the budget for {over} is overspent by {percent(-budget.left)} ({-budget.bad_left:,} {_spent(slo)})"
    told = f"{percent(budget.left)} of the budget for {over} is left ({budget.bad_left:,} {_spent(slo)})"
    return told if exhausted_in_s is None else f"{told}, at this rate for {duration(exhausted_in_s)}"


def percent(share: float) -> str:
    """A share (0..1) with what matters of it: 6.13 %, 1 %, 0.05 %."""
    digits = f"{100.0 * share:.2f}".rstrip("0").rstrip(".")
    return f"{digits} %"


def duration(seconds: float) -> str:
    """38 ms, 2 s, 90 s, 5 min, 3.5 h, 28 days."""
    if seconds < 1.0:
        return f"{1000.0 * seconds:g} ms"
    if seconds < 120.0:
        return f"{seconds:.3g} s"
    if seconds < 7200.0:
        return f"{seconds / 60.0:.3g} min"
    return f"{seconds / 3600.0:.3g} h" if seconds < 2 * 86_400.0 else f"{seconds / 86_400.0:.3g} days"


def _joined(what: str, left: str, doing: str, where: str) -> str:
    return "; ".join(part for part in (what, left, _short(doing), where and f"see {where}") if part)


def _spent(slo: Slo) -> str:
    return "bad slices" if slo.budget.method is Method.SLICES else "bad turns"


def _counted(slo: Slo, window: Count, span_s: float) -> str:
    share = window.bad / window.valid if window.valid else 0.0
    counts = f"{percent(share)} of {window.valid:,} {_turns(slo.match)} ({window.bad:,})"
    return f"{_suffered(slo)} in {counts} in the last {duration(span_s)}"


def _suffered(slo: Slo) -> str:
    if slo.signal is Signal.SUCCESS:
        return "users got an error"
    if slo.threshold_s is None:
        return f"users did not get {' and '.join(map(needed, slo.needed))}"
    limit = duration(slo.threshold_s)
    return {
        Signal.TTFT: f"users waited over {limit} for the first token",
        Signal.TPOT: f"answers came slower than {limit} a token",
        Signal.ITL: f"answers came slower than {limit} a token",
        Signal.E2E: f"users waited over {limit} for the whole answer",
    }[slo.signal]


def _turns(match: Match) -> str:
    whose = "" if match.models == ("*",) else f" of {' or '.join(match.models)}"
    if match.turn_max is None:
        which = {1: "turns", 2: "later turns"}.get(match.turn_min, f"turns from {match.turn_min} on")
    elif match.turn_max == match.turn_min:
        which = "first turns" if match.turn_min == 1 else f"turns number {match.turn_min}"
    else:
        which = f"turns {match.turn_min} to {match.turn_max}"
    return which + whose


def _short(doing: str) -> str:
    return doing if len(doing) <= MAX_DOING else doing[: MAX_DOING - 3] + "..."
