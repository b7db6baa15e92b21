"""Turn records, features and SLOs made by hand, with the few numbers that a test is about."""

from __future__ import annotations

from dataclasses import replace

from controller.evidence import Evidence
from controller.laws.protocol import Sides
from estimators.clusters import Clusters
from router.decision import Decision
from router.features import TurnFeatures
from router.placement import Placement
from router.record import TurnRecord
from router.turn import NodeId, Reason, Route
from slos.objective import Match, Outcome, Signal, Slo
from slos.reduce import SloReading

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


def severities(ttft: float | None, tpot: float | None) -> Sides:
    """Both sides at these multiples of their SLOs, without counts; None is no evidence on that side."""
    values = [(TTFT, ttft), (TPOT, tpot)]
    readings = [SloReading(slo, None if times is None else times * (slo.threshold_s or 0)) for slo, times in values]
    return Evidence().sides(readings)


def counted(ttft: tuple[int, int] | None, tpot: tuple[int, int] | None) -> Sides:
    """Both sides from (misses, turns), spread evenly over seconds; None is no turn on that side."""
    readings = [
        SloReading(
            slo,
            _severity(bad, turns) * (slo.threshold_s or 0) if turns else None,
            Clusters.of([(0, 1)] * (turns - bad) + [(1, 1)] * bad),
        )
        for slo, counts in ((TTFT, ttft), (TPOT, tpot))
        for bad, turns in [counts or (0, 0)]
    ]
    return Evidence().after(readings).sides(readings)


def _severity(bad: int, turns: int) -> float:
    """On the right side of 1 for a P99."""
    return 1.2 if bad > 0.01 * turns else 0.8
