"""Table artefacts on disk: those that ship with the package, and those that a user names."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path

from router.artefact import Artefact, ArtefactError, load
from router.policy import TableKey, Tables


@cache
def shipped() -> tuple[Artefact, ...]:
    """Every artefact in `trimtab/tables`, read and checked once a process."""
    folder = files("trimtab") / "tables"
    found = sorted((item for item in folder.iterdir() if item.name.endswith(".json")), key=lambda item: item.name)
    return tuple(load(item.read_text(encoding="utf-8"), item.name) for item in found)


def read(path: Path) -> Artefact:
    """One artefact from a file. Raises ArtefactError."""
    try:
        return load(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise ArtefactError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ArtefactError(f"{path}: byte {error.start} is not UTF-8") from None


def as_tables(artefacts: Iterable[Artefact]) -> dict[TableKey, Tables]:
    """Artefacts by model and topology; a later one replaces an earlier one of the same key."""
    return {artefact.key: artefact.tables() for artefact in artefacts}
