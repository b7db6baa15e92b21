"""Which nodes may serve a turn, and which do."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.conversations import Conversation
from router.decision import Decision
from router.load import NodeLoad
from router.placement import Candidates, Node, NoNode, Placement, choose_decode, choose_prefill, eligible, pick
from router.residency import Residency
from router.turn import NodeId, Reason, Role, Route
from tests.router.samples import D0, D1, LATENCY, P0, P1, R0, features, key

CAPACITY = 100_000
LOCAL = Decision(Route.APPEND_LOCAL, Reason.SCORE, 1.0, 1)
TRANSFER = Decision(Route.PREFILL_TRANSFER, Reason.SCORE, 1.0, 1)


def fleet(**changes: Node) -> dict[str, Node]:
    nodes = {
        "P0": Node(P0, Role.PREFILL, CAPACITY),
        "P1": Node(P1, Role.PREFILL, CAPACITY),
        "D0": Node(D0, Role.DECODE, CAPACITY),
        "D1": Node(D1, Role.DECODE, CAPACITY),
        "R0": Node(R0, Role.REPLICA, CAPACITY),
    }
    return {**nodes, **changes}


def conversation(home: NodeId | None = None) -> Conversation:
    return Conversation(key(), 0.0, decode_node=home)


def names(nodes: tuple[Node, ...]) -> list[str]:
    return [node.id for node in nodes]


@pytest.fixture
def residency() -> Residency:
    made = Residency()
    for node in fleet().values():
        made.reset(node.id, node.kv_capacity_tokens)
    return made


def loads() -> dict[NodeId, NodeLoad]:
    return {node.id: NodeLoad() for node in fleet().values()}


def test_p_nodes_prefill_and_d_nodes_and_replicas_decode():
    candidates = eligible(conversation(), fleet().values())
    assert names(candidates.prefill) == ["P0", "P1"]
    assert names(candidates.decode) == ["D0", "D1", "R0"]
    assert candidates.home is None


@pytest.mark.parametrize("state", [{"healthy": False}, {"draining": True}, {"healthy": False, "draining": True}])
def test_a_node_that_is_down_or_draining_gets_nothing_new(state: dict[str, Any]):
    nodes = fleet()
    nodes["P0"], nodes["D1"] = replace(nodes["P0"], **state), replace(nodes["D1"], **state)
    candidates = eligible(conversation(D1), nodes.values())
    assert (names(candidates.prefill), names(candidates.decode)) == (["P1"], ["D0", "R0"])
    assert candidates.home is None


def test_the_node_that_holds_the_conversation_is_its_home():
    home = eligible(conversation(D1), fleet().values()).home
    assert home is not None and home.id == D1


def test_a_node_that_has_just_failed_the_turn_is_avoided_even_at_home():
    candidates = eligible(conversation(D0), fleet().values(), frozenset({P1, D0}))
    assert (names(candidates.prefill), names(candidates.decode)) == (["P0"], ["D1", "R0"])
    assert candidates.home is None


def test_without_a_p_there_are_still_nodes_to_decode():
    assert eligible(conversation(), fleet().values(), frozenset({P0, P1})).prefill == ()


def test_with_nobody_to_decode_there_is_no_node():
    with pytest.raises(NoNode, match="no decode node or replica"):
        eligible(conversation(), fleet().values(), frozenset({D0, D1, R0}))


def test_a_conversation_stays_at_home_however_busy_it_is(residency: Residency):
    residency.touch(D0, key("other"), 99_000, 0.0)
    candidates = eligible(conversation(D0), fleet().values())
    assert choose_decode(candidates, residency, 0.0).id == D0


def test_a_conversation_without_a_home_goes_where_live_ones_need_the_least_share(residency: Residency):
    residency.touch(D0, key("a"), 3000, 0.0)
    residency.touch(D1, key("b"), 2000, 0.0)
    residency.touch(R0, key("c"), 4000, 0.0)
    nodes = fleet()
    assert choose_decode(eligible(conversation(), nodes.values()), residency, 1.0).id == D1
    nodes["D0"] = replace(nodes["D0"], kv_capacity_tokens=2 * CAPACITY)  # 1.5 % instead of 3 %
    assert choose_decode(eligible(conversation(), nodes.values()), residency, 1.0).id == D0


def test_conversations_that_have_gone_silent_do_not_count(residency: Residency):
    residency.touch(D0, key("old"), 50_000, 0.0)
    residency.touch(D1, key("new"), 1000, 60.0)
    candidates = eligible(conversation(), fleet().values(), frozenset({R0}))
    assert choose_decode(candidates, residency, 60.0).id == D0


def test_between_equals_the_name_decides(residency: Residency):
    assert choose_decode(eligible(conversation(), reversed(fleet().values())), residency, 0.0).id == D0


def candidates() -> Candidates:
    return eligible(conversation(), fleet().values())


def test_without_a_p_there_is_no_p_to_choose(residency: Residency):
    none = replace(candidates(), prefill=())
    assert choose_prefill(none, conversation(), 4000, loads(), residency, LATENCY, 0.0) is None


def test_an_idle_p_is_chosen_over_a_busy_one(residency: Residency):
    load = loads()
    load[P0].prefill.add("r", 50.0, 0.0)
    found = choose_prefill(candidates(), conversation(), 4000, load, residency, LATENCY, 0.0)
    assert found is not None and (found[0].id, found[1]) == (P1, 4000)


def test_a_p_that_caches_the_prompt_is_worth_the_wait_it_saves(residency: Residency):
    residency.store(P0, key(), 3000, 0.0)
    saves_ms = LATENCY.prefill_ms(4000, 4000) - LATENCY.prefill_ms(4000 - 2992, 4000)  # 187 whole blocks of 16
    for wait_ms, chosen in ((saves_ms - 1, (P0, 1008)), (saves_ms + 1, (P1, 4000))):
        load = loads()
        load[P0].prefill.add("r", wait_ms, 0.0)
        found = choose_prefill(candidates(), conversation(), 4000, load, residency, LATENCY, 0.0)
        assert found is not None and (found[0].id, found[1]) == chosen


def test_without_a_model_tokens_stand_for_time(residency: Residency):
    residency.store(P1, key(), 1600, 0.0)
    load = loads()
    load[P1].prefill.add("r", 1500.0, 0.0)
    found = choose_prefill(candidates(), conversation(), 4000, load, residency, None, 0.0)
    assert found is not None and (found[0].id, found[1]) == (P1, 2400)


def test_between_equal_p_nodes_the_name_decides(residency: Residency):
    found = choose_prefill(candidates(), conversation(), 4000, loads(), residency, LATENCY, 0.0)
    assert found is not None and found[0].id == P0


@pytest.mark.parametrize(
    ("held", "prompt", "uncached"),
    [
        (0, 100, 100),
        (15, 100, 100),
        (16, 100, 84),
        (100, 100, 4),
        (96, 96, 16),
        (1000, 100, 4),
        (0, 1, 1),
        (1000, 1, 1),
    ],
)
def test_hits_are_whole_blocks_and_one_token_at_least_is_computed(held: int, prompt: int, uncached: int):
    assert Node(D0, Role.DECODE, CAPACITY).uncached_tokens(held, prompt) == uncached


@given(held=st.integers(0, 10**6), prompt=st.integers(1, 10**6), block=st.sampled_from([1, 16, 32, 128]))
def test_what_is_lacked_is_at_least_one_token_and_at_most_the_prompt(held, prompt, block):
    uncached = Node(D0, Role.DECODE, CAPACITY, block_tokens=block).uncached_tokens(held, prompt)
    assert 1 <= uncached <= prompt
    assert (prompt - uncached) % block == 0
    assert prompt - uncached <= held


def test_a_local_turn_uses_its_decode_node_alone():
    assert pick(LOCAL, features(), candidates(), loads()) == Placement(None, D0, Route.APPEND_LOCAL)


def test_a_transfer_uses_the_chosen_p_and_d():
    assert pick(TRANSFER, features(), candidates(), loads()) == Placement(P0, D0, Route.PREFILL_TRANSFER)


def test_a_transfer_without_a_p_is_realised_as_local():
    assert pick(TRANSFER, features(prefill=None), candidates(), loads()) == Placement(None, D0, Route.APPEND_LOCAL)


def overflowing(d0_tokens: int, d1_tokens: int, r0_tokens: int = CAPACITY) -> Placement:
    load = loads()
    load[D0].kv_tokens, load[D1].kv_tokens, load[R0].kv_tokens = d0_tokens, d1_tokens, r0_tokens
    return pick(TRANSFER, features(d_kv_tokens=d0_tokens), candidates(), load)


def test_a_transfer_that_just_fits_stays_at_home():
    assert overflowing(CAPACITY - 4300, 0).decode == D0


def test_a_transfer_that_the_home_has_no_room_for_goes_to_the_decode_node_with_the_most():
    assert overflowing(CAPACITY - 4299, CAPACITY - 5000).decode == D1


def test_where_no_decode_node_has_room_it_waits_at_home():
    assert overflowing(CAPACITY - 4299, CAPACITY - 4299).decode == D0


def test_a_replica_is_given_no_transfer_however_much_room_it_has():
    assert overflowing(CAPACITY - 4299, CAPACITY - 5000, r0_tokens=0).decode == D1
    assert overflowing(CAPACITY - 4299, CAPACITY, r0_tokens=0).decode == D0


# -- names -------------------------------------------------------------------------------------------------------------


def by_url(count: int, start: int = 0) -> list[Node]:
    """Decode nodes that have told their memory; what one router calls D0 may be another's D3."""
    return [
        Node(NodeId(f"D{(at + start) % count}"), Role.DECODE, 400_000, introduced=True, url=f"http://10.0.0.{at}:8000")
        for at in range(count)
    ]


