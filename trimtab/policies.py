"""The first policy of an installation, from its settings: shipped tables, the operator's own, the start price."""

from __future__ import annotations

from pathlib import Path

from router.artefact import Artefact
from router.policy import ANY_MODEL, Policy, TableKey, Tables, Weights

from .settings import Settings
from .shipped import read, shipped


def artefacts(settings: Settings) -> list[Artefact]:
    """Tables that ship with Trimtab, then those that the operator named. Raises ArtefactError."""
    return [*shipped(), *(read(Path(path)) for each in settings.each_model for path in each.tables)]


def tables_of(settings: Settings, found: list[Artefact]) -> dict[TableKey, Tables]:
    """By model and topology. What the operator named for a model also stands in for whatever its engines call it, and,
    with one model, for whatever they serve."""
    tables = {artefact.key: artefact.tables() for artefact in found}
    owners = [each.model for each in settings.each_model for _ in each.tables]
    for model, artefact in zip(owners, found[len(found) - len(owners) :], strict=True):
        if not settings.further:
            tables[TableKey(ANY_MODEL, artefact.origin.topology)] = artefact.tables()
        tables[TableKey(model, artefact.origin.topology)] = artefact.tables()
    return tables


def first_policy(settings: Settings, found: list[Artefact], version: int) -> Policy:
    """What holds until the controller has something better."""
    weights = Weights(1, 1) if settings.mode == "paper" else Weights.from_price(settings.price)
    return Policy(
        version,
        tables_of(settings, found),
        weights,
        mode=settings.mode,
        pin_x=settings.pin_x,
        without_table_tokens=settings.without_table_tokens,
        provenance="start of this installation",
    )
