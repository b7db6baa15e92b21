"""The same for machines: fit, targets and provenance. Shares, changes and errors are in 0..1; the errors of sizes are
relative, those of shares, changes and counts are differences (`trimtab/reproduce/target.py`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isnan

from ..agreement import Line
from .fit import ALL
from .target import Chapter

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where it comes from."""

    source: str
    command: str
    commit: str
    seed: int
    quick: bool
    measured: str
    """What it was held against."""
    versions: Mapping[str, str]
    machine: str
    took_s: float
    """For the report: the JSON is the same wherever and however fast it was made, but for the machine's name."""
    runs: Mapping[str, int]
    """Simulated runs by what for."""


def document(chapters: Mapping[str, Chapter], lines: Sequence[Line], about: Provenance) -> str:
    """The JSON text."""
    fits = {line.name: _line(line) for line in lines}
    content = {
        "format": FORMAT,
        "provenance": {name: value for name, value in asdict(about).items() if name != "took_s"},
        "overall": fits.pop(ALL, {}),
        "fit": fits,
        "targets": [
            {
                "name": found.target.name,
                "chapter": name,
                "what": found.target.what,
                "place": found.target.place,
                "unit": found.target.unit.value,
                "paper": found.target.paper,
                "measured": found.measured,
                "trimtab": found.trimtab,
                "interval": found.interval,
                "error": found.error,
                "against": found.against,
                "held_to": found.bound_text(),
                "verdict": found.verdict.value,
                "why": found.target.why,
            }
            for name, chapter in chapters.items()
            for found in chapter.findings
        ],
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _line(line: Line) -> dict[str, float | int | None]:
    """`spearman` is the lower of the two rank correlations."""
    ranks = [None if isnan(one.spearman) else one.spearman for one in (line.tpot, line.ttft)]
    known = [rank for rank in ranks if rank is not None]
    return {
        "points": line.ttft.n,
        "tpot_mape": line.tpot.mape,
        "ttft_p50_mape": line.ttft.mape,
        "spearman": min(known, default=None),
        "tpot_spearman": ranks[0],
        "ttft_p50_spearman": ranks[1],
    }