class Router:
    """What one router places by name, in its own books."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.residency = Residency()
        for node in nodes:
            self.residency.reset(node.id, node.kv_capacity_tokens)

    def place(self, name: str, tokens: int = 500, *, named: bool = True) -> str:
        candidates = eligible(conversation(), self.nodes)
        found = choose_decode(candidates, self.residency, 0.0, name=name if named else "")
        self.residency.touch(found.id, key(name), tokens, 0.0)
        return found.url


NAMES = [f"conversation-{at}" for at in range(1000)]


@pytest.mark.parametrize("count", [2, 4, 7])
def test_two_routers_that_share_nothing_send_every_name_to_the_same_node(count: int):
    """Row 6: they see the names in other orders, one only a half of them, and call the nodes otherwise."""
    one, other = Router(by_url(count)), Router(by_url(count, start=1))
    placed = {name: one.place(name) for name in NAMES}
    again = {name: other.place(name) for name in sorted(NAMES, reverse=True)[::2]}
    assert all(placed[name] == url for name, url in again.items())
    loads = Counter(placed.values())
    assert len(loads) == count and max(loads.values()) <= 1.25 * len(NAMES) / count


@pytest.mark.parametrize("count", [3, 4, 8])
def test_when_one_node_of_n_goes_only_its_own_names_move(count: int):
    nodes = by_url(count)
    whole, rest = Router(nodes), Router(nodes[1:])
    before, after = ({name: router.place(name) for name in NAMES} for router in (whole, rest))
    moved = [name for name in NAMES if before[name] != after[name]]
    assert all(before[name] == nodes[0].url for name in moved)
    assert len(moved) / len(NAMES) == pytest.approx(1 / count, abs=0.04)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_two_hundred_conversations_with_one_system_prompt_spread_evenly(count: int, named: bool):
    """Row 7."""
    router = Router(by_url(count))
    placed = Counter(router.place(f"agent-{at}", 8200, named=named) for at in range(200))
    assert max(placed.values()) / (200 / count) <= 1.3


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("weight", [0.25, 2.0, 3.0])
def test_conversations_are_shared_out_by_weight(weight: float, named: bool):
    nodes = by_url(4)
    nodes[2].weight = weight
    router = Router(nodes)
    placed = Counter(router.place(name, named=named) for name in NAMES)
    assert placed[nodes[2].url] / len(NAMES) == pytest.approx(weight / (3 + weight), abs=0.04)


def test_a_node_that_gets_another_weight_takes_or_gives_and_no_name_moves_between_the_others():
    light, heavy = by_url(4), by_url(4)
    heavy[1].weight = 2.0
    before, after = ({name: router.place(name) for name in NAMES} for router in map(Router, (light, heavy)))
    assert {after[name] for name in NAMES if before[name] != after[name]} == {heavy[1].url}


def test_prompts_are_shared_out_by_weight(residency: Residency):
    nodes, load = fleet(), loads()
    nodes["P1"].weight = 3.0
    placed: Counter[NodeId] = Counter()
    for at in range(80):
        candidates = eligible(conversation(), nodes.values())
        found = choose_prefill(candidates, conversation(), 1000, load, residency, None, 0.0)
        assert found is not None
        placed[found[0].id] += 1
        load[found[0].id].prefill.add(f"r{at}", 1000.0, 0.0)
    assert placed[P1] / placed[P0] == pytest.approx(3.0, rel=0.15)


def test_a_heavy_name_does_not_make_its_node_overflow():
    router = Router(by_url(4))
    placed = Counter(router.place(f"big-{at}", 40_000) for at in range(40))
    assert max(placed.values()) <= 1.25 * 10 + 1


def test_a_name_that_cannot_be_encoded_is_a_name_too():
    router = Router(by_url(4))
    assert router.place("\ud800") == router.place("\ud800")
