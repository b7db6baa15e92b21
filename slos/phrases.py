"""The small languages inside a specification's values: durations, percents, ranges of turns, objectives.

    duration   500ms  2s  1.5m  1h           a unit is always written
    span       30s  5m  6h  28d  4w          windows and budgets
    percent    99  99.9  99%                 inside (0, 100); a latency percentile is from 50 to 99.9
    spend      2%                            of a budget
    turns      2  2..5  >=2
    objective  p99(ttft) <= 2s  |  p99(ttft) <= asked  |  success >= 99.9%
    condition  ttft <= 500ms  |  ttft <= asked  |  success

`asked` stands for the deadline that the request itself carries.

Each reader returns None for what it cannot read, after telling `complain(code, message, fix)` why; none
raises.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from .objective import ASKABLE, Condition, Signal
from .problem import did_you_mean, quoted

Complain = Callable[[str, str, str], None]

UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
SPAN_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
ASKED = "asked"
MAX_DURATION_S = 86_400.0  # no turn takes a day; a larger number is a slip of the unit

_NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_DURATION = re.compile(rf"([+-]?)({_NUMBER}) *([A-Za-zµμ]*)")
_NO_NUMBER = re.compile(r"[+-]?\.?(?:nan|inf|infinity) *(?:ms|s|m|h)?", re.IGNORECASE)
_PERCENT = re.compile(rf"([+-]?{_NUMBER}) *(%?)")
_TURNS = re.compile(r"(?P<at_least>>=)? *(?P<low>[0-9]{1,6})(?: *\.\. *(?P<high>[0-9]{1,6}))?")
_COMPARISON = re.compile(r"(?P<left>[^<>=]+?) *(?P<op>[<>=]+) *(?P<right>[^<>=]+)")
_PERCENTILE = re.compile(r"[pP](?P<percent>[^()]*)\( *(?P<signal>[^()]*?) *\)")
_OBJECTIVE_EXAMPLE = "write p99(ttft) <= 2s or success >= 99.9%"


@dataclass(frozen=True, slots=True)
class Promise:
    """What an objective says; `objective` is 0..1, `threshold_s` is in seconds, None for success and goodput and where
    it is `asked`: the turn's own deadline."""

    signal: Signal
    objective: float
    threshold_s: float | None
    asked: bool = False


def duration_s(text: str, complain: Complain) -> float | None:
    """Seconds, positive and at most a day."""
    if _NO_NUMBER.fullmatch(text):
        complain("E207", f"{quoted(text)} is not a length of time", "write a number such as 500ms")
        return None
    found = _DURATION.fullmatch(text)
    if found is None:
        complain("E203", f"{quoted(text)} is not a duration", "write a number with its unit, such as 500ms")
        return None
    sign, number, unit = found.groups()
    if not unit:
        complain("E203", f"{quoted(text)} has no unit", _unit_fix(float(number)))
        return None
    if unit not in UNITS_S:
        complain("E203", f"{quoted(text)} has an unknown unit", f"use one of {', '.join(UNITS_S)}")
        return None
    # Divided and not multiplied by .001: in binary 9 * .001 is not .009, and the file says .009.
    seconds = float(number) / 1000 if unit == "ms" else float(number) * UNITS_S[unit]
    if sign == "-" or seconds <= 0.0:
        complain("E207", f"{quoted(text)} is not longer than zero", "write a positive duration such as 500ms")
        return None
    if seconds > MAX_DURATION_S:
        complain("E207", f"{quoted(text)} is longer than a day", "check the number and its unit")
        return None
    return seconds


def limit(text: str, signal: Signal | None, complain: Complain) -> tuple[float | None, bool] | None:
    """(threshold, asked): a duration, or the word that stands for the turn's own."""
    if text == ASKED:
        if signal is not None and signal not in ASKABLE:
            complain("E201", f"no request carries a deadline of its {signal}", "write a duration such as 30s")
            return None
        return None, True
    seconds = duration_s(text, complain)
    return None if seconds is None else (seconds, False)


