"""The small languages of a scenario file's values, beside those of an SLO file (`slos/phrases.py`).

    rate       0.9/s  54/m  3000/h             a unit is always written
    bandwidth  50GB/s  400Gb/s                 bytes or bits, decimal
    number     0.4                             in a stated range
    tokens     3000                            whole
    lengths    3000, or {median, sigma, min, max}: log-normal, clipped; thinking times with units
    turns      2, or {mean, min, max}: geometric, clipped

Readers return None for what they cannot read, after telling the spot why; none raises. Codes beside those of
slos/problem.py: E301 no known name, E302 no number or out of range, E303 no rate, E304 no bandwidth, E305 a
trace that cannot be read, E306 a sweep of nothing, E307 promises that a run cannot be judged by.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import yaml

from emulator.workload import LogNormal, fixed
from slos import phrases
from slos.nodes import Spot, fields, scalar
from slos.problem import did_you_mean, quoted

_NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_RATE = re.compile(rf"({_NUMBER}) *(?:/ *([A-Za-z]*))?")
_BANDWIDTH = re.compile(rf"({_NUMBER}) *([A-Za-z/]*)")
_ZERO = re.compile(r"0+(?:\.0*)? *(?:ms|s|m|h)")
_PER_S = {"s": 1.0, "m": 60.0, "h": 3600.0}
_GB_S = {"GB/s": 1.0, "MB/s": 1e-3, "Gb/s": 1 / 8, "Gbit/s": 1 / 8}
_MAX_TOKENS = 10_000_000

LENGTH_KEYS = ("median", "sigma", "min", "max")
TURNS_KEYS = ("mean", "min", "max")


@dataclass(frozen=True, slots=True)
class Turns:
    """How many turns a conversation has."""

    mean: float
    low: int
    high: int


def rate_hz(spot: Spot) -> float | None:
    """Per second."""
    text = scalar(spot, "0.9/s")
    if text is None:
        return None
    found = _RATE.fullmatch(text)
    if found is None:
        spot.complain("E303", f"{quoted(text)} is not a rate", "write a number per time, such as 0.9/s")
        return None
    number, unit = found.groups()
    if unit not in _PER_S:
        what = "has no unit" if unit is None else "has an unknown unit"
        spot.complain("E303", f"{quoted(text)} {what}", f"write {float(number):g}/s (or /m, /h)")
        return None
    return float(number) / _PER_S[unit]


def bandwidth_gb_s(spot: Spot) -> float | None:
    """GB/s."""
    text = scalar(spot, "50GB/s")
    if text is None:
        return None
    found = _BANDWIDTH.fullmatch(text)
    if found is None or found[2] not in _GB_S or float(found[1]) <= 0:
        fix = f"write a positive number and a unit, such as 50GB/s; units are {', '.join(_GB_S)}"
        spot.complain("E304", f"{quoted(text)} is not a bandwidth", fix)
        return None
    return float(found[1]) * _GB_S[found[2]]


def seconds(spot: Spot, example: str, *, zero: bool = False) -> float | None:
    """A duration with its unit; 0s only where `zero`."""
    text = scalar(spot, example)
    if text is None:
        return None
    if zero and _ZERO.fullmatch(text):
        return 0.0
    return phrases.duration_s(text, spot.complain)


def number(spot: Spot, low: float, high: float, example: str) -> float | None:
    """In [low, high]."""
    text = scalar(spot, example)
    if text is None:
        return None
    try:
        value = float(text) if re.fullmatch(rf"[+-]?{_NUMBER}(?:[eE][+-]?\d+)?", text) else math.nan
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        span = f"a number of {low:g} or more" if high == math.inf else f"a number from {low:g} to {high:g}"
        spot.complain("E302", f"{quoted(text)} is not {span}", f"write {example}")
        return None
    return value


def whole(spot: Spot, low: int, example: str, high: int = _MAX_TOKENS) -> int | None:
    """A whole number in [low, high]."""
    text = scalar(spot, example)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not low <= int(text[:12]) <= high:
        spot.complain("E302", f"{quoted(text)} is not a whole number from {low} to {high}", f"write {example}")
        return None
    return int(text)


def one_of(spot: Spot, known: Sequence[str]) -> str | None:
    """One of the known names."""
    text = scalar(spot, known[0])
    if text is None or text in known:
        return text
    spot.complain("E301", f"{quoted(text)} is not known", did_you_mean(text, known))
    return None


def tokens(spot: Spot) -> LogNormal | None:
    """Lengths in tokens."""
    return _lengths(spot, lambda at: _float(whole(at, 1, "3000")))


def think_s(spot: Spot) -> LogNormal | None:
    """Thinking times."""
    return _lengths(spot, lambda at: seconds(at, "2s", zero=True))


def _lengths(spot: Spot, read: Callable[[Spot], float | None]) -> LogNormal | None:
    if not isinstance(spot.node, yaml.MappingNode):
        value = read(spot)
        return None if value is None else fixed(value)
    found = fields(spot, LENGTH_KEYS)
    if found is None or not has_all(spot, found, LENGTH_KEYS):
        return None
    median, low, high = (read(found[key]) for key in ("median", "min", "max"))
    sigma = number(found["sigma"], 0, 5, "0.8")
    if median is None or sigma is None or low is None or high is None:
        return None
    if not low <= high:
        found["max"].complain("E302", "is below min", "give the larger one to max")
        return None
    return LogNormal(median, sigma, low, high)


def turns(spot: Spot) -> Turns | None:
    """A fixed number, or geometric and clipped."""
    if not isinstance(spot.node, yaml.MappingNode):
        count = whole(spot, 1, "2", 1000)
        return None if count is None else Turns(count, count, count)
    found = fields(spot, TURNS_KEYS)
    if found is None or not has_all(spot, found, TURNS_KEYS):
        return None
    mean = number(found["mean"], 1, 1000, "4.2")
    low, high = whole(found["min"], 1, "2", 1000), whole(found["max"], 1, "16", 1000)
    if mean is None or low is None or high is None:
        return None
    if low > high:
        found["max"].complain("E302", "is below min", "give the larger one to max")
        return None
    return Turns(mean, low, high)


def has_all(spot: Spot, found: dict[str, Spot], keys: Sequence[str]) -> bool:
    """Whether all keys are there; complains of those that are not."""
    missing = [key for key in keys if key not in found]
    for key in missing:
        spot.complain("E103", f"{key} is missing", f"write {key}: and its value")
    return not missing


def _float(value: int | None) -> float | None:
    return None if value is None else float(value)
