"""What every connector has to do, whoever wrote it: give D what belongs to P's prompt, in time, or nothing at all.

A new connector needs two entries here, a good reply and the bad ones; then it passes or fails every check below.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.connectors import ADDRESSES, CONNECTORS
from router.connectors.nixl import REMEMBERED, REMEMBERED_LEASES, NixlConnector
from router.connectors.protocol import (
    Connector,
    ConnectorOptions,
    Handshake,
    HandshakeError,
    Leg,
    LegReply,
    Purpose,
)
from router.placement import Placement
from router.turn import ConversationKey, NodeId, Role, Route, Turn
from tests.conformance_face.faults import FAULTS, Fault

P0, P1, D0, D1 = NodeId("P0"), NodeId("P1"), NodeId("D0"), NodeId("D1")
BLOCK = 32
PROMPT = 2009
ADDRESSED = {P0: "10.0.0.1:21001", P1: "10.0.0.2:21001", D0: "10.0.0.3:22001", D1: "10.0.0.4:22001"}
OPTIONS = ConnectorOptions(lease_s=30.0, margin_s=2.0, block_tokens=BLOCK, addresses=ADDRESSED)
LOCAL = Placement(None, D0, Route.APPEND_LOCAL)
TRANSFER = Placement(P0, D0, Route.PREFILL_TRANSFER, engine_id="engine of P0")


def turn(request_id: str = "r1") -> Turn:
    return Turn(request_id, ConversationKey("", "llm", "c1"), 100, None, True, 0.0)


TURN = turn()


def reply(
    params: object,
    status: int = 200,
    prompt_tokens: int = PROMPT,
    at_s: float = 100.0,
    finish_reason: str | None = "length",
) -> LegReply:
    return LegReply(status, prompt_tokens, 0, params, at_s, finish_reason)  # type: ignore[arg-type]


def nixl_params(**changes: object) -> dict[str, object]:
    """As vLLM 0.32 answers for a prompt of 2009 tokens in blocks of 32."""
    params: dict[str, object] = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [list(range(1, 64))],
        "remote_engine_id": "P0",
        "remote_request_id": "chatcmpl-r1-b38ed919",
        "remote_host": "127.0.0.1",
        "remote_port": 5600,
        "tp_size": 1,
        "remote_num_tokens": PROMPT,
        "remote_blocks_expiry_time": None,
        "remote_prefill_cached_tokens": 0,
    }
    return {**params, **changes}


def nixl_without(name: str) -> dict[str, object]:
    return {key: value for key, value in nixl_params().items() if key != name}


GOOD: dict[str, Callable[..., LegReply]] = {
    "nixl": lambda prompt="chatcmpl-r1-b38ed919": reply(nixl_params(remote_request_id=prompt)),
    "mooncake": lambda prompt="": reply(None),
    "p2p_nccl": lambda prompt="": reply(None),
}
"""By connector: a good prefill reply, of one prompt or another."""

BAD_PARAMS: dict[str, object] = {
    # Each of the first nine has been seen to kill, hang or fail an engine of vLLM 0.32, or would poison its cache.
    "blocks are null": nixl_params(remote_block_ids=None),
    "no blocks": nixl_params(remote_block_ids=[]),
    "an empty group of blocks": nixl_params(remote_block_ids=[list(range(1, 64)), []]),
    "fewer blocks than the prompt needs": nixl_params(remote_block_ids=[list(range(1, 63))]),
    "one block": nixl_params(remote_block_ids=[[1]]),
    "no request id": nixl_without("remote_request_id"),
    "no engine id": nixl_without("remote_engine_id"),
    "no host": nixl_without("remote_host"),
    "no port": nixl_without("remote_port"),
    "no block ids": nixl_without("remote_block_ids"),
    "no offer": nixl_without("do_remote_prefill"),
    "a refused offer": nixl_params(do_remote_prefill=False),
    "an offer that is no yes": nixl_params(do_remote_prefill="true"),
    "a decode nodes own parameters": nixl_params(do_remote_prefill=False, do_remote_decode=True),
    "a null request id": nixl_params(remote_request_id=None),
    "an empty request id": nixl_params(remote_request_id=""),
    "a request id that is a number": nixl_params(remote_request_id=17),
    "an empty engine id": nixl_params(remote_engine_id=""),
    "an empty host": nixl_params(remote_host=""),
    "a port that is text": nixl_params(remote_port="5600"),
    "a port that is a yes": nixl_params(remote_port=True),
    "port 0": nixl_params(remote_port=0),
    "a port beyond all ports": nixl_params(remote_port=65_536),
    "blocks without groups": nixl_params(remote_block_ids=list(range(1, 64))),
    "blocks that are text": nixl_params(remote_block_ids="1,2,3"),
    "blocks that are a number": nixl_params(remote_block_ids=63),
    "a group that is a number": nixl_params(remote_block_ids=[63]),
    "a group that is text": nixl_params(remote_block_ids=["1" * 63]),
    "a null block": nixl_params(remote_block_ids=[[*range(1, 63), None]]),
    "a negative block": nixl_params(remote_block_ids=[[-1, *range(1, 63)]]),
    "a block that is a fraction": nixl_params(remote_block_ids=[[*range(1, 63), 1.5]]),
    "nothing at all": {},
    "a list": [],
    "a text": "do_remote_prefill",
}

BAD: dict[str, dict[str, LegReply]] = {
    "nixl": {"no parameters": reply(None), **{why: reply(params) for why, params in BAD_PARAMS.items()}},
    # P keeps its blocks for D only if it ended with length.
    "mooncake": {
        f"an end by {why}": reply(None, finish_reason=why) for why in ("stop", "abort", "error", "tool_calls", "", None)
    },
    "p2p_nccl": {"a failure": reply(None, status=500)},
}
"""By connector: replies after which no decode leg may go on."""

every_connector = pytest.mark.parametrize("name", CONNECTORS)
every_bad_reply = pytest.mark.parametrize(
    ("name", "why"), [(name, why) for name in CONNECTORS for why in BAD.get(name, {})]
)


def connector(name: str, options: ConnectorOptions = OPTIONS) -> Connector:
    return CONNECTORS[name](options)


@dataclass
class Seen:
    """What a driver of the handshake sends, in order; `decode` is the one returned, which a reply let go on."""

    sent: list[Leg] = field(default_factory=list)
    decode: Leg | None = None

    @property
    def prefill(self) -> Leg:
        (leg,) = (leg for leg in self.sent if leg.purpose is Purpose.PREFILL)
        return leg


def driven(handshake: Handshake, answer: LegReply, seen: Seen) -> Seen:
    """Drive a handshake as the dispatcher does, each reply being this one."""
    try:
        leg = next(handshake)
        while True:
            seen.sent += [leg] if leg.beside is None else [leg, leg.beside]
            leg = handshake.send(answer)
    except StopIteration as stop:
        seen.decode = stop.value
        if stop.value not in seen.sent:
            seen.sent.append(stop.value)
    return seen


def legs(name: str, answer: LegReply, options: ConnectorOptions = OPTIONS, **how: Any) -> Seen:
    how = {"turn": TURN, "placement": TRANSFER, "attempt": 1, **how}
    return driven(connector(name, options).handshake(**how), answer, Seen())


def refused(name: str, answer: LegReply, options: ConnectorOptions = OPTIONS, **how: Any) -> HandshakeError:
    """The error of a handshake whose prefill is answered so. No decode leg was let go on."""
    seen = Seen()
    how = {"turn": TURN, "placement": TRANSFER, **how}
    with pytest.raises(HandshakeError) as error:
        driven(connector(name, options).handshake(**how), answer, seen)
    assert seen.decode is None
    # D's leg is out by then only if it went beside P's, and then the driver has to end it.
    assert all(leg.beside is not None for leg in seen.sent if leg.purpose is Purpose.DECODE)
    return error.value


@every_connector
def test_every_connector_says_here_what_is_good_and_what_is_bad(name: str):
    assert name in GOOD and BAD.get(name), f"add {name} to GOOD and BAD in {Path(__file__).name}"


@every_connector
def test_a_local_placement_is_one_plain_decode_leg(name: str):
    seen = legs(name, reply(None, status=500), placement=LOCAL)
    assert seen.sent == [Leg(D0, Purpose.DECODE)] and seen.decode is seen.sent[0]


@every_connector
def test_a_transfer_is_a_prefill_leg_to_p_and_a_decode_leg_to_d_after_it_or_with_it(name: str):
    seen = legs(name, GOOD[name]())
    assert seen.decode is not None
    assert (seen.prefill.node, seen.decode.node, seen.decode.purpose) == (P0, D0, Purpose.DECODE)
    assert [leg.node for leg in seen.sent] == ([P0, D0] if seen.decode.beside is None else [D0, P0])
    assert seen.decode.beside in (None, seen.prefill)
    assert (seen.prefill.not_after_s, seen.prefill.beside) == (None, None)


@every_connector
def test_a_decode_leg_that_waits_for_p_is_sent_before_its_lease_ends_and_one_beside_p_at_once(name: str):
    for lease_s, margin_s, deadline_s in ((30.0, 2.0, 128.0), (12.0, 0.5, 111.5)):
        options = ConnectorOptions(lease_s, margin_s, BLOCK, ADDRESSED)
        decode = legs(name, GOOD[name](), options).decode
        assert decode is not None
        if decode.kv_transfer_params is None or decode.beside is not None:  # pushed: no lease, or one that D is in
            assert decode.not_after_s is None
        else:
            assert decode.not_after_s == pytest.approx(deadline_s)


@every_connector
def test_no_two_hand_overs_have_a_name_in_common(name: str):
    """Whatever the legs carry that is the hand-over's own, in any field: an engine remembers old ones."""
    names: list[set[str]] = []
    for request_id in ("r1", "r2", "r11"):
        for attempt in (1, 2, 3, 11):
            seen = legs(name, GOOD[name](), turn=turn(request_id), attempt=attempt)
            own = {leg.request_id for leg in seen.sent} | {
                (leg.kv_transfer_params or {}).get("transfer_id") for leg in seen.sent
            }
            names.append({str(value) for value in own if value is not None})
    assert all(len(each) <= 1 for each in names), "both halves have the same one"
    assert len(set().union(*names)) == sum(map(len, names))