def span_s(text: str, least_s: float, most_s: float, complain: Complain) -> float | None:
    """Seconds of a window or a budget, within the two."""
    found = _DURATION.fullmatch(text)
    if found is None:
        complain("E203", f"{quoted(text)} is not a duration", "write a number with its unit, such as 5m")
        return None
    sign, number, unit = found.groups()
    if unit not in SPAN_UNITS_S:
        what = "has an unknown unit" if unit else "has no unit"
        complain("E203", f"{quoted(text)} {what}", f"use one of {', '.join(SPAN_UNITS_S)}, as in 5m")
        return None
    seconds = float(number) * SPAN_UNITS_S[unit]
    if sign == "-" or not least_s <= seconds <= most_s:
        complain("E205", f"{quoted(text)} is not from {span(least_s)} to {span(most_s)}", "write one that is")
        return None
    return seconds


def span(seconds: float) -> str:
    """The shortest way to write a span: 5m, 6h, 28d."""
    for unit in ("w", "d", "h", "m"):
        if (
            seconds >= SPAN_UNITS_S[unit]
            and seconds % SPAN_UNITS_S[unit] == 0
            and not (unit == "w" and seconds < 8 * 604_800.0)
        ):
            return f"{seconds / SPAN_UNITS_S[unit]:.0f}{unit}"
    return f"{seconds:.15g}s"


def duration(seconds: float) -> str:
    """The way to write a latency: 500ms, 2s."""
    return f"{seconds * 1000:.15g}ms" if seconds < 1.0 else f"{seconds:.15g}s"


def percent(share_of_all: float) -> str:
    """The way to write a share: 99.9."""
    return f"{share_of_all * 100:.12g}"


def spend(text: str, complain: Complain) -> float | None:
    """A share of a budget, in (0, 1]."""
    found = _PERCENT.fullmatch(text)
    if found is None:
        complain("E204", f"{quoted(text)} is not a percent", "write a share of the budget such as 2%")
        return None
    if not found.group(2):
        complain(
            "E203", f"{quoted(text)} has no unit", f"write {float(found.group(1)):g}%" if len(text) < 12 else "write 2%"
        )
        return None
    value = float(found.group(1))
    if not 0.0 < value <= 100.0:
        complain("E204", f"{quoted(text)} is not above 0 and at most 100", "write a share of the budget such as 2%")
        return None
    return round(value / 100.0, 12)


def share(text: str, signal: Signal, complain: Complain) -> float | None:
    """A percent as a share in (0, 1)."""
    found = _PERCENT.fullmatch(text)
    if found is None:
        complain("E204", f"{quoted(text)} is not a percent", "write a number such as 99 or 99.9")
        return None
    percent = float(found.group(1))
    if 0.0 < percent < 1.0:
        fix = f"did you mean {percent * 100:g}? percents run from 0 to 100"
        complain("E204", f"{quoted(text)} is less than one percent", fix)
        return None
    if not 0.0 < percent < 100.0:
        complain("E204", f"{quoted(text)} is not inside (0, 100)", "write a number such as 99 or 99.9")
        return None
    if signal not in (Signal.SUCCESS, Signal.GOODPUT) and not 50.0 <= percent <= 99.9:
        complain("E204", f"{quoted(text)} is not from 50 to 99.9", "write a percentile such as 99 or 99.9")
        return None
    return round(percent / 100.0, 12)


