"""The roster: names, joins, drains and leaves, and what an error of a source cannot do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.membership.member import MAX_URL_LENGTH, Member, engine_url, member
from router.membership.roster import MAX_MEMBERS, Change, Event, Roster, Why
from router.turn import NodeId, Role

IDLE = lambda node: True  # noqa: E731
BUSY = lambda node: False  # noqa: E731


def d(name: str, address: str = "", model: str = "") -> Member:
    return Member(f"http://{name}:8000", Role.DECODE, address, model)


def p(name: str) -> Member:
    return Member(f"http://{name}:8000", Role.PREFILL)


def said(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.change.value, str(event.node)) for event in events]


def roster(*members: Member, model: str = "") -> Roster:
    """One source with that set, reconciled."""
    found = Roster(("file", "dns"), model)
    found.offer("file", members, 0.0)
    found.reconcile(IDLE)
    return found


def test_nodes_are_named_by_role_in_the_order_told():
    found = Roster(("file",))
    found.offer("file", [p("a"), d("b"), d("c")], 0.0)
    assert said(found.reconcile(IDLE)) == [("join", "P0"), ("join", "D0"), ("join", "D1")]
    assert found.reconcile(IDLE) == []


def test_names_of_one_model_among_several_begin_with_its_own():
    found = Roster(("file",), "llm", "llm/")
    found.offer("file", [p("a"), d("b")], 0.0)
    assert said(found.reconcile(IDLE)) == [("join", "llm/P0"), ("join", "llm/D0")]


def test_a_node_that_left_drains_first_and_goes_when_nothing_of_it_is_in_flight():
    found = roster(d("a"), d("b"))
    found.offer("file", [d("b")], 1.0)
    assert said(found.reconcile(BUSY)) == [("drain", "D0")]
    assert found.why(NodeId("D0")) is Why.LEFT
    assert found.reconcile(BUSY) == []
    assert said(found.reconcile(IDLE)) == [("leave", "D0")]
    assert NodeId("D0") not in found.nodes


def test_a_node_that_comes_back_while_it_drains_has_its_name_back():
    found = roster(d("a"), d("b"))
    found.offer("file", [d("b")], 1.0)
    found.reconcile(BUSY)
    found.offer("file", [d("b"), d("a")], 2.0)
    assert said(found.reconcile(BUSY)) == [("return", "D0")]


def test_a_free_name_is_used_again_so_that_names_stay_few():
    found = roster(d("a"), d("b"))
    for at in range(50):
        found.offer("file", [d("a"), d(f"new{at}")], 1.0)
        found.reconcile(IDLE)
        found.reconcile(IDLE)
        assert len(found.nodes) == 2
    assert {str(node) for node in found.nodes} <= {"D0", "D1", "D2"}


def test_another_address_or_role_at_one_url_is_another_node():
    found = roster(d("a"), d("b"))
    found.offer("file", [d("a", address="10.0.0.1:1"), Member(d("b").url, Role.REPLICA), d("c")], 1.0)
    assert said(found.reconcile(BUSY)) == [
        ("drain", "D0"),
        ("drain", "D1"),
        ("join", "D2"),
        ("join", "R0"),
        ("join", "D3"),
    ]


@pytest.mark.parametrize("what", ["fails", "tells nothing", "tells only prefill nodes", "tells far too many"])
def test_a_source_that_cannot_be_meant_keeps_its_last_good_set(what: str):
    found = roster(p("p"), d("a"), d("b"))
    if what == "fails":
        found.fail("file", "it cannot be read", 1.0)
    elif what == "tells nothing":
        found.offer("file", [], 1.0)
    elif what == "tells only prefill nodes":
        found.offer("file", [p("p")], 1.0)
    else:
        found.offer("file", [d(f"x{at}") for at in range(MAX_MEMBERS + 1)], 1.0)
    assert found.reconcile(IDLE) == []
    state = found.states["file"]
    assert state.problem.endswith("; its last good set stays") and state.failures == 1 and state.good_s == 0.0
    found.offer("file", [d("a")], 2.0)
    assert (found.states["file"].problem, found.states["file"].failures) == ("", 0)
    assert said(found.reconcile(BUSY)) == [("drain", "P0"), ("drain", "D1")]


def test_the_last_that_decodes_may_come_from_another_source():
    found = roster(p("p"), d("a"))
    found.offer("dns", [d("b")], 1.0)
    found.offer("file", [p("p")], 2.0)
    assert found.states["file"].problem == ""
    assert said(found.reconcile(BUSY)) == [("drain", "D0"), ("join", "D1")]


def test_a_source_that_may_be_empty_takes_its_nodes_away():
    found = roster(d("a"))
    found.offer("dns", [d("b")], 1.0)
    found.reconcile(IDLE)
    found.offer("dns", [], 2.0, may_be_empty=True)
    assert said(found.reconcile(BUSY)) == [("drain", "D1")]


def test_where_two_sources_tell_one_url_the_first_counts_and_none_joins_twice():
    found = roster(d("a"))
    found.offer("dns", [Member(d("a").url, Role.PREFILL), d("b"), d("b")], 1.0)
    assert said(found.reconcile(IDLE)) == [("join", "D1")]


def test_a_node_of_another_model_is_nobodys():
    found = roster(d("a", model="llm"), d("b", model="other"), d("c"), model="llm")
    assert {each.url for each in found.nodes.values()} == {d("a").url, d("c").url}


def test_an_operator_drains_a_node_that_then_stays_until_it_is_lifted():
    found = roster(d("a"), d("b"))
    found.drained = frozenset({d("a").url})
    assert said(found.reconcile(IDLE)) == [("drain", "D0")]
    assert found.reconcile(IDLE) == [] and found.why(NodeId("D0")) is Why.OPERATOR
    found.drained = frozenset()
    assert said(found.reconcile(IDLE)) == [("return", "D0")]


def test_a_drained_node_that_leaves_while_it_drains_goes_without_another_word():
    found = roster(d("a"), d("b"))
    found.drained = frozenset({d("a").url})
    found.reconcile(BUSY)
    found.offer("file", [d("b")], 1.0)
    assert found.reconcile(BUSY) == []
    assert said(found.reconcile(IDLE)) == [("leave", "D0")]


def test_a_node_may_join_drained():
    found = Roster(("file",), drained=frozenset({d("a").url}))
    found.offer("file", [d("a"), d("b")], 0.0)
    assert said(found.reconcile(IDLE)) == [("join", "D0"), ("drain", "D0"), ("join", "D1")]


def test_another_weight_is_the_same_node_and_told_once():
    found = roster(d("a"), d("b"))
    heavy = Member(d("b").url, Role.DECODE, weight=2.0)
    found.offer("file", [d("a"), heavy], 1.0)
    (event,) = found.reconcile(IDLE)
    assert (event.change, event.node, event.member.weight) == (Change.WEIGH, "D1", 2.0)
    assert found.reconcile(IDLE) == []


@pytest.mark.parametrize("weight", [0.0, -1.0, 1000.0, float("nan"), float("inf")])
def test_a_weight_that_is_none_is_refused_with_what_to_write(weight: float):
    with pytest.raises(ValueError, match=r"write 0\.01 to 100"):
        member("http://a:1", "decode", weight=weight)


names = st.sampled_from("abcdef")
weights = st.sampled_from([0.5, 1.0])
sets = st.lists(
    st.builds(lambda n, r, w: Member(f"http://{n}", r, weight=w), names, st.sampled_from(list(Role)), weights),
    max_size=6,
)


@given(st.lists(st.tuples(st.sampled_from(["file", "dns"]), sets, st.booleans(), st.sets(names)), max_size=30))
def test_events_replayed_give_the_nodes_and_the_fleet_never_loses_its_last_decoder(steps):
    found = Roster(("file", "dns"))
    replayed: dict[NodeId, Member] = {}
    draining: set[NodeId] = set()
    had_decoder = False
    for source, members, idle, drained in steps:
        found.offer(source, members, 0.0)
        found.drained = frozenset(f"http://{name}" for name in drained)
        for event in found.reconcile(IDLE if idle else BUSY):
            if event.change is Change.JOIN:
                assert event.node not in replayed
                replayed[event.node] = event.member
            elif event.change is Change.DRAIN:
                assert event.node not in draining
                draining.add(event.node)
            elif event.change is Change.RETURN:
                draining.remove(event.node)
            elif event.change is Change.WEIGH:
                replayed[event.node] = event.member
            else:
                draining.remove(event.node)
                del replayed[event.node]
        assert replayed == found.nodes
        assert [m.weight for m in replayed.values()] == [found.nodes[node].weight for node in replayed]
        assert draining == {node for node in replayed if found.why(node) is not None}
        serving = [m for n, m in replayed.items() if found.why(n) is not Why.LEFT]
        assert len({each.url for each in serving}) == len(serving)
        decodes = any(each.role is not Role.PREFILL for each in serving)
        assert decodes or not had_decoder
        had_decoder = had_decoder or decodes


@pytest.mark.parametrize("url", ["http://a:8000/", "https://10.0.0.1", "http://[::1]:8000"])
def test_an_engine_url_is_kept_without_its_slash(url: str):
    assert engine_url(url) == url.rstrip("/")


@pytest.mark.parametrize(
    "url",
    ["", "a:8000", "ftp://a", "http://", "http://a/v1", "http://a?x=1", "http://a:0", "http://a b", "http://a\n",
     "http://[::1", "http://a:99999", "http://" + "a" * MAX_URL_LENGTH],
)  # fmt: skip
def test_anything_but_the_root_of_an_engine_is_refused_with_what_to_write(url: str):
    with pytest.raises(ValueError, match="write http://HOST:PORT"):
        member(url, "decode")


def test_a_password_in_a_url_is_not_repeated():
    with pytest.raises(ValueError, match="…@host") as refused:
        member("http://user:hunter2@host:8000", "decode")
    assert "hunter2" not in str(refused.value)


def test_roles_are_words_or_the_letters_of_the_tables():
    assert [member("http://a", role).role for role in ("prefill", "D", "R")] == [
        Role.PREFILL,
        Role.DECODE,
        Role.REPLICA,
    ]
    with pytest.raises(ValueError, match="is no role"):
        member("http://a", "encode")