@every_connector
def test_the_same_plan_makes_the_same_legs_and_another_turn_does_not_change_them(name: str):
    first = driven(connector(name).handshake(TURN, TRANSFER, 1), GOOD[name](), Seen()).sent
    busy = connector(name)
    driven(busy.handshake(turn("other"), TRANSFER, 2), GOOD[name]("another prompt"), Seen())
    assert driven(busy.handshake(TURN, TRANSFER, 1), GOOD[name](), Seen()).sent == first


@every_connector
def test_every_leg_goes_to_a_node_of_the_placement(name: str):
    for prefill, decode in ((P0, D0), (P1, D0), (P1, D1)):
        placement = Placement(prefill, decode, Route.PREFILL_TRANSFER, engine_id=f"engine of {prefill}")
        seen = legs(name, GOOD[name](), placement=placement)
        assert {leg.node for leg in seen.sent} == {prefill, decode}
        others = [address for node, address in ADDRESSED.items() if node not in (prefill, decode)]
        assert not any(address in repr(seen.sent) for address in others)


@every_connector
@pytest.mark.parametrize("status", [100, 201, 202, 204, 301, 400, 404, 422, 429, 500, 502, 503, 504])
def test_an_answer_that_is_not_200_never_leads_to_a_decode_leg(name: str, status: int):
    error = refused(name, replace(GOOD[name](), status=status))
    assert (error.leg.node, error.leg.purpose) == (P0, Purpose.PREFILL)
    assert str(status) in str(error)


