"""A router before an emulated fleet for a long time, with a fault a minute: does anything leak, is any answer changed?

    python benchmarks/soak.py --hours 2                  or --minutes 5; `make soak` does the same
    python benchmarks/soak.py --minutes 5 --seed 7       the same faults and clients again

Conversations come and go, a tenth of the clients leaves in the middle, and every `--fault-s` something else goes wrong
with the fleet: a node dies and returns, is slow, stalls, resets, loses requests, forgets its cache, shows a frozen
page, takes few connections. Every stream that the router relayed is compared with what the engine says to the same
prompt without a router (`source: emulated`: the answers are deterministic). Memory, descriptors, tasks and leases are
sampled while nothing is wrong.

It fails if an answer differs, if a count is not zero at rest, or if memory still grows in the second half.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from emulator.profiles import LLAMA_3_1_8B_H100
from emulator.rules import Condition, Pages, Rule, rule
from router.conversations import Conversations
from router.dispatch import DispatchOptions
from router.upstream import Timeouts
from tests.router_http.client import CHAT, until
from tests.router_http.emulated import MODEL, Emulated, emulated

GROWTH = 1.10
"""Memory of the last quarter against the second one's: the first one fills caches and pools."""
SLACK_BYTES = 24 * 2**20
SPEED = 10.0
TURNS = 5
LEAVES = 0.1
SPARE = 16
"""Tasks and descriptors above the start: probes, and connections that they keep."""
IDLE_S = 8.0


CONVERSATIONS, TURNS_REMEMBERED = 2_000, 4_000
"""Remembered at most: full after the first rounds, so that memory that goes on growing is no table's."""


