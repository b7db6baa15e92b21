"""The time of each token, in virtual time: whatever happens to a stretch, between the first and the last."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.events import Events
from emulator.fleet import Fleet, Reply, Request
from emulator.profiles import LLAMA_3_1_8B_H100
from emulator.server.pace import Pacer


class Watched:
    """One request and what was heard of it."""

    def __init__(self, fleet: Fleet, node: str, name: str, prompt: int, output: int, params=None) -> None:
        self.output = output
        self.first_s: float | None = None
        self.done_s: float | None = None
        self.reply: Reply | None = None
        self.failed = False
        self.tokens_s: list[float] = []
        self.call = fleet.call(
            node,
            Request(name, ((name, prompt),), output, params),
            lambda at_s: setattr(self, "first_s", at_s),
            self._done,
            lambda at_s, status: setattr(self, "failed", True),
            on_token=self.tokens_s.append,
        )

    def _done(self, at_s, reply) -> None:
        self.done_s, self.reply = at_s, reply

    def check(self) -> None:
        if self.done_s is None or self.first_s is None:
            return
        times = [self.first_s, *self.tokens_s]
        assert len(times) == self.output, "every token but the first is paced"
        assert times == sorted(times) and len(set(times)) == len(times)
        assert times[-1] == pytest.approx(self.done_s, abs=1e-9)


def build(notation: str = "1P_1D") -> tuple[Fleet, Events, list[int]]:
    events = Events()
    fleet = Fleet(notation, LLAMA_3_1_8B_H100, events)
    steps: list[int] = []
    for engine in fleet.engines.values():
        Pacer(engine, events, steps.append)
    return fleet, events, steps


def test_a_lone_request_gets_its_tokens_at_the_ends_of_its_steps():
    fleet, events, steps = build("1D")
    one = Watched(fleet, "D0", "a", 1000, 50)
    events.run(100)
    one.check()
    assert one.first_s is not None
    gaps = [b - a for a, b in zip([one.first_s, *one.tokens_s], one.tokens_s, strict=False)]
    assert max(gaps) - min(gaps) < 1e-3 and gaps == sorted(gaps)  # each step reads one token of context more
    assert steps == [1000] + [1] * 49


@given(st.integers(0, 10**6), st.booleans())
def test_arrivals_aborts_and_transfers_change_the_pace_but_lose_and_double_nothing(seed, killed):
    dice = random.Random(seed)
    fleet, events, _ = build()
    watched: list[Watched] = []
    aborted: list[Watched] = []

    def ask() -> None:
        name, prompt, output = f"r{len(watched)}", dice.randrange(1, 3000), dice.randrange(1, 120)
        watched.append(Watched(fleet, "D0", name, prompt, output))

    def hand_over() -> None:
        name, prompt, output = f"t{dice.random()}", dice.randrange(1, 3000), dice.randrange(1, 120)
        leg = Watched(fleet, "P0", name, prompt, 1, {"do_remote_decode": True})

        def decode() -> None:
            if leg.reply is not None:
                watched.append(Watched(fleet, "D0", name, prompt, output, leg.reply.kv_transfer_params))

        events.after(1.0, decode)

    def leave() -> None:
        if watched:
            gone = dice.choice(watched)
            gone.call.abort()
            aborted.append(gone)

    for _ in range(dice.randrange(1, 25)):
        events.at(dice.random() * 3, dice.choice([ask, ask, hand_over, leave]))
    death_s = dice.random() * 3 if killed else 2000.0
    events.at(death_s, fleet.kill, "D0")
    events.run(1000)
    for each in watched:
        on_its_way = each in aborted or (each.done_s is not None and each.done_s >= death_s)
        if not on_its_way:  # else the last token died on its way to the client, or met nobody there
            each.check()
        if each not in aborted and not killed:
            assert each.done_s is not None
        assert len(each.tokens_s) < each.output