@every_bad_reply
def test_a_bad_answer_never_leads_to_a_decode_leg(name: str, why: str):
    error = refused(name, BAD[name][why])
    assert error.leg.node == P0
    assert str(error).startswith("P0: ")


@every_connector
def test_the_message_of_a_refusal_is_short_whatever_the_reply_holds(name: str):
    for answer in BAD[name].values():
        assert len(str(refused(name, answer))) < 200


def test_every_connector_that_needs_addresses_says_what_they_look_like():
    assert set(ADDRESSES) < set(CONNECTORS)
    for rule in ADDRESSES.values():
        assert rule.roles and rule.form.fullmatch(rule.example)
        assert not rule.default or rule.form.fullmatch(rule.default.format(host="10.0.0.1"))
        assert bool(rule.query) == (rule.identity is not None)


@pytest.mark.parametrize("name", ADDRESSES)
def test_a_node_without_its_address_is_refused_before_anything_is_sent(name: str):
    for role, node in ((Role.PREFILL, P0), (Role.DECODE, D0)):
        if role in ADDRESSES[name].roles:
            known = {each: address for each, address in ADDRESSED.items() if each != node}
            error = refused(name, GOOD[name](), ConnectorOptions(addresses=known))
            assert (error.leg.node, error.leg.purpose) == (P0, Purpose.PREFILL)


