"""Facts of a good fleet, to be spoiled one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from controller.engines import EngineMetric, NodeScrape
from router.turn import Role
from trimtab.doctor.facts import Ask, Assumed, Config, Facts, HandOver, Lease, Node, Page, Served

CACHE = {
    "block_size": "32",
    "num_gpu_blocks": "2048",
    "enable_prefix_caching": "True",
    "cache_dtype": "auto",
    "engine": "0",
}
PAGE = Page(NodeScrape("x"), CACHE, 1, True, False, {"local_compute": 0.0}, 0.0, 0.0)
ASK = Ask("", True, True, True, 416, 420, True, True)


def node(name: str, role: Role | None, **more: object) -> Node:
    """One that has everything."""
    page = replace(PAGE, connector=role is not Role.REPLICA, consumer=role is Role.DECODE)
    good = Node(
        name,
        f"http://{name.lower()}.example:8000",
        role,
        version="0.32.0",
        models=(Served("m", "/models/m", 8192),),
        page=page,
        config=None,
        skew_s=0.3,
        idle_watched_s=4.0,
        event_sources={},
        ask=None if role is Role.PREFILL else ASK,
    )
    return replace(good, **more)  # type: ignore[arg-type]


P0, D0, D1, R0 = (
    node(name, role)
    for name, role in (("P0", Role.PREFILL), ("D0", Role.DECODE), ("D1", Role.DECODE), ("R0", Role.REPLICA))
)
OVER = HandOver("P0", "D0", side_channel="10.0.0.1:5600", prompt_tokens=420, pulled_tokens=420.0, computed_tokens=0.0)
GOOD = Facts(
    (P0, D0, D1),
    Assumed("m"),
    (OVER, replace(OVER, decode="D1")),
    (Lease("P0", 30.1, 40.0),),
)

Spoil = Callable[[Facts], Facts]


def of(name: str, **more: object) -> Spoil:
    """One node is otherwise."""

    def spoiled(facts: Facts) -> Facts:
        nodes = [replace(n, **more) if n.name == name else n for n in facts.nodes]  # type: ignore[arg-type]
        return replace(facts, nodes=tuple(nodes))

    return spoiled


def page_of(name: str, **more: object) -> Spoil:
    """One node's page is otherwise."""

    def spoiled(facts: Facts) -> Facts:
        (own,) = [n.page for n in facts.nodes if n.name == name]
        assert own is not None
        return of(name, page=replace(own, **more))(facts)  # type: ignore[arg-type]

    return spoiled


def cache_of(name: str, **labels: str) -> Spoil:
    """One node's cache_config_info is otherwise."""
    return page_of(name, cache={**CACHE, **labels})


def asked(name: str, **more: object) -> Spoil:
    """One node answers otherwise."""
    return of(name, ask=replace(ASK, **more))  # type: ignore[arg-type]


def over(**more: object) -> Spoil:
    """The first hand-over went otherwise."""
    return lambda facts: replace(facts, hand_overs=(replace(OVER, **more),))  # type: ignore[arg-type]


def assumed(**more: object) -> Spoil:
    """The router goes by something else."""
    return lambda facts: replace(facts, assumed=replace(facts.assumed, **more))  # type: ignore[arg-type]


def told(lease_s: float = 30.0, policy: str = "fail") -> Config:
    """What development mode tells."""
    return Config("NixlConnector", "kv_producer", lease_s, policy)


MISSING = NodeScrape("x", missing=(EngineMetric.TPOT,))
OLDER = NodeScrape("x", older_names={EngineMetric.TPOT: "vllm:time_per_output_token_seconds"})
