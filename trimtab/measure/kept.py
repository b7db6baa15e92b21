"""The state file of a live calibration: one JSON line with the fleet's fingerprint, then one per finished cell, each on
disk before the next begins. A run that was broken off goes on from it; a line that was cut short is dropped.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from typing import IO

from router.artefact import Arm, MeasuredCell
from router.paper_table import ContextClass

from ..calibrate import CalibrationError
from ..cells import Cell
from ..rows import CellResult, StepRow, TtftRow

FORMAT = 1


class KeptError(CalibrationError):
    """A state file that this run cannot go on from; the message says why and what to do."""


@dataclass(slots=True)
class Kept:
    """Finished cells by name, and the file that they are in. Close it."""

    path: Path
    cells: dict[str, CellResult] = field(default_factory=dict)
    _file: IO[bytes] | None = None

    @classmethod
    def open(cls, path: Path, fingerprint: Mapping[str, object]) -> Kept:
        """Read what is there, or begin. Raises KeptError on another fleet's file, or one that is in use."""
        head = {"calibration": FORMAT, **fingerprint}
        try:
            file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b")
        except OSError as error:
            raise KeptError(f"{path}: {error.strerror}; name another file with --state") from None
        kept = cls(path, {}, file)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            kept._read(file, head)
        except BlockingIOError:
            kept.close()
            raise KeptError(f"{path} is in use by another calibration; name another file with --state") from None
        except BaseException:
            kept.close()
            raise
        return kept

    def add(self, cell: Cell, result: CellResult) -> None:
        """A cell is finished: on disk when this returns."""
        self._write({"cell": cell.name, **_as_json(result)})
        self.cells[cell.name] = result

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read(self, file: IO[bytes], head: Mapping[str, object]) -> None:
        good = 0
        for number, line in enumerate(file.read().splitlines(keepends=True), start=1):
            if not line.endswith(b"\n"):
                break  # cut short while it was written
            try:
                value = json.loads(line)
                if number == 1:
                    self._compare(value, head)
                else:
                    self.cells[str(value["cell"])] = _from_json(value)
            except (ValueError, KeyError, TypeError) as error:
                if isinstance(error, KeptError):
                    raise
                raise KeptError(
                    f"{self.path}:{number} is no line of a calibration; remove it or name another file with --state"
                ) from None
            good += len(line)
        file.truncate(good)
        file.seek(good)
        if not good:
            self._write(dict(head))

    def _compare(self, there: object, here: Mapping[str, object]) -> None:
        if not isinstance(there, dict) or "calibration" not in there:
            raise KeptError(f"{self.path} is no state of a calibration; name another file with --state")
        differences = _differences(there, json.loads(json.dumps(here)))
        if differences:
            raise KeptError(
                f"{self.path} was measured otherwise: {'; '.join(differences)}. Remove it, or name another file with "
                "--state"
            )

    def _write(self, value: Mapping[str, object]) -> None:
        assert self._file is not None, "closed"
        self._file.write(json.dumps(value, separators=(",", ":")).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def _differences(there: object, here: object, place: str = "") -> list[str]:
    """In words, e.g. `engines.D0.version was 0.31.0, is 0.32.0`."""
    if isinstance(there, dict) and isinstance(here, dict):
        names = [*there, *(name for name in here if name not in there)]
        return [
            words
            for name in names
            for words in _differences(there.get(name), here.get(name), f"{place}.{name}".lstrip("."))
        ]
    return [] if there == here else [f"{place} was {_short(there)}, is {_short(here)}"]


def _short(value: object) -> str:
    return "absent" if value is None else json.dumps(value)[:80]


def _as_json(result: CellResult) -> dict[str, object]:
    cell = result.cell
    return {
        "context": cell.context.value,
        "turn2": cell.turn2,
        "qps": cell.qps,
        "x0": asdict(cell.x0),
        "x1": asdict(cell.x1),
        "ttft_rows": [astuple(row) for row in result.ttft_rows],
        "step_rows": [astuple(row) for row in result.step_rows],
    }


def _from_json(value: Mapping[str, object]) -> CellResult:
    cell = MeasuredCell(
        ContextClass(str(value["context"])),
        str(value["turn2"]),
        float(value["qps"]),  # type: ignore[arg-type]
        Arm(**value["x0"]),  # type: ignore[arg-type]
        Arm(**value["x1"]),  # type: ignore[arg-type]
    )
    ttft = tuple(TtftRow(*row) for row in value["ttft_rows"])  # type: ignore[attr-defined]
    steps = tuple(StepRow(*row) for row in value["step_rows"])  # type: ignore[attr-defined]
    return CellResult(cell, ttft, steps)