# -- NIXL --------------------------------------------------------------------------------------------------------------


def test_nixl_gives_d_ps_object_itself_with_nothing_changed():
    params = nixl_params()
    before = json.dumps(params)
    decode = legs("nixl", reply(params)).decode
    assert decode is not None and decode.kv_transfer_params is params
    assert json.dumps(params) == before


def again(made: Connector, params: object, placement: Placement = TRANSFER) -> Seen:
    """One handshake more of a connector."""
    return driven(made.handshake(TURN, placement, 1), reply(params), Seen())


def test_nixl_never_passes_on_again_what_it_has_passed_on():
    made, params = connector("nixl"), nixl_params()
    decode = again(made, params).decode
    assert decode is not None and decode.kv_transfer_params is params
    with pytest.raises(HandshakeError, match="P0: "):
        again(made, nixl_params())


def test_nixl_forgets_the_objects_of_long_ago():
    made = connector("nixl")
    for number in range(REMEMBERED + 2):
        again(made, nixl_params(remote_request_id=f"r{number}"))
    again(made, nixl_params(remote_request_id="r0"))
    with pytest.raises(HandshakeError):
        again(made, nixl_params(remote_request_id=f"r{REMEMBERED}"))


def test_nixl_remembers_for_a_few_leases_so_that_its_memory_levels_off():
    made, lease_s = connector("nixl"), OPTIONS.lease_s
    assert isinstance(made, NixlConnector)

    def at(number: int, name: str | None = None) -> Seen:
        answer = reply(nixl_params(remote_request_id=name or f"r{number}"), at_s=number * lease_s / 10)
        return driven(made.handshake(TURN, TRANSFER, 1), answer, Seen())

    for number in range(1000):
        at(number)
        assert len(made._passed_on) <= 10 * REMEMBERED_LEASES + 1
    with pytest.raises(HandshakeError):
        at(1000, f"r{1000 - 10 * REMEMBERED_LEASES + 1}")


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.shown], ids=str)
def test_every_fault_of_the_table_that_the_object_shows_is_refused(fault: Fault):
    placement = Placement(P0, D0, Route.PREFILL_TRANSFER, BLOCK, blocks=2048)
    with pytest.raises(HandshakeError, match="P0: "):
        again(connector("nixl"), fault.spoil(nixl_params()), placement)


def test_nixl_takes_the_last_block_that_p_has_and_none_beyond_it():
    last = nixl_params(remote_block_ids=[[*range(1, 63), 2047]])
    has = Placement(P0, D0, Route.PREFILL_TRANSFER, BLOCK, 2048)
    decode = again(connector("nixl"), last, has).decode
    assert decode is not None and decode.kv_transfer_params is last
    with pytest.raises(HandshakeError, match="beyond the 2047"):
        again(connector("nixl"), last, replace(has, blocks=2047))


