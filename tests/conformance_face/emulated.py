"""The emulated pair that stands against the real one: the tiny model's name, context, blocks and memory.

Block and context sizes are configuration, as they are of the real pair; so counts of raw prompts must be equal.
"""

from __future__ import annotations

from dataclasses import replace

from emulator.fleet import LoadFailure
from emulator.profiles import LLAMA_3_1_8B_H100
from emulator.server import serve

from .sheet import Sheet, ask

MODEL = "tiny"
MAX_MODEL_LEN = 8192
SPEED = 50.0
PROFILE = replace(LLAMA_3_1_8B_H100, model=MODEL, block_tokens=32, kv_capacity_tokens=65_536)


async def emulated_sheet(nonce: int) -> Sheet:
    """What an emulated pair of each policy answers."""
    fleets = []
    try:
        for policy in LoadFailure:
            fleets.append(
                await serve(
                    "1P_1D", PROFILE, base_port=0, speed=SPEED, max_model_len=MAX_MODEL_LEN, load_failure=policy
                )
            )
        (p, d), second = ((fleet.urls["P0"], fleet.urls["D0"]) for fleet in fleets)
        return await ask(p, d, recompute=second, lease_s=PROFILE.lease_s / SPEED, nonce=nonce)
    finally:
        for fleet in fleets:
            await fleet.close()
