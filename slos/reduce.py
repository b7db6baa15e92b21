"""From several SLOs to the two readings that drive a law: the worst TTFT and the worst TPOT or ITL.

The law has one price, and two SLOs pull it in opposite ways: those that wait on P (TTFT) and those that
suffer on D (TPOT, ITL). Within a side only the worst counts, the one with the largest value / threshold, so
that SLOs of any thresholds and percentiles compare. End-to-end time and success say too little about which
side hurts: they are judged and never drive. An SLO without evidence does not drive either, for a guess must
not move the price.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from estimators.clusters import Clusters

from .objective import Signal, Slo

_ON_D = (Signal.TPOT, Signal.ITL)


@dataclass(frozen=True, slots=True)
class SloReading:
    """What one SLO of one model shows at a tick."""

    slo: Slo
    value_s: float | None
    """The latency at the SLO's own percentile, in seconds; None without enough evidence."""
    ended: Clusters | None = None
    """The turns that ended since the last tick and those of them that missed the SLO, in blocks of one second (misses
    come in bursts); None where they cannot be counted, as in an engine's histogram."""
    late: int = 0
    """Turns that wait past the SLO now."""

    @property
    def severity(self) -> float | None:
        """value / threshold, above 1 when violated; None without evidence or without a threshold."""
        if self.value_s is None or self.slo.threshold_s is None or math.isnan(self.value_s):
            return None
        return self.value_s / self.slo.threshold_s


@dataclass(frozen=True, slots=True)
class Binding:
    """The reading that drives each side; None where no SLO of that side has evidence."""

    ttft: SloReading | None
    tpot: SloReading | None


@dataclass(frozen=True, slots=True)
class Driving:
    """A model's SLOs by what they may do, each in the order of declaration."""

    ttft: tuple[Slo, ...]
    tpot: tuple[Slo, ...]
    judged_only: tuple[Slo, ...]


def driving(slos: Iterable[Slo], model: str) -> Driving:
    """Sorts the SLOs that cover `model` into those that can drive its law, by side, and those only judged."""
    ttft: list[Slo] = []
    tpot: list[Slo] = []
    judged_only: list[Slo] = []
    for slo in slos:
        if not slo.match.covers_model(model):
            continue
        if slo.match.streaming is False or slo.by_request:
            judged_only.append(slo)  # no token times, or no one threshold: never a reading
        elif slo.signal is Signal.TTFT:
            ttft.append(slo)
        elif slo.signal in _ON_D:
            tpot.append(slo)
        else:
            judged_only.append(slo)
    return Driving(tuple(ttft), tuple(tpot), tuple(judged_only))


def binding(readings: Iterable[SloReading]) -> Binding:
    """The worst reading of each side, of one model's readings; of equals, the first."""
    rows = list(readings)
    return Binding(
        ttft=_worst(row for row in rows if row.slo.signal is Signal.TTFT),
        tpot=_worst(row for row in rows if row.slo.signal in _ON_D),
    )


def _worst(readings: Iterable[SloReading]) -> SloReading | None:
    worst: SloReading | None = None
    worst_severity = -math.inf
    for reading in readings:
        severity = reading.severity
        if severity is not None and severity > worst_severity:
            worst, worst_severity = reading, severity
    return worst
