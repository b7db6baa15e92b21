"""`trimtab serve` with `control.observe`, as real processes: the estimate shows up, and every turn goes as pinned."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest

from emulator.workload import CHAT, Phase, conversations
from trimtab.clients import Crowd
from trimtab.installation import Installation, install
from trimtab.scenarios import promises

pytestmark = pytest.mark.slow

SPEED, WITHIN_S = 4.0, 150.0


def test_the_estimate_shows_up_in_the_status_and_nothing_but_the_pin_is_published(tmp_path: Path) -> None:
    asyncio.run(observed(tmp_path))


async def observed(tmp_path: Path) -> None:
    installation = await install(tmp_path, "llama-3.1-8b-h100", "1P_2D", promises(2.0, 0.05), speed=SPEED, observe=True)
    try:
        plans = conversations((Phase("x", 2000.0, ((CHAT, 0.5),)),), np.random.default_rng(3))
        crowd = asyncio.create_task(Crowd(installation.router_url, installation.model, plans, speed=SPEED).run())
        try:
            told = await compared(installation)
        finally:
            crowd.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await crowd
        seen = told["observe"]["models"][installation.model]
        assert seen["ttft"]["acted"]["value_s"] and seen["ttft"]["shadow"]["value_s"]
        assert told["observe"]["acts_as"] == {"pin_x": 0.0}
        assert told["publication"]["version"] == 1 and told["pin"]["configured_x"] == 0.0
        assert told["headline"].startswith("Observing")
        assert "changes nothing" in (tmp_path / "serve.log").read_text()
    finally:
        installation.stop()


async def compared(installation: Installation) -> dict[str, Any]:
    """The status once some turns that could go either way are compared."""
    end_s = monotonic() + WITHIN_S
    while True:
        told: dict[str, Any] = dict(await installation.status())
        seen = told.get("observe", {}).get("models", {}).get(installation.model, {})
        if seen.get("decided", 0) >= 5 and seen["ttft"]["acted"]["value_s"] not in (None, "inf"):
            return told
        assert monotonic() < end_s, f"nothing was compared in {WITHIN_S} s: {seen}"
        await asyncio.sleep(1.0)
