"""The emulated pair that stands against the real one: the tiny model's name, context, blocks and memory.

Block and context sizes are configuration, as they are of the real pair; so counts of raw prompts must be equal.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from emulator.profiles import LLAMA_3_1_8B_H100
from emulator.server import RunningFleet, serve

MODEL = "tiny"
MAX_MODEL_LEN = 8192
SPEED = 20.0
PROFILE = replace(LLAMA_3_1_8B_H100, model=MODEL, block_tokens=32, kv_capacity_tokens=65_536)
LEASE_S = PROFILE.lease_s / SPEED


@asynccontextmanager
async def pair() -> AsyncIterator[RunningFleet]:
    """A P and a D on free loopback ports."""
    running = await serve("1P_1D", PROFILE, base_port=0, speed=SPEED, max_model_len=MAX_MODEL_LEN)
    try:
        yield running
    finally:
        await running.close()
