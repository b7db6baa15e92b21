"""An engine that is not what the router's table was made from, for scenarios that ask what a wrong model costs.

Every constant is off by `OFF` up or down, drawn by the run's seed: GEMM time, KV reads, attention, the fixed part of a
step, the part per sequence, the front and the first token, and what the link takes. Beside that the time of a step is
convex in its tokens: `BEND` more at `BENT_AT` tokens, and in proportion below, so that long appends stall more than
short ones promise. The router's table and latency model stay as shipped.
"""

from __future__ import annotations

from dataclasses import replace

from numpy.random import Generator

from emulator.profiles import EngineProfile

OFF = 0.3
BEND, BENT_AT = 0.3, 8192


def misfit(engine: EngineProfile, rng: Generator) -> EngineProfile:
    """The engine as it really is."""
    off = [1 + OFF * (1 if rng.random() < 0.5 else -1) for _ in range(8)]
    linear, kv_read, attention, fixed, per_sequence, front, first, send = off
    link = engine.link
    return replace(
        engine,
        name=f"{engine.name}, misfit",
        linear_ms=tuple((at, ms * linear * (1 + BEND * min(1.0, at / BENT_AT))) for at, ms in engine.linear_ms),
        kv_read_ms_per_token=engine.kv_read_ms_per_token * kv_read,
        attention_ms_per_token2=engine.attention_ms_per_token2 * attention,
        step_fixed_ms=engine.step_fixed_ms * fixed,
        per_sequence_ms=engine.per_sequence_ms * per_sequence,
        front_ms=engine.front_ms * front,
        tokenise_ms_per_token=engine.tokenise_ms_per_token * front,
        first_token_ms=engine.first_token_ms * first,
        link=replace(
            link, fixed_ms=link.fixed_ms * send, bandwidth_gb_s=link.bandwidth_gb_s / send, hop_ms=link.hop_ms * send
        ),
    )
