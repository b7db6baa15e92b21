"""An SLO in a sentence, the same wherever it is shown: 99 % of later turns: TTFT at most 2 s."""

from .objective import ASKABLE, Condition, Match, Signal, Slo

_ASKED = {True: "that set their own deadline", False: "that set no deadline of their own"}


def promise(slo: Slo) -> str:
    """What is promised, and of which turns."""
    who = f"{slo.objective * 100:g} % of {turns(slo.match)}"
    if slo.signal is Signal.SUCCESS:
        return f"{who} succeed"
    return f"{who}: {' and '.join(map(needed, slo.needed))}"


def needed(condition: Condition) -> str:
    """One thing that a turn has to meet."""
    if condition.signal is Signal.SUCCESS:
        return "success"
    if condition.threshold_s is None and condition.signal in ASKABLE:
        return f"{condition.signal.value.upper()} within the deadline asked for"
    return f"{condition.signal.value.upper()} at most {seconds(condition.threshold_s or 0.0)}"


def seconds(value_s: float) -> str:
    """A time for people: 38 ms, 2 s."""
    return f"{value_s * 1000:g} ms" if value_s < 1 else f"{value_s:g} s"


def turns(match: Match) -> str:
    """The turns that are meant."""
    words = _numbered(match)
    if match.streaming is not None:
        words = f"{'streaming' if match.streaming else 'non-streaming'} {words}"
    if match.models != ("*",):
        words = f"{words} of {', '.join(match.models)}"
    if match.classes:
        words = f"{words} of class {' or '.join(match.classes)}"
    if match.tenants:
        words = f"{words} from {' or '.join(match.tenants)}"
    return words if match.asked is None else f"{words} {_ASKED[match.asked]}"


def _numbered(match: Match) -> str:
    if match.turn_max is None:
        return {1: "turns", 2: "later turns"}.get(match.turn_min, f"turns from number {match.turn_min} on")
    if match.turn_max == match.turn_min:
        return "first turns" if match.turn_min == 1 else f"turns number {match.turn_min}"
    return f"turns {match.turn_min} to {match.turn_max}"
