"""Turn records, features and SLOs made by hand, with the few numbers that a test is about."""

from __future__ import annotations

from dataclasses import replace

from router.decision import Decision
from router.features import TurnFeatures
from router.placement import Placement
from router.record import TurnRecord
from router.turn import NodeId, Reason, Route
from slos.objective import Match, Outcome, Signal, Slo
from slos.reduce import Binding, SloReading

MODEL = "m"
TTFT = Slo("later-ttft", Signal.TTFT, 0.99, 2.0, Match(turn_min=2))
TPOT = Slo("tpot", Signal.TPOT, 0.99, 0.040)
FEATURES = TurnFeatures(
    model=MODEL,
    turn=2,
    n_ctx=3000,
    n_in=100,
    n_out=70,
    uncached_d=100,
    uncached_p=1000,
    p_backlog_ms=0.0,
    link_backlog_ms=0.0,
    d_backlog_ms=0.0,
    d_batch=4,
    d_kv_tokens=10_000,
    d_kv_capacity_tokens=400_000,
    qps=2.0,
    topology="2P_2D",
    prefill=NodeId("P0"),
    decode=NodeId("D0"),
    resident=True,
    replica=False,
)


def record(
    turn: int = 2,
    *,
    ttft_s: float | None = 0.5,
    tpot_s: float | None = 0.020,
    output_tokens: int = 100,
    outcome: Outcome = Outcome.COMPLETED,
    model: str = MODEL,
    streaming: bool = True,
    local: bool = True,
    cell: str = "d1p1c1b1",
    accepted_s: float = 0.0,
    waited_s: float = 3.0,
) -> TurnRecord:
    """One ended turn; a turn without an answer has neither time."""
    route = Route.APPEND_LOCAL if local else Route.PREFILL_TRANSFER
    return TurnRecord(
        request_id="r1",
        model=model,
        turn=turn,
        streaming=streaming,
        accepted_s=accepted_s,
        ended_s=accepted_s + waited_s,
        features=replace(FEATURES, model=model, turn=turn),
        decision=Decision(route, Reason.SCORE, 1.0, 1, cell),
        placement=Placement(None if local else NodeId("P0"), NodeId("D0"), route),
        attempts=1,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        e2e_s=waited_s,
        output_tokens=output_tokens,
        prompt_tokens=3100,
        cached_tokens=3000,
        outcome=outcome,
    )


def failed(turn: int = 2, outcome: Outcome = Outcome.FAILED, accepted_s: float = 0.0) -> TurnRecord:
    """A turn that ended without a token."""
    return record(turn, ttft_s=None, tpot_s=None, output_tokens=0, outcome=outcome, accepted_s=accepted_s)


def severities(ttft: float | None, tpot: float | None) -> Binding:
    """Readings at these multiples of their SLOs; None is no evidence on that side."""
    return Binding(
        None if ttft is None else SloReading(TTFT, ttft * (TTFT.threshold_s or 0)),
        None if tpot is None else SloReading(TPOT, tpot * (TPOT.threshold_s or 0)),
    )
