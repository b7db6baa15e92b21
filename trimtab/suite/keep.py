"""Runs kept in a folder, one file each, so that a suite of an hour can be stopped and taken up again.

A run is a function of its job and of the code that runs it, so both are in its path:
`FOLDER/CODE/h1.controller.200.JOB.run`, where CODE is a digest of the packages' files. What only says which runs there
are (this package) is left out of it: what a job says is in JOB. Files are pickles: read only folders that you wrote.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import joblib

from ..runs import Job, Run, run_one

ROOT = Path(__file__).resolve().parents[2]
CODE = ("controller", "router", "estimators", "slos", "emulator", "trimtab")


@dataclass(frozen=True, slots=True)
class Keep:
    """Runs jobs, or reads what they left before."""

    folder: Path

    def __call__(self, job: Job) -> Run:
        """The run, from its file if there is one."""
        path = self.folder / f"{job.scenario.name}.{job.policy}.{job.seed}.{joblib.hash(job)[:12]}.run"
        try:
            kept = pickle.loads(path.read_bytes())
        except (OSError, EOFError, pickle.UnpicklingError):
            kept = None
        if isinstance(kept, Run):
            return kept
        run = run_one(job)
        half = path.with_suffix(f".{os.getpid()}")
        half.write_bytes(pickle.dumps(run))
        half.replace(path)
        return run


def keep_in(folder: Path) -> Keep:
    """For the code as it is. Raises OSError."""
    digest = hashlib.sha256()
    for path in _sources():
        digest.update(f"{path.relative_to(ROOT)}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    own = folder / digest.hexdigest()[:12]
    own.mkdir(parents=True, exist_ok=True)
    return Keep(own)


def _sources() -> Iterator[Path]:
    """Code and tables."""
    here = Path(__file__).parent
    for package in CODE:
        for path in sorted((ROOT / package).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and here not in path.parents:
                yield path
