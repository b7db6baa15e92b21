"""What one request says of its own SLOs: deadlines in headers, a class, and whose it is.

    x-slo-ttft-ms, x-slo-tpot-ms                  whole milliseconds; llm-d's names with x-llm-d- in front are aliases
    x-slo-class                                   a word that some SLO's match names; any other word counts as none

A deadline that is missing or not a whole number is none. One out of 1..600000 is moved to the nearer end, so that a
number that is too large can never turn into one that is small. The tenant is not the client's to say: it is the name
that the configuration gives to the API key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

MIN_MS, MAX_MS = 1, 600_000
TTFT_HEADERS = (b"x-slo-ttft-ms", b"x-llm-d-slo-ttft-ms")
TPOT_HEADERS = (b"x-slo-tpot-ms", b"x-llm-d-slo-tpot-ms")
CLASS_HEADER = b"x-slo-class"

_WHOLE = re.compile(rb"[0-9]{1,64}")


@dataclass(frozen=True, slots=True)
class Terms:
    """Empty and None: not said."""

    slo_class: str = ""
    tenant: str = ""
    ttft_s: float | None = None
    tpot_s: float | None = None

    @property
    def asked(self) -> bool:
        """The request carries a deadline of its own."""
        return self.ttft_s is not None or self.tpot_s is not None


NO_TERMS = Terms()


def read_terms(headers: Mapping[bytes, bytes], tenant: str, classes: frozenset[str]) -> Terms:
    """The terms of a request; `headers` by their names in lower case, `classes` are those that SLOs name."""
    given = headers.get(CLASS_HEADER, b"").decode("latin-1").strip()
    terms = Terms(
        given if given in classes else "",
        tenant,
        _deadline_s(headers, TTFT_HEADERS),
        _deadline_s(headers, TPOT_HEADERS),
    )
    return NO_TERMS if terms == NO_TERMS else terms


def _deadline_s(headers: Mapping[bytes, bytes], names: tuple[bytes, ...]) -> float | None:
    """Of the first of these headers that holds one."""
    for name in names:
        text = headers.get(name, b"").strip()
        if _WHOLE.fullmatch(text):
            return min(max(int(text), MIN_MS), MAX_MS) / 1000
    return None