@dataclass
class Seen:
    """What happened so far."""

    statuses: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    differing: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    samples: list[dict[str, float]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


Fault = Callable[[Emulated, random.Random], Awaitable[None]]


def any_of(at: Emulated, dice: random.Random) -> str:
    """A node of those behind the router: R0 stands alone, and says what is right."""
    return dice.choice([name for name in at.fleet.nodes if name != "R0"])


async def dies(at: Emulated, dice: random.Random) -> None:
    """A node's process ends, and is back after a while."""
    name = any_of(at, dice)
    at.fleet.kill(name)
    await asyncio.sleep(3.0)
    await at.fleet.revive(name)


async def is_slow(at: Emulated, dice: random.Random) -> None:
    """A node is ten times as slow."""
    await _condition(at, dice, Condition(slow=10.0))


async def few_connections(at: Emulated, dice: random.Random) -> None:
    """A node takes few connections, and closes idle ones at once."""
    await _condition(at, dice, Condition(connections=4, keep_alive_s=0.05))


async def frozen_page(at: Emulated, dice: random.Random) -> None:
    """A node's metrics stand still."""
    await _condition(at, dice, Condition(pages=Pages.FROZEN))


async def forgets(at: Emulated, dice: random.Random) -> None:
    """A node's prefix cache is reset."""
    at.fleet.nodes[any_of(at, dice)].evict()


def by_rule(**values: str) -> Fault:
    """Requests are struck by a rule for a while."""

    async def fault(at: Emulated, dice: random.Random) -> None:
        made: tuple[Rule, ...] = tuple(rule({"node": role} | values) for role in ("P", "D"))
        at.fleet.rules.replace(made)
        await asyncio.sleep(4.0)
        at.fleet.rules.replace(())

    fault.__name__ = " ".join(values.values())
    return fault


FAULTS: tuple[Fault, ...] = (
    dies,
    is_slow,
    few_connections,
    frozen_page,
    forgets,
    by_rule(fault="status", status="503", nth="every 3"),
    by_rule(fault="status", status="400", nth="every 5"),
    by_rule(fault="reset", nth="every 4"),
    by_rule(fault="reset", after="3", leg="decode", nth="every 4"),
    by_rule(fault="stall", nth="every 6"),
    by_rule(fault="stall", after="2", leg="decode", nth="every 6"),
    by_rule(fault="error", after="4", nth="every 5"),
    by_rule(fault="empty", nth="every 4"),
    by_rule(fault="finish_error", leg="decode", nth="every 3"),
    by_rule(fault="eos", leg="prefill", nth="every 2"),
    by_rule(fault="stall", **{"for": "600ms"}, nth="every 2"),
)


async def _condition(at: Emulated, dice: random.Random, condition: Condition) -> None:
    node = at.fleet.nodes[any_of(at, dice)]
    node.set_condition(condition)
    await asyncio.sleep(4.0)
    node.set_condition(Condition())


async def client(at: Emulated, session: aiohttp.ClientSession, dice: random.Random, name: str, seen: Seen) -> None:
    """One conversation."""
    messages = [{"role": "user", "content": f"{name} " + "word " * dice.randrange(300)}]
    for _ in range(dice.randrange(1, TURNS)):
        stream = dice.random() < 0.8
        body: dict[str, Any] = {"model": MODEL, "messages": messages, "stream": stream}
        body |= {"max_tokens": dice.randrange(2, 60), "ignore_eos": True}
        asking = asyncio.ensure_future(ask(session, at.router.url, body))
        if dice.random() < LEAVES:
            await asyncio.sleep(dice.random() * 0.3)
            asking.cancel()
        try:
            status, text, whole = await asking
        except asyncio.CancelledError:
            if not asking.cancelled():
                raise
            seen.statuses["left"] += 1
            continue
        seen.statuses[str(status) if whole or status != 200 else "200, broken off"] += 1
        if status != 200:
            continue
        expected = await truth(at, session, body)
        if expected is not None:
            seen.compared += 1
            if text != expected if whole else not expected.startswith(text):
                seen.differing.append(f"{name}: {text[:40]!r} is not {expected[:40]!r}")
        if whole:
            messages = [*messages, {"role": "assistant", "content": text}, {"role": "user", "content": "and then?"}]


async def ask(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> tuple[int, str, bool]:
    """(status, text, whether it was whole)."""
    try:
        async with session.post(url + CHAT, json=body) as response:
            data = await response.read()
            if response.status != 200:
                return response.status, "", True
    except aiohttp.ClientError:
        return 0, "", False
    if not body["stream"]:
        return 200, json.loads(data)["choices"][0]["message"]["content"], True
    lines = [line[6:] for line in data.split(b"\n\n") if line.startswith(b"data: ")]
    events = [json.loads(line) for line in lines if line != b"[DONE]"]
    text = "".join(c["delta"].get("content") or "" for event in events for c in event.get("choices", ()))
    return 200, text, b"[DONE]" in lines and not any("error" in event for event in events)


async def truth(at: Emulated, session: aiohttp.ClientSession, body: dict[str, Any]) -> str | None:
    """What the node that stands alone says to it."""
    status, text, whole = await ask(session, at.fleet.urls["R0"], body | {"stream": False})
    return text if status == 200 and whole else None


async def breathe(at: Emulated, seen: Seen, tasks: int, descriptors: int) -> None:
    """At rest every count is zero. Then a sample."""
    try:
        await at.router.settle(20.0)
        await until(lambda: not any(at.sequences().values()), 20.0)
        leases = at.router.core.leases
        told = sum(leases.stranded.values()) + sum(leases.unanswered.values())
        if at.fleet.fleet.open_leases > told:
            seen.problems.append(f"{at.fleet.fleet.open_leases} leases open on P, {told} counted")
        if at.fleet.fleet.poisoned_reads:
            seen.problems.append(f"{at.fleet.fleet.poisoned_reads} poisoned reads")
        # Idle connections between router and engines close by themselves, and with them the engines' tasks.
        await until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors + SPARE, IDLE_S)
        await until(lambda: len(asyncio.all_tasks()) <= tasks + SPARE, IDLE_S)
    except AssertionError as error:
        seen.problems.append(str(error))
    at.router.records.clear()  # the harness keeps them for tests; a router hands its own on
    gc.collect()
    sample = {
        "rss_mb": _rss_bytes() / 2**20,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "tasks": len(asyncio.all_tasks()),
        "conversations": len(at.router.core.conversations),
        "stranded": sum(at.router.core.leases.stranded.values()),
    }
    seen.samples.append(sample)
    if sample["tasks"] > tasks + SPARE:
        seen.problems.append(f"{sample['tasks']} tasks at rest, {tasks} at the start")
    if sample["descriptors"] > descriptors + SPARE:
        seen.problems.append(f"{sample['descriptors']} descriptors at rest, {descriptors} at the start")


def _rss_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def grown(samples: list[dict[str, float]]) -> str:
    """What memory did in the second half; empty if it is level."""
    if len(samples) < 8:
        return ""
    quarter = len(samples) // 4
    before = sum(s["rss_mb"] for s in samples[quarter : 2 * quarter]) / quarter
    after = sum(s["rss_mb"] for s in samples[-quarter:]) / quarter
    if after * 2**20 <= max(GROWTH * before * 2**20, before * 2**20 + SLACK_BYTES):
        return ""
    return f"memory grew from {before:.0f} to {after:.0f} MiB between the second and the last quarter"


async def soak(total_s: float, fault_s: float, clients: int, seed: int) -> Seen:
    """Run; the summary goes to whoever asked."""
    seen, dice, names = Seen(), random.Random(seed), count(1)
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + total_s
    order: list[Fault] = []
    limits: dict[str, Any] = {
        "timeouts": Timeouts(1.0, 2.0, 2.0, 4.0),
        "options": DispatchOptions(prefill_timeout_s=2.0),
        "conversations": Conversations(CONVERSATIONS),
        "remembered_turns": TURNS_REMEMBERED,
    }
    async with emulated("nixl", "2P_2D_1R", speed=SPEED, pin_x=0.5, **limits) as at:
        watching = asyncio.ensure_future(at.router.watch.run())
        # Without keep-alive: what a client leaves open would count as the router's.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60)) as session:
            tasks = len(asyncio.all_tasks())
            descriptors = len(os.listdir("/proc/self/fd"))
            while loop.time() < ends_s:
                if not order:
                    order = dice.sample(FAULTS, len(FAULTS))
                fault = order.pop()
                seen.faults[fault.__name__] += 1
                round_ends_s = min(ends_s, loop.time() + fault_s)

                async def converse(round_ends_s: float = round_ends_s) -> None:
                    while loop.time() < round_ends_s:
                        await client(at, session, random.Random(dice.random()), f"c{next(names)}", seen)

                running = [asyncio.ensure_future(converse()) for _ in range(clients)]
                await asyncio.sleep(min(1.0, fault_s / 4))
                await fault(at, dice)
                await asyncio.gather(*running)
                await breathe(at, seen, tasks, descriptors)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    seen.problems += [*seen.differing[:10], *filter(None, [grown(seen.samples)])]
    return seen


def main() -> int:
    """Returns 0 if nothing leaked and nothing differed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=0.0)
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--fault-s", type=float, default=60.0, help="a fault every so many seconds")
    parser.add_argument("--clients", type=int, default=12, help="conversations at once")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    given = parser.parse_args()
    total_s = given.hours * 3600 + given.minutes * 60
    if total_s <= 0 or given.fault_s <= 0 or given.clients < 1:
        parser.error("give --hours or --minutes, above 0, and at least one client")
    logging.disable(logging.ERROR)  # faults are many, and expected
    print(f"source: emulated · seed {given.seed} · {total_s / 60:g} min · {LLAMA_3_1_8B_H100.name}", flush=True)
    seen = asyncio.run(soak(total_s, given.fault_s, given.clients, given.seed))
    first, last = seen.samples[0], seen.samples[-1]
    print(f"requests by status: {dict(sorted(seen.statuses.items()))}")
    print(f"answers compared with the engine's own: {seen.compared}, differing: {len(seen.differing)}")
    print(f"faults: {dict(seen.faults)}")
    for name in first:
        print(f"{name}: {first[name]:.0f} after the first round, {last[name]:.0f} after the last")
    for problem in seen.problems:
        print(f"PROBLEM {problem}")
    print("failed" if seen.problems or not seen.compared else "passed", f"· seed {given.seed}")
    return 1 if seen.problems or not seen.compared else 0


if __name__ == "__main__":
    sys.exit(main())
