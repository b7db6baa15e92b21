"""The one sentence of an alert: what happens to users, how much of it is allowed, the counts, and what the
controller does about it.

    later-ttft: users waited over 2 s for the first token in 6.13 % of 1,240 later turns (76) in the last 5 min,
    where 1 % is allowed; the controller keeps more turns on their decode node
"""

from .counts import Count
from .objective import Match, Signal, Slo
from .promise import needed

MAX_DOING = 300
"""Characters of what the controller is said to do."""


def breach(slo: Slo, window: Count, span_s: float, doing: str) -> str:
    """For an alert that fires."""
    return f"{slo.name}: {_counted(slo, window, span_s)}, where {percent(slo.epsilon)} is allowed; {_short(doing)}"


def recovery(slo: Slo, window: Count, span_s: float, lasted_s: float, doing: str) -> str:
    """For an alert that resolves."""
    kept = f"{slo.name} is kept again after {duration(lasted_s)}: {_counted(slo, window, span_s)}"
    return f"{kept}, and {percent(slo.epsilon)} is allowed; {_short(doing)}"


def percent(share: float) -> str:
    """A share (0..1) with what matters of it: 6.13 %, 1 %, 0.05 %."""
    digits = f"{100.0 * share:.2f}".rstrip("0").rstrip(".")
    return f"{digits} %"


def duration(seconds: float) -> str:
    """38 ms, 2 s, 90 s, 5 min, 3.5 h."""
    if seconds < 1.0:
        return f"{1000.0 * seconds:g} ms"
    if seconds < 120.0:
        return f"{seconds:.3g} s"
    return f"{seconds / 60.0:.3g} min" if seconds < 7200.0 else f"{seconds / 3600.0:.3g} h"


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
