"""A shell: what engines do when they are asked something. Harmless by construction: see `requests` and `hand_over`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle

from router.turn import Role

from .ask import ask
from .facts import Facts, Node
from .hand_over import hand_over, lease
from .http import Http


async def probe(http: Http, facts: Facts, *, measure_leases: bool) -> Facts:
    """The same facts with requests: each D and replica alone, then hand-overs, then leases if that is asked for."""
    asks = await asyncio.gather(*(ask(http, node, facts.assumed.model) for node in facts.nodes))
    nodes = tuple(replace(node, ask=said) for node, said in zip(facts.nodes, asks, strict=True))
    facts = replace(facts, nodes=nodes)
    if facts.assumed.connector == "nixl":
        overs = [await hand_over(http, p, d, facts.assumed) for p, d in pairs(facts)]  # one by one: D's counters tell
        facts = replace(facts, hand_overs=tuple(overs))
    if measure_leases:
        leases = await asyncio.gather(
            *(lease(http, node, facts.assumed) for node in facts.of(Role.PREFILL) if node.models)
        )
        facts = replace(facts, leases=tuple(leases))
    return facts


def pairs(facts: Facts) -> Iterator[tuple[Node, Node]]:
    """As few hand-overs as use every P and every D."""
    prefill, decode = ([node for node in facts.of(role) if node.models] for role in (Role.PREFILL, Role.DECODE))
    if not prefill or not decode:
        return
    shorter, longer = sorted((prefill, decode), key=len)
    for one, other in zip(longer, cycle(shorter), strict=False):
        yield (one, other) if longer is prefill else (other, one)
