"""Whose promise comes first, as one signed error: above 0 more should go local (TTFT is short), below 0 less (TPOT is).

Each side comes as a badness: above 0 when the promise is missed, below when there is room, 0 without evidence.

    balanced, economic   room counts up to `comfort` only, then the larger badness wins: ttft - tpot
    ttft_first           TTFT alone while it is missed or nearly (above -room); TPOT has a say in what is left
    tpot_first           the same with sides changed

So under `ttft_first` an overload is TPOT's loss, and TTFT is kept at the edge of its promise.
"""

from __future__ import annotations

from .protocol import Action, Adjustment, Priority, Sides

DRIFT = 0.001
"""Of σ in a tick, where more local work saves transfers."""


def at_rest(priority: Priority, sigma: float, sides: Sides) -> Adjustment | None:
    """What to do while both promises are kept for sure: nothing, but that `economic` saves; None if they are not."""
    if not (sides.ttft.kept and sides.tpot.kept):
        return None
    if priority is Priority.ECONOMIC and sigma < 1:
        return Adjustment(min(1.0, sigma + DRIFT), Action.SAVE)
    return Adjustment(sigma, Action.HOLD)


def error(priority: Priority, ttft: float, tpot: float, comfort: float, room: float) -> float:
    """The signed error of two badnesses."""
    if priority is Priority.TTFT_FIRST:
        return _first(ttft, tpot, comfort, room)
    if priority is Priority.TPOT_FIRST:
        return -_first(tpot, ttft, comfort, room)
    return max(ttft, -comfort) - max(tpot, -comfort)


def _first(first: float, second: float, comfort: float, room: float) -> float:
    """The error towards the side that comes first."""
    if first > -room:
        return max(first, 0.0)
    return -max(second, -comfort) if second > 0 else 0.0
