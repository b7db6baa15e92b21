"""What is kept of a turn when it has ended: features, decision, placement, timing, outcome. No text of
anybody's."""

from __future__ import annotations

from dataclasses import dataclass

from slos.objective import Outcome
from slos.terms import NO_TERMS, Terms

from .decision import Decision
from .features import TurnFeatures
from .placement import Placement
from .turn import Route


@dataclass(frozen=True, slots=True)
class Refused:
    """A turn that no node could take: it leaves no record, but the SLOs judge it (`slos.objective.Measured`)."""

    model: str
    turn: int
    streaming: bool
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    output_tokens: int = 0
    outcome: Outcome = Outcome.REJECTED
    waited_s: float = 0.0
    terms: Terms = NO_TERMS


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One ended turn. It satisfies `slos.objective.Measured`."""

    request_id: str
    model: str
    turn: int
    streaming: bool
    accepted_s: float
    ended_s: float
    features: TurnFeatures
    decision: Decision
    placement: Placement
    attempts: int
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float
    output_tokens: int
    prompt_tokens: int
    cached_tokens: int | None
    outcome: Outcome
    terms: Terms = NO_TERMS
    """What the request said of its own SLOs; records from before there were such are read as saying nothing."""

    @property
    def waited_s(self) -> float:
        """Time since the request was accepted."""
        return self.e2e_s

    @property
    def went_local(self) -> bool:
        """The realised route computed the prompt where it was decoded."""
        return self.placement.realised is Route.APPEND_LOCAL
