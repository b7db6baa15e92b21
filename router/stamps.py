"""When an answer left its engine: by the engine's own `Date` header, on our clock.

The two clocks differ by an unknown amount, so an answer's delay is compared with the shortest of the node's last ones:

    left_s = date_s + min(now_s - date_s of the last KEPT answers) - 1 s

for the header is cut to seconds. It errs to the early side: after a step of either clock, for KEPT answers; and where
an engine's server is so busy that it does not renew the header (uvicorn does at every tenth turn of its timer). What it
leaves out: the delay that all answers have, and whatever rewrites the header on the way.
"""

from __future__ import annotations

from collections import deque
from email.utils import parsedate_to_datetime

KEPT = 64
RESOLUTION_S = 1.0


class Stamps:
    """The delays of one node's answers."""

    def __init__(self) -> None:
        self._delays_s: deque[float] = deque(maxlen=KEPT)

    def left_s(self, date_s: float, now_s: float) -> float:
        """An answer with that stamp has come now: it left at this time or later."""
        self._delays_s.append(now_s - date_s)
        return date_s + min(self._delays_s) - RESOLUTION_S


def date_s(header: str | None) -> float | None:
    """Seconds since the epoch; None for a header that is not there or no date."""
    try:
        return parsedate_to_datetime(header).timestamp() if header else None
    except (ValueError, TypeError, OverflowError):
        return None
