"""Residency on real vLLM: what D's KV events say after a turn, against what D finds cached on the next local one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("zmq", reason="KV events need pyzmq")
vllm_cpu = pytest.importorskip("trimtab.vllm_cpu.fleet", reason="real engines need trimtab.vllm_cpu")

from router.dispatch import DispatchOptions  # noqa: E402
from router.kv_events import EventsAddress, KvEvents  # noqa: E402
from router.residency import Source  # noqa: E402
from router.reuse import Verdict  # noqa: E402
from router.turn import NodeId  # noqa: E402
from router.upstream import Timeouts  # noqa: E402
from tests.router_http.client import Answer, ask, chat, until  # noqa: E402
from tests.router_http.fake_engine import FakeEngine  # noqa: E402
from tests.router_http.installation import Installation, installation  # noqa: E402

P0, D0 = NodeId("P0"), NodeId("D0")
LIMIT_S = 300.0
JSON = {"Content-Type": "application/json"}
SYSTEM = (
    f"{os.urandom(4).hex()}: you are one of many that share this opening, word for word, and it fills several blocks. "
    * 3
)
"""New in each run: what D had stored before is not told again."""


@dataclass
class Real(FakeEngine):
    """A real engine where an installation expects one of its own."""

    at: str = ""

    @property
    def url(self) -> str:
        return self.at

    async def stop(self) -> None:
        """The fleet does it."""


@pytest.fixture(scope="module")
def pair(home: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """1P_1D; D publishes KV events and holds about 10,000 tokens."""
    folder = tmp_path_factory.mktemp("residency")
    small = vllm_cpu.EngineOptions(
        kv_cache_bytes=40 * 2**20, kv_events=f"ipc://{folder}/e", kv_events_replay=f"ipc://{folder}/r"
    )
    with vllm_cpu.EngineFleet("1P_1D", logs=folder, options_of={"D0": small}, home=home) as fleet:
        yield fleet


@asynccontextmanager
async def following(pair: Any, pin_x: float) -> AsyncIterator[Installation]:
    """A router in front that follows D's events."""
    engines = [Real(name, at=pair[name].url) for name in ("P0", "D0")]
    options = pair["D0"].options
    async with asyncio.timeout(LIMIT_S):
        async with installation(
            [engines[0]],
            [engines[1]],
            pin_x=pin_x,
            start_engines=False,
            timeouts=Timeouts(5.0, 120.0, 120.0),
            options=DispatchOptions(prefill_timeout_s=120.0),
        ) as router:
            address = EventsAddress(options.kv_events, options.kv_events_replay)
            events = asyncio.ensure_future(KvEvents({D0: address}, router.core.residency, lambda *_: None).run())
            await asyncio.sleep(0.3)
            try:
                yield router
            finally:
                events.cancel()
                await asyncio.gather(events, return_exceptions=True)


async def say(url: str, texts: list[str], tokens: int) -> Answer:
    """One turn below the shared opening, at a router or an engine."""
    body = chat(*texts, model="tiny", max_tokens=tokens, temperature=0)
    body["messages"].insert(0, {"role": "system", "content": SYSTEM})
    answer = await ask(url, body, headers=JSON)
    assert answer.status == 200, answer.body
    return answer


async def settle(router: Installation) -> None:
    """The events of the last turn are in: they come within a step of the engine."""
    blocks = router.core.residency.blocks[D0]
    taken = -1
    while taken != blocks.events:
        taken = blocks.events
        await asyncio.sleep(0.3)


def believed(router: Installation) -> list[int]:
    """Of each conversation in order of its last turn, on D."""
    core = router.core
    found = []
    for key in [each.key for each in core.conversations]:
        belief = core.residency.belief(D0, key, 0.0)
        assert belief.source is Source.EVENTS
        found.append(belief.tokens)
    return found


@pytest.mark.parametrize("pin_x", [1.0, 0.5])
def test_after_each_turn_the_belief_is_what_d_finds_on_the_next_local_one(pair: Any, pin_x: float):
    async def run() -> None:
        async with following(pair, pin_x) as router:
            checked = 0
            texts = [[f"{pin_x} {name} " + f"talk {name} " * 20] for name in "abc"]
            for turn in range(7):
                for talk in texts:
                    await settle(router)
                    before = believed(router)[0] if turn else 0  # its turn came least recently
                    answer = await say(router.url, talk, 24 + 7 * turn)
                    talk += [answer.text, f"and then {turn} " * (1 + 3 * turn)]
                    record = router.records[-1]
                    print(
                        f"turn {record.turn} {record.placement.realised} prompt {record.prompt_tokens} "
                        f"believed {before} cached {record.cached_tokens}"
                    )
                    if turn and record.went_local:
                        assert record.cached_tokens == before
                        checked += 1
            assert checked >= 6
            checks = router.core.residency.checks
            assert checks[D0, Source.EVENTS, Verdict.HIT] == checked
            assert checks[D0, Source.EVENTS, Verdict.EVICTED] == 0

    asyncio.run(run())


def test_what_others_pushed_out_is_not_believed_and_d_agrees(pair: Any):
    async def run() -> None:
        async with following(pair, 1.0) as router:
            talk = ["mine " * 100]
            for turn in range(2):
                answer = await say(router.url, talk, 40)
                talk += [answer.text, f"next {turn} " * 30]
            await settle(router)
            (full,) = believed(router)
            assert full > 600
            beliefs = {full}
            for at in range(40):
                await say(pair["D0"].url, [f"{at} theirs " * 60], 4)
                await settle(router)
                beliefs.add(*believed(router))
                if believed(router)[0] < full:
                    break
            (left,) = believed(router)
            assert left < full, "ten thousand tokens of others' push it out"
            await say(router.url, talk, 8)
            print(f"believed {sorted(beliefs)}, then cached {router.records[-1].cached_tokens}")
            assert router.records[-1].cached_tokens == left
            assert router.core.residency.ledger(D0).own_tokens > full, "the books had not noticed"

    asyncio.run(run())


def test_a_router_that_starts_late_knows_what_the_engine_still_repeats(pair: Any):
    async def run() -> None:
        async with following(pair, 1.0) as router:
            await say(pair["D0"].url, ["wake up " * 20], 4)
            blocks = router.core.residency.blocks[D0]
            await until(lambda: len(blocks) > 20, 30.0)
            assert (blocks.live, blocks.gaps, blocks.problem) == (True, 0, "")

    asyncio.run(run())
