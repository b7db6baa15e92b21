"""The measured points of the PPD paper: what two tables in a directory say, in the shape that the simulator gives too.

`points_3060.csv` is the synthetic grid: 17 configurations × 18 workloads × 10 QPS levels, two turns a conversation.
`real_conversations.csv` are ShareGPT and WildChat runs of the same fleet. The files are not part of this project; a
reader that does not find them says where it looked. Units: ms, seconds, requests.

What the numbers contain that their names do not say (docs/explanation/emulator.md): at most 50 requests in flight, so
the TTFT of first turns holds the wait in the client; pD nodes that take only some .83 of their later turns.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .workloads import PAPER_WORKLOADS

POINTS = "points_3060.csv"
REAL = "real_conversations.csv"
FOLDER = "ppd_measured"
CLEAN = 0.99
"""Share of answered requests from which a point says something about speed."""


class MeasuredError(ValueError):
    """A file of measured points that cannot be read; the message names file, line and column."""


@dataclass(frozen=True, slots=True)
class Point:
    """One run of the grid."""

    config: str
    first: str
    turn2: str
    qps: float

    @property
    def workload(self) -> str:
        """Its name in `trimtab/workloads.py`."""
        return f"{self.first}/{self.turn2}"


@dataclass(frozen=True, slots=True)
class TurnStats:
    """Statistics of the answered turns of one number, in ms. All 0 without any."""

    n: int = 0
    ttft_mean_ms: float = 0.0
    ttft_p50_ms: float = 0.0
    ttft_p99_ms: float = 0.0
    tpot_mean_ms: float = 0.0
    tpot_p99_ms: float = 0.0
    e2e_mean_ms: float = 0.0
    e2e_p99_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Result:
    """What a run of one point came to, measured or simulated."""

    point: Point
    total: int
    failed: int
    duration_s: float
    tokens_per_s: float
    first: TurnStats
    later: TurnStats

    @property
    def success(self) -> float:
        """Share of requests that were answered, 0..1."""
        return 1 - self.failed / self.total if self.total else 0.0


@dataclass(frozen=True, slots=True)
class RealRun:
    """One run of real conversations; `routed` where the authors' table decided."""

    dataset: str
    config: str
    routed: bool
    qps: float
    conversations: int
    success: float
    first_ttft_p50_ms: float
    later: TurnStats
    tokens_per_s: float
    duration_s: float


def read_points(directory: Path) -> list[Result]:
    """The grid. Raises MeasuredError."""
    return [_point(row) for row in rows(directory, POINTS)]


def read_real(directory: Path) -> list[RealRun]:
    """The real conversations. Raises MeasuredError."""
    return [_real(row) for row in rows(directory, REAL)]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table; `place` is file and line."""

    place: str
    values: Mapping[str, str]

    def text(self, column: str) -> str:
        """A cell. Raises MeasuredError."""
        value = self.values.get(column)
        if value is None:
            raise MeasuredError(f"{self.place}: there is no column {column}")
        return value

    def number(self, column: str) -> float:
        """A cell as a number, 0 where it is empty. Raises MeasuredError."""
        text = self.text(column)
        try:
            return float(text or 0.0)
        except ValueError:
            raise MeasuredError(f"{self.place}: {column} is no number: {text!r:.40}") from None


def rows(directory: Path, name: str) -> Iterator[Row]:
    """The lines of a table in a directory, or in its folder of measured points. Raises MeasuredError."""
    path = directory / name
    if not path.is_file():
        path = directory / FOLDER / name
    if not path.is_file():
        raise MeasuredError(f"no {name} in {directory} or {directory / FOLDER}")
    with path.open(encoding="utf-8", newline="") as file:
        for number, values in enumerate(csv.DictReader(file), start=2):
            yield Row(f"{path}:{number}", values)


def _point(row: Row) -> Result:
    point = Point(row.text("config"), row.text("t1"), row.text("t2"), row.number("qps"))
    if point.workload not in PAPER_WORKLOADS:
        raise MeasuredError(
            f"{row.place}: t1/t2 is none of the paper's workloads, got {point.workload!r:.60}; "
            f"known: {', '.join(PAPER_WORKLOADS)}"
        )
    return Result(
        point,
        round(row.number("total")),
        round(row.number("failed")),
        row.number("duration_s"),
        row.number("tps"),
        TurnStats(
            round(row.number("t1_n")),
            row.number("t1_ttft_avg"),
            row.number("t1_ttft_p50"),
            row.number("t1_ttft_p99"),
            row.number("t1_tpot_avg"),
            0.0,  # not published
            row.number("t1_e2e_avg"),
            row.number("t1_e2e_p99"),
        ),
        TurnStats(
            round(row.number("t2_n")),
            row.number("t2_ttft_avg"),
            row.number("t2_ttft_p50"),
            row.number("t2_ttft_p99"),
            row.number("t2_tpot_avg"),
            row.number("t2_tpot_p99"),
            row.number("t2_e2e_avg"),
            row.number("t2_e2e_p99"),
        ),
    )


def _real(row: Row) -> RealRun:
    later = TurnStats(
        n=round(row.number("t2p_count")),
        ttft_mean_ms=row.number("t2p_ttft_avg"),
        ttft_p50_ms=row.number("t2p_ttft_p50"),
        ttft_p99_ms=row.number("t2p_ttft_p99"),
        tpot_mean_ms=row.number("t2p_tpot_avg"),
        e2e_mean_ms=row.number("t2p_e2e_avg"),
    )
    return RealRun(
        row.text("dataset"),
        row.text("config"),
        row.text("ppd_enabled") == "True",
        row.number("qps"),
        round(row.number("num_conversations")),
        row.number("success_turns_pct") / 100,
        row.number("t1_ttft_p50"),
        later,
        row.number("tokens_per_s"),
        row.number("duration_s"),
    )
