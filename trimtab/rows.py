"""From the records of one arm to the cell's own numbers and to what the latency model is fitted to.

It is the same for records of the simulator and of real engines. A router estimates the newest message's tokens
before the engine has counted them, so what a turn lacked is taken from the engine's own counts afterwards:

    prompt        usage's prompt_tokens
    lacked        prompt − the hit that the router believed in; or, where `by_engine`,
                  prompt − usage's cached_tokens, on the node that computed it

The two differ where a node evicted more or less than the router believed: in crowded cells with a long context. Where
`by_engine`, a local turn may also meet a backlog on P or the link, for it passes neither; turns are dear there. The
tables that ship are made with the router's belief, and without any backlog. Left out: turns that met a backlog, were
sent twice or failed (no TTFT row), runs with few turns (no step row).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from estimators.quantile import nearest_rank
from router.artefact import Arm, MeasuredCell
from router.record import TurnRecord
from slos.objective import Outcome

from .cells import TIMEOUT_S
from .simulate import Unfinished

MIN_STEP_TURNS = 40


@dataclass(frozen=True, slots=True)
class TtftRow:
    """One turn that met no backlog: what it lacked, and how long it took."""

    local: bool
    uncached_d: int
    uncached_p: int
    prompt: int
    batch: int
    ttft_ms: float


@dataclass(frozen=True, slots=True)
class StepRow:
    """Mean time per output token of a run, against mean batch, context tokens and appends on one D while it
    was steady."""

    batch: float
    context: float
    append_hz: float
    uncached_d: float
    """Of an append, mean; 1 without any."""
    prompt: float
    tpot_ms: float


@dataclass(frozen=True, slots=True)
class ArmRun:
    """One arm as it was measured, from `start_s` to the cut at `end_s`, in the records' own clock."""

    records: Sequence[TurnRecord]
    """Turns that ended before the cut."""
    unfinished: Sequence[Unfinished]
    """Turns in flight at the cut."""
    decode_nodes: int
    start_s: float
    end_s: float
    drained: Sequence[TurnRecord] = ()
    """Turns that ended after the cut, where somebody waited for them: they shared D with the others."""
    by_engine: bool = False
    """What a turn lacked is read from the engine's cached_tokens; only backlogs on a turn's own way spoil its TTFT."""


@dataclass(frozen=True, slots=True)
class CellResult:
    """One cell, both arms."""

    cell: MeasuredCell
    ttft_rows: tuple[TtftRow, ...]
    step_rows: tuple[StepRow, ...]


def arm(run: ArmRun) -> Arm:
    """The cell's own numbers at this x."""
    later = [r for r in run.records if r.turn > 1 and r.outcome is Outcome.COMPLETED]
    ttft = sorted(r.ttft_s * 1e3 for r in later if r.ttft_s is not None and r.ttft_s <= TIMEOUT_S)
    tpot = sorted(r.tpot_s * 1e3 for r in later if r.tpot_s is not None)
    good = bad = 0
    for record in run.records:
        in_time = record.outcome is Outcome.COMPLETED and record.ttft_s is not None and record.ttft_s <= TIMEOUT_S
        good += in_time
        bad += not in_time
    for unfinished in run.unfinished:
        waited_s = run.end_s - unfinished.accepted_s if unfinished.ttft_s is None else unfinished.ttft_s
        bad += waited_s > TIMEOUT_S
    tokens = sum(r.output_tokens for r in run.records)
    return Arm(
        n=len(ttft),
        success=round(good / (good + bad), 4) if good + bad else 0.0,
        ttft_mean_ms=round(fmean(ttft), 3) if ttft else None,
        ttft_p99_ms=round(nearest_rank(ttft, 0.99), 3) if ttft else None,
        tpot_mean_ms=round(fmean(tpot), 4) if tpot else None,
        tpot_p99_ms=round(nearest_rank(tpot, 0.99), 4) if tpot else None,
        tokens_per_s=round(tokens / (run.end_s - run.start_s), 1),
    )


def ttft_rows(run: ArmRun, limit: int) -> list[TtftRow]:
    """At most `limit` turns that met no backlog, spread over the arm."""
    rows = []
    for record in run.records:
        f = record.features
        on_p = 0.0 if run.by_engine and record.went_local else f.p_backlog_ms + f.link_backlog_ms
        if record.ttft_s is None or on_p > 0 or f.d_backlog_ms > 0:
            continue
        if record.outcome is not Outcome.COMPLETED or record.attempts > 1:
            continue
        uncached_d, uncached_p, prompt = lacked(record, run.by_engine)
        rows.append(TtftRow(record.went_local, uncached_d, uncached_p, prompt, f.d_batch, record.ttft_s * 1e3))
    stride = max(1, len(rows) // limit)
    return rows[::stride][:limit]


def step_row(run: ArmRun) -> StepRow | None:
    """Occupancy of D over the steady middle of a run, by Little's law from the records."""
    records = [
        r
        for r in (*run.records, *run.drained)
        if r.ttft_s is not None and r.tpot_s is not None and r.output_tokens >= 8
    ]
    if len(records) < MIN_STEP_TURNS:
        return None
    length_s = run.end_s - run.start_s
    begin_s, end_s = run.start_s + 0.3 * length_s, run.start_s + 0.8 * length_s
    busy_s = context_s = weight = steps_ms = 0.0
    for record in records:
        assert record.ttft_s is not None and record.tpot_s is not None
        first_s = record.accepted_s + record.ttft_s
        overlap_s = min(record.ended_s, end_s) - max(first_s, begin_s)
        if overlap_s <= 0:
            continue
        busy_s += overlap_s
        context_s += overlap_s * (record.prompt_tokens + record.output_tokens / 2)
        weight += overlap_s
        steps_ms += overlap_s * record.tpot_s * 1e3
    if weight == 0:
        return None
    span_s = (end_s - begin_s) * run.decode_nodes
    appends = [
        lacked(r, run.by_engine)
        for r in records
        if r.went_local and begin_s <= r.accepted_s + (r.ttft_s or 0.0) < end_s
    ]
    return StepRow(
        # A running sequence meets one more than the mean: itself.
        batch=busy_s / span_s + 1,
        context=(context_s / span_s) * (1 + span_s / busy_s),
        append_hz=len(appends) / span_s,
        uncached_d=fmean(uncached_d for uncached_d, _, _ in appends) if appends else 1.0,
        prompt=fmean(prompt for _, _, prompt in appends) if appends else 1.0,
        tpot_ms=steps_ms / weight,
    )


def lacked(record: TurnRecord, by_engine: bool) -> tuple[int, int, int]:
    """(tokens that D lacked, tokens that P lacked, prompt) of an answered turn."""
    f, prompt = record.features, record.prompt_tokens
    uncached_d = max(1, prompt - (f.prompt_tokens - f.uncached_d))
    uncached_p = max(1, prompt - (f.prompt_tokens - f.uncached_p))
    if not by_engine or record.cached_tokens is None:
        return uncached_d, uncached_p, prompt
    computed = max(1, prompt - record.cached_tokens)
    return (computed, uncached_p, prompt) if record.went_local else (uncached_d, computed, prompt)