def test_nixl_blocks_that_cover_the_prompt_to_the_token_are_enough():
    assert legs("nixl", reply(nixl_params(), prompt_tokens=63 * BLOCK)).decode is not None
    refused("nixl", reply(nixl_params(), prompt_tokens=63 * BLOCK + 1))


def test_nixl_without_a_known_block_size_takes_the_number_of_blocks_on_trust():
    options = ConnectorOptions(block_tokens=None)
    assert legs("nixl", reply(nixl_params(), prompt_tokens=10**6), options).decode is not None


junk = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 70_000), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=6,
)


@every_connector
@given(data=st.data())
def test_whatever_p_answers_it_is_a_decode_leg_or_a_handshake_error(name, data):
    params = nixl_params()
    for key in data.draw(st.lists(st.sampled_from(sorted(params)), max_size=3)):
        params[key] = data.draw(junk)
    tokens = data.draw(st.integers(0, 5000))
    answer = reply(params, prompt_tokens=tokens, finish_reason=data.draw(st.sampled_from(["length", "stop", None])))
    try:
        decode = legs(name, answer).decode
    except HandshakeError:
        return
    assert decode is not None and (decode.node, decode.purpose) == (D0, Purpose.DECODE)
    assert name != "nixl" or decode.kv_transfer_params is params


# -- Mooncake ----------------------------------------------------------------------------------------------------------


def test_mooncake_sends_the_documented_parameters_both_at_once_under_one_transfer_id():
    decode = next(connector("mooncake").handshake(TURN, TRANSFER, 2))
    assert decode.kv_transfer_params == {
        "do_remote_decode": False,
        "do_remote_prefill": True,
        "remote_bootstrap_addr": ADDRESSED[P0],
        "remote_engine_id": "engine of P0",
        "transfer_id": "xfer-r1-2",
    }
    assert decode.beside is not None and decode.beside.kv_transfer_params == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "transfer_id": "xfer-r1-2",
    }
    assert decode.request_id is decode.beside.request_id is None


def test_mooncake_does_not_send_d_to_an_engine_it_does_not_know():
    refused("mooncake", reply(None), placement=replace(TRANSFER, engine_id=""))


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (b'{"0": {"engine_id": "e1", "worker_addr": {"0": {"0": "tcp://10.0.0.1:4000"}}}}', "e1"),
        (b'{"0": {"engine_id": "e1"}, "1": {"engine_id": "e2"}}', "2 data-parallel"),
        (b"{}", "no engine"),
        (b'{"0": {"engine_id": ""}}', "no engine"),
        (b'{"0": {"engine_id": 7}}', "does not answer as one"),
        (b"[]", "does not answer as one"),
        (b"<html>", "does not answer as one"),
        (b"\xff", "does not answer as one"),
        (b"[" * 10_000, "does not answer as one"),
    ],
)
def test_mooncake_reads_one_engine_from_a_bootstrap_server_or_says_what_is_wrong(answer: bytes, what: str):
    identity = ADDRESSES["mooncake"].identity
    assert identity is not None
    if what == "e1":
        assert identity(answer) == what
    else:
        with pytest.raises(ValueError, match=what):
            identity(answer)


# -- P2P-NCCL ----------------------------------------------------------------------------------------------------------


