"""The engines behind a router: up, down, and what they say of themselves."""

from __future__ import annotations

import asyncio

import pytest

from router import nodes
from router.core import USAGE_S
from router.nodes import UNKNOWN_KV_TOKENS, NodeWatch, endpoints
from router.placement import Node
from router.tokens import MAX_MODELS, START_RATIO, TokenRatio
from router.turn import NodeId, Role
from router.upstream import NodeError, Timeouts, Upstream

from .client import ask, chat, in_loop, until
from .fake_engine import FakeEngine
from .faults import breaks
from .installation import Installation, installation

D0 = NodeId("D0")


def node(router: Installation, name: str = "D0") -> Node:
    return router.core.nodes[NodeId(name)]


def test_endpoints_are_named_by_role_in_the_order_given():
    found = endpoints(["http://a/", "http://b"], ["http://c"], ["http://d"])
    assert {name: (at.url, at.role) for name, at in found.items()} == {
        "P0": ("http://a", Role.PREFILL),
        "P1": ("http://b", Role.PREFILL),
        "D0": ("http://c", Role.DECODE),
        "R0": ("http://d", Role.REPLICA),
    }


@in_loop
async def test_two_failures_in_a_row_take_a_node_out_and_one_success_brings_it_back_empty():
    d = FakeEngine("D0")
    async with installation([], [d]) as router:
        await ask(router.url, chat("hello"))
        (conversation,) = router.core.conversations
        d.healthy = False
        await router.watch.probe_all()
        assert node(router).healthy
        d.healthy = True
        await router.watch.probe_all()
        d.healthy = False
        await router.watch.probe_all()
        assert node(router).healthy  # not two in a row
        assert router.core.residency.held(D0, conversation.key) > 0
        await router.watch.probe_all()
        assert not node(router).healthy
        d.healthy = True
        await router.watch.probe_all()
        assert node(router).healthy
        assert router.core.residency.held(D0, conversation.key) == 0


@in_loop
async def test_an_engine_that_is_gone_is_out_after_two_probes():
    p, d = FakeEngine("P0"), FakeEngine("D0")
    async with installation([p], [d]) as router:
        await d.stop()
        for topology in ("1P_1D", "1P"):
            await router.watch.probe_all()
            assert router.core.topology == topology


@pytest.mark.parametrize(
    ("text", "capacity", "block"),
    [
        ('vllm:cache_config_info{block_size="32",engine="0",num_gpu_blocks="1000"} 1.0\n', 32_000, 32),
        ('# HELP x\nother 1\nvllm:cache_config_info{num_gpu_blocks="7",block_size="16"} 1.0\nmore 2\n', 112, 16),
        ('vllm:cache_config_info{block_size="32",num_gpu_blocks="None"} 1.0\n', UNKNOWN_KV_TOKENS, 16),
        ('vllm:cache_config_info{block_size="²",num_gpu_blocks="10"} 1.0\n', UNKNOWN_KV_TOKENS, 16),
        ('vllm:cache_config_info{block_size="0",num_gpu_blocks="10"} 1.0\n', UNKNOWN_KV_TOKENS, 16),
        ("nothing of the kind\n", UNKNOWN_KV_TOKENS, 16),
        ("", UNKNOWN_KV_TOKENS, 16),
    ],
)
@in_loop
async def test_a_node_tells_its_memory_when_it_comes_up(text: str, capacity: int, block: int):
    d = FakeEngine("D0", metrics=text)
    async with installation([], [d]) as router:
        assert (node(router).kv_capacity_tokens, node(router).block_tokens) == (capacity, block)
        assert node(router).healthy
        assert (await ask(router.url, chat("hello"))).status == 200


@in_loop
async def test_a_mistake_inside_does_not_end_the_probing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(nodes, "PROBE_S", 0.005)
    d = FakeEngine("D0", healthy=False)
    async with installation([], [d]) as router:
        probe, mistakes = router.watch.probe_all, [ZeroDivisionError, KeyError]

        async def now_and_then() -> None:
            if mistakes:
                raise mistakes.pop()
            await probe()

        monkeypatch.setattr(router.watch, "probe_all", now_and_then)
        running = asyncio.ensure_future(router.watch.run())
        d.healthy = True
        await until(lambda: node(router).healthy)
        running.cancel()
    assert not mistakes


def page(began_s: float | None, usage: float | None = None, created_s: float | None = None) -> str:
    """An engine's metrics."""
    lines = ['vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1.0']
    if usage is not None:
        lines.append(f'vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {usage}')
    if created_s is not None:
        lines.append(f'vllm:prompt_tokens_created{{engine="0",model_name="m"}} {created_s}')
        lines.append(f'vllm:generation_tokens_created{{engine="0",model_name="m"}} {created_s + 5}')
    if began_s is not None:
        lines.append(f"process_start_time_seconds {began_s}")
    return "\n".join(lines) + "\n"


async def believes(router: Installation) -> int:
    """What D0 is believed to hold of the one conversation."""
    (conversation,) = router.core.conversations
    return router.core.residency.held(D0, conversation.key)


@pytest.mark.parametrize(
    ("before", "after"), [(page(100.0), page(101.5)), (page(None, created_s=7.0), page(None, created_s=9.0))]
)
@in_loop
async def test_a_restart_between_two_probes_shows_at_the_next_one(before: str, after: str):
    d = FakeEngine("D0", metrics=before)
    async with installation([], [d]) as router:
        await ask(router.url, chat("hello"))
        await router.watch.probe_all()
        assert await believes(router) > 0
        await d.stop()
        d.metrics = after
        await d.start()
        await router.watch.probe_all()
        assert node(router).healthy, "no probe had failed"
        assert await believes(router) == 0
        (conversation,) = router.core.conversations
        assert conversation.decode_node is None


