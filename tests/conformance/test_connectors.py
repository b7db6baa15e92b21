"""What every connector has to do, whoever wrote it: give D what P gave, in time, or nothing at all.

A new connector needs two entries here, a good reply and the bad ones; then it passes or fails every check below.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.connectors import CONNECTORS
from router.connectors.nixl import REMEMBERED
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
from router.turn import ConversationKey, NodeId, Route, Turn
from tests.conformance_face.faults import FAULTS, Fault

P0, D0 = NodeId("P0"), NodeId("D0")
BLOCK = 32
PROMPT = 2009
OPTIONS = ConnectorOptions(lease_s=30.0, margin_s=2.0, block_tokens=BLOCK)
LOCAL = Placement(None, D0, Route.APPEND_LOCAL)
TRANSFER = Placement(P0, D0, Route.PREFILL_TRANSFER)
TURN = Turn("r1", ConversationKey("", "llm", "c1"), 100, None, True, 0.0)


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


GOOD: dict[str, Callable[[], dict[str, object]]] = {"nixl": nixl_params}
"""By connector: the parameters of a good prefill reply."""

BAD: dict[str, dict[str, object]] = {
    "nixl": {
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
        "a null block in the middle": nixl_params(remote_block_ids=[[*range(1, 31), None, *range(31, 63)]]),
        "a block that is a fraction": nixl_params(remote_block_ids=[[*range(1, 63), 1.5]]),
        "nothing at all": {},
        "a list": [],
        "a text": "do_remote_prefill",
    },
}
"""By connector: parameters that must not reach a decode node."""

every_connector = pytest.mark.parametrize("name", CONNECTORS)
every_bad_reply = pytest.mark.parametrize(
    ("name", "why"), [(name, why) for name in CONNECTORS for why in BAD.get(name, {})]
)


def connector(name: str, options: ConnectorOptions = OPTIONS) -> Connector:
    return CONNECTORS[name](options)


def reply(params: object, status: int = 200, prompt_tokens: int = PROMPT, at_s: float = 100.0) -> LegReply:
    return LegReply(status, prompt_tokens, 0, params, at_s)  # type: ignore[arg-type]


def legs(handshake: Handshake, answer: LegReply) -> list[Leg]:
    """All legs of a handshake, in order, each answered so; the last is the returned one."""
    seen = []
    try:
        leg = next(handshake)
        while True:
            seen.append(leg)
            leg = handshake.send(answer)
    except StopIteration as stop:
        seen.append(stop.value)
    return seen


def refused(name: str, answer: LegReply, options: ConnectorOptions = OPTIONS) -> HandshakeError:
    """The error of a handshake whose prefill is answered so. No decode leg was given out."""
    seen = []
    with pytest.raises(HandshakeError) as error:
        seen = legs(connector(name, options).handshake(TURN, TRANSFER), answer)
    assert seen == []
    return error.value


@every_connector
def test_every_connector_says_here_what_is_good_and_what_is_bad(name: str):
    assert name in GOOD and BAD.get(name), f"add {name} to GOOD and BAD in {Path(__file__).name}"


@every_connector
def test_a_local_placement_is_one_decode_leg_and_no_prefill(name: str):
    seen = legs(connector(name).handshake(TURN, LOCAL), reply(None, status=500))
    assert [(leg.node, leg.purpose) for leg in seen] == [(D0, Purpose.DECODE)]
    assert (seen[0].kv_transfer_params, seen[0].not_after_s) == (None, None)


@every_connector
def test_a_transfer_is_a_prefill_leg_to_p_and_then_a_decode_leg_to_d(name: str):
    seen = legs(connector(name).handshake(TURN, TRANSFER), reply(GOOD[name]()))
    assert [(leg.node, leg.purpose) for leg in seen] == [(P0, Purpose.PREFILL), (D0, Purpose.DECODE)]
    assert seen[0].not_after_s is None


@every_connector
def test_d_gets_ps_object_itself_with_nothing_changed(name: str):
    params = GOOD[name]()
    before = json.dumps(params)
    seen = legs(connector(name).handshake(TURN, TRANSFER), reply(params))
    assert seen[-1].kv_transfer_params is params
    assert json.dumps(params) == before


@every_connector
@pytest.mark.parametrize(("lease_s", "margin_s", "deadline_s"), [(30.0, 2.0, 128.0), (12.0, 0.5, 111.5)])
def test_the_decode_leg_must_leave_before_the_lease_ends(name: str, lease_s: float, margin_s: float, deadline_s: float):
    options = ConnectorOptions(lease_s, margin_s, BLOCK)
    seen = legs(connector(name, options).handshake(TURN, TRANSFER), reply(GOOD[name](), at_s=100.0))
    assert seen[-1].not_after_s == pytest.approx(deadline_s)


@every_connector
def test_the_prefill_leg_is_the_same_for_every_turn_and_nobody_can_change_it(name: str):
    made = connector(name)
    first, second = (next(made.handshake(TURN, TRANSFER)) for _ in range(2))
    assert first == second
    legs(made.handshake(TURN, TRANSFER), reply(GOOD[name]()))
    assert next(made.handshake(TURN, TRANSFER)) == first


@every_connector
@pytest.mark.parametrize("status", [100, 201, 202, 204, 301, 400, 404, 422, 429, 500, 502, 503, 504])
def test_an_answer_that_is_not_200_never_leads_to_a_decode_leg(name: str, status: int):
    error = refused(name, reply(GOOD[name](), status=status))
    assert error.leg == Leg(P0, Purpose.PREFILL, error.leg.kv_transfer_params)
    assert str(status) in str(error)


@every_connector
def test_an_answer_without_parameters_never_leads_to_a_decode_leg(name: str):
    assert str(refused(name, reply(None))).startswith("P0: ")


@every_bad_reply
def test_a_malformed_answer_never_leads_to_a_decode_leg(name: str, why: str):
    error = refused(name, reply(BAD[name][why]))
    assert error.leg.node == P0
    assert str(error).startswith("P0: ")


@every_connector
def test_the_message_of_a_refusal_is_short_whatever_the_reply_holds(name: str):
    for params in BAD[name].values():
        assert len(str(refused(name, reply(params)))) < 200


@every_connector
def test_an_object_that_was_passed_on_is_never_passed_on_again(name: str):
    made, params = connector(name), GOOD[name]()
    assert legs(made.handshake(TURN, TRANSFER), reply(params))[-1].kv_transfer_params is params
    seen = []
    with pytest.raises(HandshakeError, match="P0: "):
        seen = legs(made.handshake(TURN, TRANSFER), reply(GOOD[name]()))
    assert seen == []


def test_nixl_forgets_the_objects_of_long_ago():
    made = connector("nixl")
    for number in range(REMEMBERED + 2):
        legs(made.handshake(TURN, TRANSFER), reply(nixl_params(remote_request_id=f"r{number}")))
    legs(made.handshake(TURN, TRANSFER), reply(nixl_params(remote_request_id="r0")))
    with pytest.raises(HandshakeError):
        legs(made.handshake(TURN, TRANSFER), reply(nixl_params(remote_request_id=f"r{REMEMBERED}")))


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.shown], ids=str)
def test_every_fault_of_the_table_that_the_object_shows_is_refused(fault: Fault):
    placement = Placement(P0, D0, Route.PREFILL_TRANSFER, BLOCK, blocks=2048)
    bad = fault.spoil(nixl_params())
    with pytest.raises(HandshakeError, match="P0: "):
        legs(connector("nixl").handshake(TURN, placement), reply(bad))


def test_nixl_takes_the_last_block_that_p_has_and_none_beyond_it():
    last = nixl_params(remote_block_ids=[[*range(1, 63), 2047]])
    for blocks, refused_ in ((2048, False), (2047, True)):
        placement = Placement(P0, D0, Route.PREFILL_TRANSFER, BLOCK, blocks)
        handshake = connector("nixl").handshake(TURN, placement)
        if refused_:
            with pytest.raises(HandshakeError, match="beyond the 2047"):
                legs(handshake, reply(last))
        else:
            assert legs(handshake, reply(last))[-1].kv_transfer_params is last


def test_nixl_blocks_that_cover_the_prompt_to_the_token_are_enough():
    seen = legs(connector("nixl").handshake(TURN, TRANSFER), reply(nixl_params(), prompt_tokens=63 * BLOCK))
    assert seen[-1].purpose is Purpose.DECODE
    refused("nixl", reply(nixl_params(), prompt_tokens=63 * BLOCK + 1))


def test_nixl_without_a_known_block_size_takes_the_number_of_blocks_on_trust():
    options = ConnectorOptions(block_tokens=None)
    seen = legs(connector("nixl", options).handshake(TURN, TRANSFER), reply(nixl_params(), prompt_tokens=10**6))
    assert seen[-1].purpose is Purpose.DECODE


junk = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 70_000), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=6,
)


@every_connector
@given(data=st.data())
def test_whatever_p_answers_it_is_a_decode_leg_with_that_very_object_or_a_handshake_error(name, data):
    params = GOOD[name]()
    for key in data.draw(st.lists(st.sampled_from(sorted(params)), max_size=3)):
        params[key] = data.draw(junk)
    answer = reply(params, prompt_tokens=data.draw(st.integers(0, 5000)))
    try:
        seen = legs(connector(name).handshake(TURN, TRANSFER), answer)
    except HandshakeError:
        return
    assert seen[-1].kv_transfer_params is params


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
        seen = legs(connector("nixl").handshake(TURN, TRANSFER), answer)
        assert seen[-1].kv_transfer_params is params, exchange["tag"]
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