def test_p2p_nccl_gives_both_legs_one_id_that_upstreams_patterns_read():
    seen = legs("p2p_nccl", reply(None))
    ids = {leg.request_id for leg in seen.sent}
    (shared,) = ids
    assert shared is not None
    assert re.fullmatch(r"___prefill_addr_10\.0\.0\.1:21001___decode_addr_10\.0\.0\.3:22001_[0-9a-f]{32}", shared)
    for wrapped in (f"chatcmpl-{shared}", f"cmpl-{shared}-0", f"cmpl-{shared}-0-1a2b3c4d"):
        # parse_request_id of the last upstream P2pNcclConnector
        of_d = re.search(r"___decode_addr_(.*):(\d+)", wrapped)
        of_p = re.search(r"___prefill_addr_(.*):(\d+)___", wrapped)
        assert of_d is not None and of_d.groups() == ("10.0.0.3", "22001")
        assert of_p is not None and of_p.groups() == ("10.0.0.1", "21001")
        # MoRIIO's, vLLM 0.32
        read = re.search(r"___decode_addr_(.+)_[0-9a-f]{32}(?:-.*)?$", wrapped)
        assert read is not None and read[1] == ADDRESSED[D0]
    assert all(leg.kv_transfer_params is None for leg in seen.sent)
    assert "r1" not in shared


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lease_s": 2.0, "margin_s": 2.0}, "lease_s"),
        ({"lease_s": 1.0}, "lease_s"),
        ({"lease_s": float("nan")}, "lease_s"),
        ({"lease_s": float("inf")}, "lease_s"),
        ({"margin_s": -1.0}, "margin_s"),
        ({"margin_s": float("nan")}, "margin_s"),
        ({"block_tokens": 0}, "block_tokens"),
        ({"block_tokens": -16}, "block_tokens"),
    ],
)
def test_options_that_no_transfer_could_meet_are_refused_by_name(options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        ConnectorOptions(**options)


def test_no_margin_and_a_block_of_one_token_are_options():
    assert ConnectorOptions(lease_s=0.1, margin_s=0.0, block_tokens=1).lease_s == 0.1


# -- against handshakes captured from vLLM 0.32 ------------------------------------------------------------------------


@pytest.fixture(scope="session")
def captured(measured_dir: Path) -> list[dict[str, Any]]:
    """Requests and replies of real engines, long lists cut short with a note of their length."""
    path = measured_dir.parent / "vllm" / "handshake.jsonl"
    if not path.is_file():
        pytest.skip("no captured handshakes: ../shared/vllm/handshake.jsonl is not there")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def whole(params: Mapping[str, Any]) -> dict[str, Any]:
    """The object with its block lists as long as they were."""
    groups = []
    for group in params["remote_block_ids"]:
        cut = re.fullmatch(r"\.\.\.<(\d+)>", str(group[-1]))
        groups.append(list(range(1, int(cut[1]) + 1)) if cut else group)
    return {**params, "remote_block_ids": groups}


def prefills(captured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Plain prefill legs: the first half of a hand-over."""
    return [
        exchange
        for exchange in captured
        if (exchange["req"].get("kv_transfer_params") or {}).get("do_remote_decode")
        and "remote_block_ids" not in exchange["req"]["kv_transfer_params"]
        and not exchange["req"].get("stream")
    ]


def test_what_a_real_p_answered_is_accepted_and_passed_on(captured):
    accepted = 0
    for exchange in prefills(captured):
        if exchange["status"] != 200:
            refused("nixl", reply(None, status=exchange["status"]))
            continue
        params = whole(exchange["resp"]["kv_transfer_params"])
        answer = reply(params, prompt_tokens=exchange["resp"]["usage"]["prompt_tokens"])
        decode = legs("nixl", answer).decode
        assert decode is not None and decode.kv_transfer_params is params, exchange["tag"]
        accepted += 1
    assert accepted > 10


def test_our_prefill_leg_asks_what_the_captured_ones_asked(captured):
    ours = next(connector("nixl").handshake(TURN, TRANSFER)).kv_transfer_params
    assert ours is not None
    said = {key: value for key, value in ours.items() if value is not None}  # the capture has its nulls dropped
    asked = [exchange["req"]["kv_transfer_params"] for exchange in prefills(captured)]
    assert said in asked


def test_what_a_real_d_answered_is_no_prefill_reply(captured):
    of_d = [
        exchange["resp"]["kv_transfer_params"]
        for exchange in captured
        if (exchange.get("resp") or {}).get("kv_transfer_params", {}).get("do_remote_decode")
    ]
    assert of_d, "the capture has replies of bidirectional decode nodes"
    for params in of_d:
        refused("nixl", reply(whole(params), prompt_tokens=1))
