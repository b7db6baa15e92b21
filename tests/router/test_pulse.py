"""The pulse: what it claims to have been awake at, before, in and after a pause."""

from __future__ import annotations

import asyncio
import contextlib
from math import inf

from router.pulse import BEAT_S, KEPT, Pulse


class Hand:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.s = 100.0

    def now_s(self) -> float:
        return self.s


def beating(hand: Hand, count: int) -> Pulse:
    pulse = Pulse(hand.now_s)
    for _ in range(count):
        pulse.beat()
        hand.s += BEAT_S
    return pulse


def test_nothing_is_known_before_it_has_beaten_for_a_while():
    for count in range(KEPT):
        assert beating(Hand(), count).awake_s == -inf
    assert beating(Hand(), KEPT).awake_s == 100.0


def test_awake_it_is_a_few_beats_behind():
    hand = Hand()
    pulse = beating(hand, 50)
    assert 0 < hand.s - pulse.awake_s <= KEPT * BEAT_S + 1e-9


def test_a_pause_lies_after_it_also_when_a_beat_came_before_the_look():
    hand = Hand()
    pulse = beating(hand, 50)
    paused_s = hand.s
    hand.s += 3600.0
    for _ in range(KEPT - 1):
        assert pulse.awake_s < paused_s
        pulse.beat()
    assert pulse.awake_s < paused_s
    hand.s += BEAT_S
    pulse.beat()
    assert pulse.awake_s >= paused_s, "long enough awake again"


def test_it_runs_with_the_loop():
    async def run() -> None:
        loop = asyncio.get_running_loop()
        pulse = Pulse(loop.time)
        task = asyncio.ensure_future(pulse.run())
        async with asyncio.timeout(60):
            while pulse.awake_s == -inf:
                await asyncio.sleep(BEAT_S)
        assert pulse.awake_s <= loop.time()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(run())