def turns(text: str, complain: Complain) -> tuple[int, int | None] | None:
    """An inclusive range of turns (1-based); the end is None where it is open."""
    found = _TURNS.fullmatch(text)
    if found is None or (found["at_least"] and found["high"]):
        complain("E208", f"{quoted(text)} is not a range of turns", 'write ">=2", "1" or "2..5"')
        return None
    low = int(found["low"])
    high = int(found["high"]) if found["high"] else (None if found["at_least"] else low)
    if low < 1:
        complain("E208", f"{quoted(text)} starts before turn 1", 'turns count from 1; write ">=1" for all')
        return None
    if high is not None and high < low:
        complain("E208", f"{quoted(text)} ends before it starts", f'write "{high}..{low}"')
        return None
    return low, high


def signal_named(text: str, complain: Complain) -> Signal | None:
    """The signal of that name."""
    try:
        return Signal(text)
    except ValueError:
        complain("E202", f"unknown signal {quoted(text)}", did_you_mean(text, list(Signal)))
        return None


def objective(text: str, complain: Complain) -> Promise | None:
    """The one-line form of a promise; reports every part of it that is wrong."""
    compared = _COMPARISON.fullmatch(text)
    if compared is None:
        complain("E201", f"{quoted(text)} is not an objective", _OBJECTIVE_EXAMPLE)
        return None
    left, op, right = compared["left"], compared["op"], compared["right"]
    if left == Signal.SUCCESS:
        if op != ">=":
            complain("E201", f"success is compared with {quoted(op)}", "write success >= 99.9%")
        least = share(right, Signal.SUCCESS, complain)
        if least is not None and not right.endswith("%"):
            complain("E203", f"{quoted(right)} has no unit", f"write {right}%")
            return None
        return None if op != ">=" or least is None else Promise(Signal.SUCCESS, least, None)
    named = _PERCENTILE.fullmatch(left)
    if named is None:
        fix = f"write p99({left}) {op} {right}" if left in list(Signal) else _OBJECTIVE_EXAMPLE
        complain("E201", f"{quoted(left)} is not a percentile of a signal", fix)
        return None
    signal = signal_named(named["signal"], complain)
    if signal is Signal.SUCCESS:
        complain("E201", "success has no percentile", "write success >= 99.9%")
        return None
    if signal is Signal.GOODPUT:
        complain("E201", "goodput has no percentile", "write all_of: and percent: 97")
        return None
    if op != "<=":
        complain("E201", f"a latency is compared with {quoted(op)}", "write <=")
    part = share(named["percent"], signal or Signal.TTFT, complain)
    bound = limit(right, signal, complain)
    if signal is None or op != "<=" or part is None or bound is None:
        return None
    return Promise(signal, part, *bound)


def condition(text: str, complain: Complain) -> Condition | None:
    """One condition of goodput; a threshold of None is the turn's own where the signal has one."""
    if text == Signal.SUCCESS:
        return Condition(Signal.SUCCESS)
    compared = _COMPARISON.fullmatch(text)
    if compared is None:
        complain("E201", f"{quoted(text)} is not a condition", "write ttft <= 500ms, or success")
        return None
    left, op, right = compared["left"], compared["op"], compared["right"]
    if _PERCENTILE.fullmatch(left):
        complain(
            "E201",
            f"{quoted(left)}: a single turn has no percentile",
            "write ttft <= 500ms, and percent: beside all_of",
        )
        return None
    signal = signal_named(left, complain)
    if signal in (Signal.SUCCESS, Signal.GOODPUT):
        complain("E201", f"{signal} is compared with {quoted(right)}", "write ttft <= 500ms, or success alone")
        return None
    if op != "<=":
        complain("E201", f"a latency is compared with {quoted(op)}", "write <=")
    bound = limit(right, signal, complain)
    if signal is None or op != "<=" or bound is None:
        return None
    return Condition(signal, bound[0])


def _unit_fix(number: float) -> str:
    # Nobody promises 2 ms to a first token and nobody waits 500 s: offer the reading that is likely, first.
    if not math.isfinite(number):
        return "write a unit after a smaller number"
    if number >= 10:
        return f"write {number:g}ms or {number / 1000:g}s"
    return f"write {number:g}s or {number * 1000:g}ms"
