"""`trimtab fit`: an engine profile's constants from measured points.

Not to be confused with `trimtab.fit`, which fits the router's latency model. Seven constants are moved, the others
stay the base profile's: they cannot be told apart in such data. By formulas for an engine with little to do:

    local TTFT  = front + tokenise · u + wait + step(u beside b) + first_token
    TTFT via P  = front + tokenise · u + prefill(u) + hop + send(T) + receive stall + wait + step(b + 1) + first_token
    TPOT        = step(b) / (1 − turns per s on the node · what one of them stalls it)

u is what is computed of a prompt of T tokens, b the mean batch from tokens per second and TPOT, wait half a step
where there is a batch. TTFT rows are from levels up to 2 QPS, step rows from batches of four and more. Bounded least
squares (scipy) on relative errors; a weak pull to the base decides what the rows leave open. Every third row is
held out and gives the errors. Left out: steps beyond one token budget, contended links, what a client's cap does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from emulator.fleet import Role, parse_topology
from emulator.profiles import EngineProfile, StepTime
from router.artefact import Arm, Artefact
from router.paper_table import TURN2_TYPES, context_class

from .agreement import comparable
from .measured import Result
from .workloads import FIRST_TURNS

LOW_QPS = 2.0
MIN_BATCH = 4.0
MIN_ROWS = 12
PULL = 0.02
"""Weight of one constant's distance from the base (log ratio) against a row's relative error."""
CONSTANTS = (
    "linear_scale",
    "step_fixed_ms",
    "per_sequence_ms",
    "front_ms",
    "tokenise_ms_per_token",
    "link.fixed_ms",
    "link.per_token_ms",
)
_RANGE = 20.0  # a constant may become that many times larger or smaller
_TINY = 1e-3  # a base's zero is moved from here, in ms


class ProfileFitError(ValueError):
    """Data that no profile can be fitted to; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One number that was measured, and its circumstances. `via_p` concerns TTFT, `ttft` False means TPOT."""

    ttft: bool
    via_p: bool
    prompt: float
    uncached: float
    batch: float
    context: float
    turns_hz: float
    """Prompts that the decoding node takes in per second; `received` is the share that comes over the link."""
    received: float
    ms: float


@dataclass(frozen=True, slots=True)
class Errors:
    """Mean absolute relative error on held-out rows, 0..1, and how many there were; nan without any."""

    rows: int
    base: float
    fitted: float


@dataclass(frozen=True, slots=True)
class ProfileFit:
    """A profile, the constants that were moved (base, fitted), and errors by kind of row."""

    profile: EngineProfile
    moved: dict[str, tuple[float, float]]
    errors: dict[str, Errors]


def rows_of_points(results: Sequence[Result], base: EngineProfile) -> list[Seen]:
    """Rows from measured points of pure configurations (no replica beside P and D)."""
    rows: list[Seen] = []
    for result in comparable(results):
        point, roles = result.point, parse_topology(result.point.config)
        first, later = FIRST_TURNS[point.first], TURN2_TYPES.get(point.turn2)
        kinds = [role for role in (Role.DECODE, Role.APPEND, Role.REPLICA) if roles.get(role)]
        if len(kinds) != 1 or later is None:
            continue
        decoders = roles[kinds[0]]
        shape = _Shape(first, later, kinds[0], decoders, base)
        tpot_ms = fmean((result.first.tpot_mean_ms, result.later.tpot_mean_ms))
        rows += shape.step(tpot_ms, result.tokens_per_s)
        if point.qps <= LOW_QPS:
            rows.append(shape.turn(1, result.first.ttft_p50_ms, tpot_ms, result.tokens_per_s))
            rows.append(shape.turn(2, result.later.ttft_p50_ms, tpot_ms, result.tokens_per_s))
    return rows


def rows_of_artefact(artefact: Artefact, base: EngineProfile) -> list[Seen]:
    """Rows from the cells of `trimtab calibrate`: means of later turns, both arms."""
    decoders = parse_topology(artefact.origin.topology).get(Role.DECODE, 1)
    rows: list[Seen] = []
    firsts = {context_class(sum(first)): first for first in FIRST_TURNS.values()}
    for cell in artefact.cells:
        for role, arm in ((Role.DECODE, cell.x0), (Role.APPEND, cell.x1)):
            if not _usable(arm):
                continue
            assert arm.ttft_mean_ms is not None and arm.tpot_mean_ms is not None
            shape = _Shape(firsts[cell.context], TURN2_TYPES[cell.turn2], role, decoders, base)
            rows += shape.step(arm.tpot_mean_ms, arm.tokens_per_s)
            if cell.qps <= LOW_QPS:
                rows.append(shape.turn(2, arm.ttft_mean_ms, arm.tpot_mean_ms, arm.tokens_per_s))
    return rows


def _usable(arm: Arm) -> bool:
    return arm.success >= 0.99 and bool(arm.ttft_mean_ms) and bool(arm.tpot_mean_ms)


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a workload asks of one configuration."""

    first: tuple[int, int]
    later: tuple[int, int]
    role: Role
    decoders: int
    base: EngineProfile

    def turn(self, number: int, ttft_ms: float, tpot_ms: float, tokens_per_s: float) -> Seen:
        via_p = self.role is not Role.REPLICA and (number == 1 or self.role is Role.DECODE)
        prompt, uncached = self._prompt(number, via_p)
        batch = self._batch(tpot_ms, tokens_per_s)
        return Seen(True, via_p, prompt, uncached, batch, batch * self._context(), 0.0, 0.0, ttft_ms)

    def step(self, tpot_ms: float, tokens_per_s: float) -> list[Seen]:
        batch = self._batch(tpot_ms, tokens_per_s)
        if batch < MIN_BATCH:
            return []
        turns_hz = tokens_per_s / (self.first[1] + self.later[1]) * 2 / self.decoders
        received = {Role.REPLICA: 0.0, Role.APPEND: 0.5, Role.DECODE: 1.0}[self.role]
        local = [self._prompt(n, False)[1] for n in ((1, 2) if self.role is Role.REPLICA else (2,))]
        return [
            Seen(
                False,
                False,
                fmean(self._prompt(n, False)[0] for n in (1, 2)),
                fmean(local),
                batch,
                batch * self._context(),
                turns_hz,
                received,
                tpot_ms,
            )
        ]

    def _batch(self, tpot_ms: float, tokens_per_s: float) -> float:
        return tokens_per_s * tpot_ms / 1e3 / self.decoders

    def _context(self) -> float:
        """Mean context of a decoding sequence, by the time that each turn takes."""
        (n1, m1), (n2, m2) = self.first, self.later
        return (m1 * (n1 + m1 / 2) + m2 * (n1 + m1 + n2 + m2 / 2)) / (m1 + m2)

    def _prompt(self, number: int, via_p: bool) -> tuple[float, float]:
        """(prompt, what is computed of it)."""
        if number == 1:
            return float(self.first[0]), float(self.first[0])
        prompt = sum(self.first) + self.later[0]
        held = sum(self.first) - 1 if self.base.reuse_responses and not via_p else self.first[0]
        return float(prompt), float(prompt - held // self.base.block_tokens * self.base.block_tokens)


def fit_profile(rows: Sequence[Seen], base: EngineProfile, name: str, data: str) -> ProfileFit:
    """The base with its constants moved to the rows; `data` says in the provenance what they were. Raises
    ProfileFitError."""
    turns, steps = [r for r in rows if r.ttft], [r for r in rows if not r.ttft]
    for kind, some, fix in (("turns", turns, f"levels up to {LOW_QPS:g} QPS"), ("steps", steps, "more load")):
        if len(some) < MIN_ROWS:
            raise ProfileFitError(f"{len(some)} {kind} to fit to, and {MIN_ROWS} are needed: measure at {fix}")
    train = [r for some in (turns, steps) for at, r in enumerate(some) if at % 3]
    held_out = [r for some in (turns, steps) for at, r in enumerate(some) if at % 3 == 0]
    start = np.array([max(value, _TINY) for value in _values(base)])

    def residuals(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        profile = _moved(base, start * np.exp(logs))
        time = StepTime(profile)
        errors = [predicted_ms(profile, time, row) / row.ms - 1 for row in train]
        return np.array([*errors, *(PULL * float(value) for value in logs)])

    bound = log(_RANGE)
    result = least_squares(
        residuals, np.zeros_like(start), bounds=(-bound, bound), loss="soft_l1", f_scale=0.1, diff_step=[1e-3]
    )
    fitted = replace(
        _moved(base, np.array([float(f"{value:.5g}") for value in start * np.exp(result.x)])),
        name=name,
        provenance=f"fitted by `trimtab fit` to {data}; constants that it does not move are those of {base.name}",
    )
    kinds = {
        "local TTFT": [r for r in held_out if r.ttft and not r.via_p],
        "TTFT via P": [r for r in held_out if r.ttft and r.via_p],
        "TPOT": [r for r in held_out if not r.ttft],
    }
    errors = {kind: Errors(len(some), _error(base, some), _error(fitted, some)) for kind, some in kinds.items()}
    moved = dict(zip(CONSTANTS, zip(_values(base), _values(fitted, base), strict=True), strict=True))
    return ProfileFit(fitted, moved, errors)


def predicted_ms(profile: EngineProfile, time: StepTime, row: Seen) -> float:
    """The formula of the row's kind."""
    batch, step = row.batch, _step_ms(time, row.batch, row.context)
    if not row.ttft:
        chunk = time.mixed_ms(round(batch), round(row.context), [_chunk(row)], 0.0)
        stall = row.received * profile.link.receive_stall_ms + (1 - row.received) * max(0.0, chunk - step)
        return step / max(0.05, 1 - row.turns_hz * stall / 1e3)
    wait = min(1.0, batch) * step / 2
    front = profile.front_ms + profile.tokenise_ms_per_token * row.uncached + wait + profile.first_token_ms
    if not row.via_p:
        return front + time.mixed_ms(round(batch), round(row.context), [_chunk(row)], 0.0)
    link, tokens = profile.link, round(row.prompt)
    sent = link.send_ms(tokens, 0, False, profile.kv_bytes_per_token)
    prefill = time.mixed_ms(0, 0, [_chunk(row)], 0.0)
    stall = link.stall_ms(tokens, profile.kv_bytes_per_token)
    return front + prefill + link.hop_ms + sent + stall + _step_ms(time, batch + 1, row.context + row.prompt)


def _chunk(row: Seen) -> tuple[int, int]:
    return round(row.uncached), round(row.prompt - row.uncached)


def _step_ms(time: StepTime, batch: float, context: float) -> float:
    """Between whole batches, on the line between them."""
    low = max(1, int(batch))
    share = max(0.0, batch - low)
    return (1 - share) * time.decode_base_ms(low) + share * time.decode_base_ms(low + 1) + time.kv_read * context


def _error(profile: EngineProfile, rows: Sequence[Seen]) -> float:
    time = StepTime(profile)
    return fmean(abs(predicted_ms(profile, time, row) / row.ms - 1) for row in rows) if rows else float("nan")


def _values(profile: EngineProfile, base: EngineProfile | None = None) -> list[float]:
    scale = 1.0 if base is None else profile.linear_ms[0][1] / base.linear_ms[0][1]
    link = profile.link
    own = (profile.step_fixed_ms, profile.per_sequence_ms, profile.front_ms, profile.tokenise_ms_per_token)
    return [scale, *own, link.fixed_ms, link.per_token_ms]


def _moved(base: EngineProfile, values: NDArray[np.float64]) -> EngineProfile:
    scale, step_fixed, per_sequence, front, tokenise, fixed, per_token = (float(value) for value in values)
    return replace(
        base,
        linear_ms=tuple((tokens, ms * scale) for tokens, ms in base.linear_ms),
        step_fixed_ms=step_fixed,
        per_sequence_ms=per_sequence,
        front_ms=front,
        tokenise_ms_per_token=tokenise,
        link=replace(base.link, fixed_ms=fixed, per_token_ms=per_token),
    )
