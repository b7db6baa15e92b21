"""The table artefact: what Phase 1 measured and what was made of it, as one JSON document that names its
origin.

    format, model, hardware, topology, engine, date, source, command, seed, samples
    latency_model   ten constants (router/latency.py) and how well they fit
    table           axes, saved_ms, cost (router/table.py)
    paper           cells: context, turn2, qps, and the two arms' n, success, mean and P99 of TTFT and TPOT, tokens per second

A document that does not hold together is refused with the place and the reason; nothing is guessed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from .latency import LatencyModel
from .paper_table import QPS_LEVELS, TURN2_TYPES, CellKey, ContextClass, PaperCell, PaperTable
from .policy import TableKey, Tables
from .table import Axes, LoadAwareTable

FORMAT = 1
SOURCES = ("emulated", "vllm-cpu", "measured")


class ArtefactError(ValueError):
    """A table artefact that cannot be used. The message names the file, the place and the reason."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One arm of one cell. Latencies in ms, None without an answered later turn; `success` is a share of
    turns, 0..1."""

    n: int
    success: float
    ttft_mean_ms: float | None
    ttft_p99_ms: float | None
    tpot_mean_ms: float | None
    tpot_p99_ms: float | None
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class MeasuredCell:
    """Phase 1's result for one workload and QPS level: x=0 and x=1."""

    context: ContextClass
    turn2: str
    qps: float
    x0: Arm
    x1: Arm

    @property
    def key(self) -> CellKey:
        """Where it belongs in the paper's table."""
        return CellKey(self.context, self.turn2, self.qps)

    def relative(self) -> PaperCell:
        """Equation 1's relative deltas of the means."""
        return PaperCell(
            _relative(self.x0.ttft_mean_ms, self.x1.ttft_mean_ms, gain=True),
            _relative(self.x0.tpot_mean_ms, self.x1.tpot_mean_ms, gain=False),
            self.x0.success,
            self.x1.success,
            self.x0.n,
            self.x1.n,
        )


def _relative(x0: float | None, x1: float | None, *, gain: bool) -> float | None:
    if x0 is None or x1 is None or x0 <= 0:
        return None
    return (x0 - x1) / x0 if gain else (x1 - x0) / x0


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an artefact comes from."""

    model: str
    hardware: str
    topology: str
    engine: str
    date: str
    source: str
    command: str
    seed: int
    samples: int


@dataclass(frozen=True, slots=True)
class Artefact:
    """A parsed artefact."""

    origin: Origin
    table: LoadAwareTable
    fit: Mapping[str, float]
    cells: tuple[MeasuredCell, ...]
    digest: str

    @property
    def key(self) -> TableKey:
        """What it is a table of."""
        return TableKey(self.origin.model, self.origin.topology)

    def tables(self) -> Tables:
        """What a policy carries."""
        paper = PaperTable({cell.key: cell.relative() for cell in self.cells}) if self.cells else None
        return Tables(self.table, paper, self.origin.source, self.digest)


def dump(origin: Origin, table: LoadAwareTable, fit: Mapping[str, float], cells: tuple[MeasuredCell, ...]) -> str:
    """The document as text: the same input gives the same bytes."""
    head: dict[str, object] = {"format": FORMAT, **asdict(origin)}
    head["latency_model"] = {**asdict(table.model), "fit": dict(fit)}
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
    axes = json.dumps(asdict(table.axes))
    body = f' "table": {{\n  "axes": {axes},\n  "saved_ms": {_numbers(table.saved_ms)},\n  "cost": {_numbers(table.cost)}\n }}'
    rows = ",\n".join(
        "   "
        + json.dumps(
            {
                "context": c.context.value,
                "turn2": c.turn2,
                "qps": c.qps,
                "x0": asdict(c.x0),
                "x1": asdict(c.x1),
            }
        )
        for c in cells
    )
    lines += [body, f' "paper": {{"cells": [\n{rows}\n ]}}']
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _numbers(values: tuple[float, ...]) -> str:
    return "[" + ",".join(f"{value:g}" if abs(value) < 1e5 else f"{value:.1f}" for value in values) + "]"


def load(text: str, name: str) -> Artefact:
    """Parse a document. Raises ArtefactError; `name` is the file for its message."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise ArtefactError(f"{name}:{error.lineno}:{error.colno} is no JSON: {error.msg}") from None
    if not isinstance(document, dict):
        raise ArtefactError(f"{name}: a table artefact is a JSON object")
    if document.get("format") != FORMAT:
        raise ArtefactError(
            f"{name}: format {document.get('format')!r} is not {FORMAT}; rebuild it with `trimtab calibrate`"
        )
    place = "origin"
    try:
        origin = Origin(**{field.name: document[field.name] for field in fields(Origin)})
        if origin.source not in SOURCES:
            raise ValueError(f"source {origin.source!r} is none of {', '.join(SOURCES)}")
        place = "latency_model"
        constants = dict(document["latency_model"])
        fit = {key: float(value) for key, value in constants.pop("fit").items()}
        model = LatencyModel(**{key: float(value) for key, value in constants.items()})
        place = "table"
        table = document["table"]
        axes = Axes(**{axis: tuple(float(at) for at in centres) for axis, centres in table["axes"].items()})
        saved = tuple(float(value) for value in table["saved_ms"])
        load_aware = LoadAwareTable(axes, model, saved, tuple(float(value) for value in table["cost"]))
        cells = []
        for at, row in enumerate(document["paper"]["cells"]):
            place = f"paper.cells[{at}]"
            cells.append(_cell(row))
    except KeyError as error:
        raise ArtefactError(f"{name}: {place}: {error.args[0]!r} is missing") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise ArtefactError(f"{name}: {place}: {error}") from None
    return Artefact(origin, load_aware, fit, tuple(cells), hashlib.sha256(text.encode()).hexdigest())


def _cell(row: Mapping[str, object]) -> MeasuredCell:
    turn2, qps = row["turn2"], row["qps"]
    if turn2 not in TURN2_TYPES:
        raise ValueError(f"turn2 {turn2!r} is none of the nine types")
    if qps not in QPS_LEVELS:
        raise ValueError(f"qps {qps!r} is no level of the grid")
    assert isinstance(turn2, str) and isinstance(qps, int | float)
    arms = []
    for arm in ("x0", "x1"):
        values = row[arm]
        if not isinstance(values, dict):
            raise ValueError(f"{arm} is no object")
        arms.append(Arm(**values))
        if not 0 <= arms[-1].success <= 1:
            raise ValueError(f"{arm}.success is a share, 0..1, got {arms[-1].success}")
    return MeasuredCell(ContextClass(str(row["context"])), turn2, float(qps), arms[0], arms[1])