@in_loop
async def test_a_connection_that_was_only_closed_is_no_restart():
    d = FakeEngine("D0", metrics=page(100.0))
    async with installation([], [d]) as router:
        await ask(router.url, chat("hello"))
        await d.stop()
        await d.start()
        await router.watch.probe_all()
        assert await believes(router) > 0


@in_loop
async def test_an_engine_that_does_not_say_when_it_began_is_judged_by_its_health_alone():
    d = FakeEngine("D0", metrics=page(None))
    async with installation([], [d]) as router:
        await ask(router.url, chat("hello"))
        await d.stop()
        await d.start()
        await router.watch.probe_all()
        assert await believes(router) > 0


@in_loop
async def test_metrics_that_could_not_be_read_are_read_at_the_next_probe(monkeypatch: pytest.MonkeyPatch):
    d = FakeEngine("D0", metrics=page(100.0))
    async with installation([], [d]) as router:
        await ask(router.url, chat("hello"))
        await d.stop()
        d.metrics = page(200.0)
        await d.start()
        get = router.upstream.get

        async def fails(url: str, timeout_s: float) -> tuple[int, bytes]:
            raise NodeError("no answer")

        monkeypatch.setattr(router.upstream, "get", fails)
        await router.watch.probe_all()
        assert await believes(router) > 0
        monkeypatch.setattr(router.upstream, "get", get)
        await router.watch.probe_all()
        assert await believes(router) == 0


@in_loop
async def test_an_answer_that_breaks_off_makes_the_watch_look_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(nodes, "PROBE_S", 60.0)
    monkeypatch.setattr(nodes, "DOUBT_S", 0.0)
    d = FakeEngine("D0", metrics=page(100.0))
    async with installation([], [d]) as router:
        await ask(router.url, chat("hello"))
        running = asyncio.ensure_future(router.watch.run())
        await asyncio.sleep(0.05)
        d.metrics = page(200.0)
        d.fault = breaks()
        await ask(router.url, chat("another"))
        for _ in range(1000):
            if router.core.residency.ledger(D0).own_tokens == 0:
                break
            await asyncio.sleep(0.005)
        assert router.core.residency.ledger(D0).own_tokens == 0
        running.cancel()


@in_loop
async def test_memory_that_others_use_is_not_to_be_had():
    d = FakeEngine("D0", metrics=page(100.0, usage=0.0))
    async with installation([], [d]) as router:
        now = [router.watch._now_s()]
        router.watch._now_s = lambda: now[0]
        d.metrics = page(100.0, usage=0.75)
        await router.watch.probe_all()
        assert router.core.load[D0].others_kv_tokens == 0, "not due"
        now[0] += USAGE_S + 1
        await router.watch.probe_all()
        assert router.core.load[D0].others_kv_tokens == 12_000
        assert router.core.residency.ledger(D0).room_tokens == pytest.approx(16_000 * 0.97 - 12_000)
        d.metrics = page(100.0, usage=float("nan"))
        now[0] += USAGE_S
        await router.watch.probe_all()
        assert router.core.load[D0].others_kv_tokens == 12_000


@in_loop
async def test_probes_do_not_change_who_gets_what():
    """Row 12."""
    calls = []
    for probing in (False, True):
        engines = [FakeEngine("D0"), FakeEngine("D1")]
        async with installation([], engines) as router:
            for at in range(20):
                await ask(router.url, chat(f"hello {at}"))
                if probing:
                    await router.watch.probe_all()
        calls.append([engine.calls for engine in engines])
    assert calls[0] == calls[1]


def test_a_watch_without_a_core_has_all_nodes_down():
    watch = NodeWatch(endpoints([], ["http://d"], []), Upstream(Timeouts()))
    assert [(each.id, each.usable) for each in watch.nodes()] == [("D0", False)]
    with pytest.raises(ValueError, match="positive"):
        Timeouts(answer_s=0)


# -- tokens ------------------------------------------------------------------------------------------------------------


def test_tokens_are_estimated_by_a_ratio_that_is_learned_per_model():
    ratio = TokenRatio()
    assert (ratio.tokens("m", 400), ratio.tokens("m", 0)) == (round(400 / START_RATIO), 1)
    ratio.learn("m", 300, 100)
    assert (ratio.tokens("m", 300), ratio.tokens("other", 400)) == (100, 100)
    for _ in range(200):
        ratio.learn("m", 500, 100)
    assert ratio.tokens("m", 500) == pytest.approx(100, abs=1)


@pytest.mark.parametrize(("size", "tokens"), [(10, 15), (0, 20), (1000, 0)])
def test_what_is_too_short_teaches_nothing(size: int, tokens: int):
    ratio = TokenRatio()
    ratio.learn("m", size, tokens)
    assert ratio.tokens("m", 400) == 100


def test_ratios_stay_sane_and_bounded():
    ratio = TokenRatio()
    ratio.learn("huge", 10**9, 16)
    ratio.learn("tiny", 1, 10**9)
    assert (ratio.tokens("huge", 160), ratio.tokens("tiny", 10)) == (10, 20)
    for at in range(2 * MAX_MODELS):
        ratio.learn(str(at), 300, 100)
    assert len(ratio._ratios) == MAX_MODELS
