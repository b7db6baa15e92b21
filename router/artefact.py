"""The table artefact: what Phase 1 measured and what was made of it, as one JSON document that names its
origin.

    format, model, hardware, topology, engine, date, source, command, seed, samples
    latency_model   ten constants (router/latency.py) and how well they fit
    table           axes, saved_ms, cost (router/table.py)
    paper           cells: context, turn2, qps, and the two arms' n, success, mean and P99 of TTFT and TPOT, tokens
                    per second
    missing         cells that were asked for and are not there, with the reason; only if there are any

A document that does not hold together is refused with the place and the reason; nothing is guessed.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields

from .latency import LatencyModel
from .paper_table import QPS_LEVELS, TURN2_TYPES, CellKey, ContextClass, PaperCell, PaperTable
from .policy import TableKey, Tables
from .table import Axes, LoadAwareTable

FORMAT = 1
MAX = sys.float_info.max
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
    text: str
    missing: Mapping[str, str] = field(default_factory=dict)
    """Cells that were asked for and could not be measured, with the reason."""

    @property
    def key(self) -> TableKey:
        """What it is a table of."""
        return TableKey(self.origin.model, self.origin.topology)

    def tables(self) -> Tables:
        """What a policy carries."""
        paper = PaperTable({cell.key: cell.relative() for cell in self.cells}) if self.cells else None
        return Tables(self.table, paper, self.origin.source, self.digest)


def dump(
    origin: Origin,
    table: LoadAwareTable,
    fit: Mapping[str, float],
    cells: tuple[MeasuredCell, ...],
    missing: Mapping[str, str] | None = None,
) -> str:
    """The document as text: the same input gives the same bytes."""
    head: dict[str, object] = {"format": FORMAT, **asdict(origin)}
    head["latency_model"] = {**asdict(table.model), "fit": dict(fit)}
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
    axes = json.dumps(asdict(table.axes))
    saved, cost = _numbers(table.saved_ms), _numbers(table.cost)
    body = f' "table": {{\n  "axes": {axes},\n  "saved_ms": {saved},\n  "cost": {cost}\n }}'
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
    if missing:
        lines.append(f' "missing": {json.dumps(dict(missing))}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _numbers(values: tuple[float, ...]) -> str:
    return "[" + ",".join(f"{value:g}" if abs(value) < 1e5 else f"{value:.1f}" for value in values) + "]"


def load(text: str, name: str) -> Artefact:
    """Parse a document. Raises ArtefactError; `name` is the file for its message."""
    try:
        return _artefact(json.loads(text), text)
    except json.JSONDecodeError as error:
        raise ArtefactError(f"{name}:{error.lineno}:{error.colno} is no JSON: {error.msg}") from None
    except RecursionError:
        raise ArtefactError(f"{name}: a table artefact is not nested that deep") from None
    except ValueError as error:
        raise ArtefactError(f"{name}: {error}") from None


def _artefact(value: object, text: str) -> Artefact:
    if not isinstance(value, dict):
        raise ValueError("a table artefact is a JSON object")
    if value.get("format") != FORMAT:
        raise ValueError(f"format {value.get('format')!r:.40} is not {FORMAT}; rebuild it with `trimtab calibrate`")
    document = _members(value, "", (*_names(Origin), "latency_model", "table", "paper"), others=True)
    origin = Origin(
        model=_text(document["model"], "model"),
        hardware=_text(document["hardware"], "hardware"),
        topology=_text(document["topology"], "topology"),
        engine=_text(document["engine"], "engine"),
        date=_text(document["date"], "date"),
        source=_text(document["source"], "source"),
        command=_text(document["command"], "command"),
        seed=_count(document["seed"], "seed"),
        samples=_count(document["samples"], "samples"),
    )
    if origin.source not in SOURCES:
        raise ValueError(f"source {origin.source!r:.40} is none of {', '.join(SOURCES)}")
    constants = _members(document["latency_model"], "latency_model.", (*_names(LatencyModel), "fit"))
    fit = _members(constants.pop("fit"), "latency_model.fit.", (), others=True)
    model = LatencyModel(**{key: _number(ms, f"latency_model.{key}") for key, ms in constants.items()})
    table = _members(document["table"], "table.", ("axes", "saved_ms", "cost"))
    axes = _members(table["axes"], "table.axes.", _names(Axes))
    load_aware = LoadAwareTable(
        Axes(**{axis: _floats(centres, f"table.axes.{axis}") for axis, centres in axes.items()}),
        model,
        _floats(table["saved_ms"], "table.saved_ms"),
        _floats(table["cost"], "table.cost"),
    )
    rows = _list(_members(document["paper"], "paper.", ("cells",))["cells"], "paper.cells")
    cells = tuple(_cell(row, f"paper.cells[{at}].") for at, row in enumerate(rows))
    for key, times in Counter(cell.key for cell in cells).items():
        if times > 1:
            raise ValueError(f"paper.cells has {times} cells {key}")
    errors = {key: _number(error, f"latency_model.fit.{key}") for key, error in fit.items()}
    absent = _members(document.get("missing", {}), "missing.", (), others=True)
    missing = {name: _text(why, f"missing.{name}") for name, why in absent.items()}
    return Artefact(origin, load_aware, errors, cells, hashlib.sha256(text.encode()).hexdigest(), text, missing)


def _cell(value: object, place: str) -> MeasuredCell:
    row = _members(value, place, ("context", "turn2", "qps", "x0", "x1"))
    context, turn2 = _text(row["context"], f"{place}context"), _text(row["turn2"], f"{place}turn2")
    qps = _number(row["qps"], f"{place}qps")
    if context not in list(ContextClass):
        raise ValueError(f"{place}context {context!r:.40} is none of {', '.join(ContextClass)}")
    if turn2 not in TURN2_TYPES:
        raise ValueError(f"{place}turn2 {turn2!r:.40} is none of the nine types")
    if qps not in QPS_LEVELS:
        raise ValueError(f"{place}qps {qps:g} is no level of the grid")
    return MeasuredCell(
        ContextClass(context), turn2, qps, _arm(row["x0"], f"{place}x0."), _arm(row["x1"], f"{place}x1.")
    )


def _arm(value: object, place: str) -> Arm:
    values = _members(value, place, _names(Arm))
    success = _number(values["success"], f"{place}success")
    if not 0 <= success <= 1:
        raise ValueError(f"{place}success is a share, 0..1, got {success:g}")
    return Arm(
        n=_count(values["n"], f"{place}n"),
        success=success,
        ttft_mean_ms=_latency(values["ttft_mean_ms"], f"{place}ttft_mean_ms"),
        ttft_p99_ms=_latency(values["ttft_p99_ms"], f"{place}ttft_p99_ms"),
        tpot_mean_ms=_latency(values["tpot_mean_ms"], f"{place}tpot_mean_ms"),
        tpot_p99_ms=_latency(values["tpot_p99_ms"], f"{place}tpot_p99_ms"),
        tokens_per_s=_number(values["tokens_per_s"], f"{place}tokens_per_s"),
    )


def _names(kind: type[Arm | Axes | LatencyModel | Origin]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def _members(value: object, place: str, names: Collection[str], *, others: bool = False) -> dict[str, object]:
    """A JSON object that has these members and, unless `others`, no more. `place` ends with a dot."""
    if not isinstance(value, dict):
        raise ValueError(f"{place.removesuffix('.')} is no object: {value!r:.40}")
    for name in names:
        if name not in value:
            raise ValueError(f"{place}{name} is missing")
    unknown = [] if others else sorted(value.keys() - set(names))
    if unknown:
        raise ValueError(f"{place}{unknown[0]} is unknown")
    return dict(value)


def _list(value: object, place: str) -> list[object]:
    if not isinstance(value, list):
        raise ValueError(f"{place} is no list: {value!r:.40}")
    return value


def _text(value: object, place: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{place} is no text: {value!r:.40}")
    return value


def _number(value: object, place: str) -> float:
    # Whole numbers stay as they were written, so that a document written again is the same. The comparison also
    # keeps out NaN, and whole numbers that no float can hold.
    if isinstance(value, bool) or not isinstance(value, int | float) or not -MAX <= value <= MAX:
        raise ValueError(f"{place} is no finite number: {value!r:.40}")
    return value


def _floats(value: object, place: str) -> tuple[float, ...]:
    return tuple(_number(item, f"{place}[{at}]") for at, item in enumerate(_list(value, place)))


def _latency(value: object, place: str) -> float | None:
    if value is None:
        return None
    latency_ms = _number(value, place)
    if latency_ms < 0:
        raise ValueError(f"{place} is negative: {latency_ms:g}")
    return latency_ms


def _count(value: object, place: str) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{place} is no whole number >= 0: {value!r:.40}")
    return value
