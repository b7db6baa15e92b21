"""A fleet: its notation, the NIXL hand-over with its leases and links, what breaks it, death and return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from emulator.events import Events
from emulator.fleet import HANDSHAKE_S, Call, Fleet, LoadFailure, Reply, Request, Role, parse_topology
from emulator.prefix_cache import Prompt
from emulator.profiles import LLAMA_3_1_8B_H100, EngineProfile, wire_ms

P = LLAMA_3_1_8B_H100
START_PREFILL = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None}

# -- notation ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("notation", "counts"),
    [
        ("2P_2D", {Role.PREFILL: 2, Role.DECODE: 2}),
        ("1P_3D", {Role.PREFILL: 1, Role.DECODE: 3}),
        ("4R", {Role.REPLICA: 4}),
        ("1P_1D_2R", {Role.PREFILL: 1, Role.DECODE: 1, Role.REPLICA: 2}),
        ("12P_34D", {Role.PREFILL: 12, Role.DECODE: 34}),
        ("1D", {Role.DECODE: 1}),
        ("2P_2pD", {Role.PREFILL: 2, Role.APPEND: 2}),
        ("1R_1P_1D_1pD", {Role.REPLICA: 1, Role.PREFILL: 1, Role.DECODE: 1, Role.APPEND: 1}),
    ],
)
def test_a_topology_is_counts_and_roles(notation, counts):
    assert parse_topology(notation) == counts


@pytest.mark.parametrize(
    "notation",
    ["", "P", "0P_1D", "1P_0D", "1P__1D", "1P-1D", "1P_1D_", " 1P_1D", "1p_1d", "1X", "1P_1P_1D", "2P_2Pd", "-1D"],
)
def test_a_bad_topology_is_refused_with_an_example_of_a_good_one(notation):
    with pytest.raises(ValueError, match=r"is not a count and a role; write e\.g\. 1P_3D") as error:
        parse_topology(notation)
    assert repr(notation) in str(error.value)


def test_a_topology_that_cannot_decode_is_refused():
    with pytest.raises(ValueError, match="'3P' has nobody to decode; add D or R nodes"):
        parse_topology("3P")


def test_nodes_are_named_by_role_and_number():
    fleet = Fleet("2P_1D_1R", P, Events())
    assert list(fleet.engines) == ["P0", "P1", "D0", "R0"]
    assert fleet.roles["P1"] is Role.PREFILL and fleet.roles["R0"] is Role.REPLICA


# -- a client ------------------------------------------------------------------------------------------------


@dataclass
class Answer:
    """What came back for one request, each with its time."""

    first_s: list[float] = field(default_factory=list)
    done: list[tuple[float, Reply]] = field(default_factory=list)
    failed: list[tuple[float, int]] = field(default_factory=list)
    call: Call | None = None

    def abort(self) -> None:
        assert self.call is not None
        self.call.abort()

    @property
    def reply(self) -> Reply:
        ((_, reply),) = self.done
        assert not self.failed
        return reply

    @property
    def status(self) -> int:
        ((_, status),) = self.failed
        assert not self.done
        return status

    @property
    def silent(self) -> bool:
        return not (self.first_s or self.done or self.failed)


class Client:
    """Sends requests to a fleet and keeps the answers."""

    def __init__(
        self, notation: str = "1P_1D", profile: EngineProfile = P, load_failure: LoadFailure = LoadFailure.FAIL
    ) -> None:
        self.events = Events()
        self.fleet = Fleet(notation, profile, self.events, load_failure)

    def send(
        self,
        node: str,
        prompt: Prompt | int,
        output: int = 4,
        params: Mapping[str, object] | None = None,
        name: str = "r",
    ) -> Answer:
        answer = Answer()
        path = ((name, prompt),) if isinstance(prompt, int) else prompt
        answer.call = self.fleet.call(
            node,
            Request(name, path, output, params),
            answer.first_s.append,
            lambda at_s, reply: answer.done.append((at_s, reply)),
            lambda at_s, status: answer.failed.append((at_s, status)),
        )
        return answer

    def run(self, for_s: float = 5.0) -> None:
        self.events.run(self.events.now_s + for_s)

    def prefill(self, prompt: Prompt | int, node: str = "P0", name: str = "r") -> dict[str, object]:
        """The P leg, run to its end: the transfer parameters."""
        answer = self.send(node, prompt, 64, START_PREFILL, name)
        self.run()
        params = answer.reply.kv_transfer_params
        assert params is not None
        return params

    def used(self, node: str) -> int:
        return self.fleet.engines[node].cache.in_use_tokens


# -- the hand-over -------------------------------------------------------------------------------------------


def test_a_prefill_leg_answers_in_the_shape_of_the_nixl_connector():
    client = Client()
    answer = client.send("P0", 1000, 64, START_PREFILL, "turn7")
    client.run()
    reply = answer.reply
    assert (reply.prompt_tokens, reply.cached_tokens, reply.completion_tokens) == (1000, 0, 1)
    params = dict(reply.kv_transfer_params or {})
    blocks = params.pop("remote_block_ids")
    assert isinstance(blocks, list) and [len(group) for group in blocks] == [63]  # 1,000 tokens in blocks of 16
    remote_id = params.pop("remote_request_id")
    assert isinstance(remote_id, str) and remote_id.startswith("chatcmpl-turn7-")
    assert params == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": "P0",
        "remote_host": "127.0.0.1",
        "remote_port": 5600,
        "remote_num_tokens": 1000,
        "remote_prefill_cached_tokens": 0,
    }
    assert answer.first_s == []


def test_every_prefill_has_a_request_id_of_its_own():
    client = Client()
    assert client.prefill(100)["remote_request_id"] != client.prefill(100)["remote_request_id"]


def test_a_decode_leg_takes_hop_link_and_a_step_with_its_stall():
    client = Client()
    params = client.prefill(2000)
    sent_s = client.events.now_s
    answer = client.send("D0", 2000, 3, params)
    client.run()
    link_ms = P.link.fixed_ms + 2000 * 131072 / 50e9 * 1e3
    step_ms = 6.4 + 1.3 + 0.06 + 2000 * P.kv_read_ms_per_token + P.link.receive_stall_ms
    assert answer.first_s == [pytest.approx(sent_s + (12 + link_ms + step_ms + 9) / 1e3)]
    assert answer.reply.kv_transfer_params is None
    assert (answer.reply.prompt_tokens, answer.reply.completion_tokens) == (2000, 3)


def test_a_plain_request_stays_on_its_node():
    client = Client()
    answer = client.send("D0", 500, 3)
    client.run()
    assert answer.reply == Reply(500, 0, 3)
    assert client.fleet.transferred_tokens == 0 and client.fleet.engines["P0"].steps_done == 0


def test_a_later_transfer_pulls_only_what_d_lacks():
    client = Client()
    client.send("D0", 1000, 24, client.prefill(1000))
    client.run()
    assert client.fleet.transferred_tokens == 1000
    # D holds the prompt and all but the last token of its answer; P only the prompt.
    params = client.prefill(1100)
    assert params["remote_prefill_cached_tokens"] == 992
    sent_s = client.events.now_s
    second = client.send("D0", 1100, 24, params)
    client.run()
    assert client.fleet.transferred_tokens == 1000 + 1100 - 1008
    link_ms = P.link.fixed_ms + wire_ms(92, 128 * 1024, P.link.bandwidth_gb_s)
    step_ms = 6.4 + 1.3 + 0.06 + 1100 * P.kv_read_ms_per_token + P.link.receive_stall_ms
    assert second.first_s == [pytest.approx(sent_s + (12 + link_ms + step_ms + 9) / 1e3)]


def test_a_decode_leg_reports_the_hits_of_p_and_a_local_one_those_of_d():
    client = Client()
    client.send("D0", 1000, 24, client.prefill(1000))
    client.run()
    transferred = client.send("D0", 1100, 24, client.prefill(1100))
    client.run()
    assert transferred.reply.cached_tokens == 992
    local = client.send("D0", 1200, 24)
    client.run()
    assert local.reply.cached_tokens == 1120  # 1,123 are there


def two_transfers(owners: tuple[str, str]) -> list[float]:
    """Seconds from sending two decode legs at once to their first tokens, on two idle D nodes."""
    client = Client("2P_2D", P.with_bandwidth(10))
    handles = [client.prefill(4000, owner, f"r{n}") for n, owner in enumerate(owners)]
    sent_s = client.events.now_s
    answers = [client.send(f"D{n}", 4000, 2, handle, f"r{n}") for n, handle in enumerate(handles)]
    client.run()
    return [answer.first_s[0] - sent_s for answer in answers]


def test_the_link_of_a_prefill_node_serves_one_transfer_after_the_other():
    one_ms = P.link.fixed_ms + wire_ms(4000, 128 * 1024, 10)
    first_s, second_s = two_transfers(("P0", "P0"))
    assert second_s - first_s == pytest.approx(one_ms / 1e3)


def test_two_prefill_nodes_have_two_links():
    first_s, second_s = two_transfers(("P0", "P1"))
    assert second_s == pytest.approx(first_s)


def test_replicas_serve_alone_and_hand_over_too():
    client = Client("2R")
    alone = client.send("R0", 300, 5)
    client.run()
    assert alone.reply == Reply(300, 0, 5)
    params = client.prefill(600, "R0", "x")
    moved = client.send("R1", 600, 5, params, "x")
    client.run()
    assert moved.reply.completion_tokens == 5 and client.fleet.transferred_tokens == 600
    assert client.used("R0") == client.used("R1") == 0


# -- leases --------------------------------------------------------------------------------------------------


def test_p_keeps_the_prompt_until_d_has_read_it():
    client = Client()
    params = client.prefill(2000)
    assert (client.used("P0"), client.fleet.open_leases) == (2001, 1)
    client.send("D0", 2000, 50, params)
    client.run(0.020)  # the transfer takes 9.2 ms from the twelfth on
    assert (client.used("P0"), client.fleet.open_leases) == (2001, 1)
    client.run(0.003)
    assert (client.used("P0"), client.fleet.open_leases) == (0, 0)
    assert client.fleet.engines["P0"].cache.resident_tokens == 2000
    client.run()
    assert client.fleet.leases_expired == client.fleet.poisoned_reads == 0


def test_a_prompt_that_nobody_reads_is_let_go_when_its_lease_expires():
    client = Client()
    client.prefill(2000)
    client.run(24.0)
    assert (client.used("P0"), client.fleet.open_leases) == (2001, 1)
    client.run(2.0)
    assert (client.used("P0"), client.fleet.open_leases, client.fleet.leases_expired) == (0, 0, 1)
    assert client.fleet.engines["P0"].cache.resident_tokens == 2000


def test_an_expired_lease_lets_the_next_prompt_in():
    client = Client("1P_1D", replace(P, kv_capacity_tokens=3000, lease_s=10.0))
    client.prefill(2000)
    second = client.send("P0", 2500, 1, START_PREFILL, "s")
    client.run(4.9)
    assert second.silent and client.fleet.engines["P0"].waiting == 1
    client.run(5.0)
    assert second.reply.prompt_tokens == 2500


def test_a_reader_in_the_queue_of_d_keeps_the_lease_alive():
    client = Client("1P_1D", replace(P, kv_capacity_tokens=6000))
    client.send("D0", 10, 5500, None, "long")  # nearly full for 45 s and more
    params = client.prefill(2000)
    reader = client.send("D0", 2000, 5, params)
    client.run(35.0)
    assert reader.silent and client.fleet.open_leases == 1
    client.run(60.0)
    assert reader.reply.completion_tokens == 5
    assert (client.fleet.leases_expired, client.fleet.poisoned_reads, client.used("P0")) == (0, 0, 0)


def test_a_reader_that_gives_up_lets_the_lease_expire():
    client = Client("1P_1D", replace(P, kv_capacity_tokens=6000))
    client.send("D0", 10, 5500, None, "long")
    reader = client.send("D0", 2000, 5, client.prefill(2000))
    client.run(5.0)
    reader.abort()
    client.run(60.0)
    assert reader.silent
    assert (client.fleet.open_leases, client.fleet.leases_expired, client.used("P0")) == (0, 1, 0)


def test_a_reader_that_leaves_during_its_transfer_gives_everything_back():
    client = Client("1P_1D", P.with_bandwidth(1))
    reader = client.send("D0", 2000, 5, client.prefill(2000))
    client.run(0.1)  # of a transfer of 266 ms
    assert client.used("D0") == 2005
    reader.abort()
    client.run(0.1)
    assert client.used("D0") == 2005  # blocks that are being written stay
    client.run()
    assert (client.used("D0"), client.used("P0"), client.fleet.open_leases) == (0, 0, 0)
    assert reader.silent


# -- wrong hand-overs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [{"remote_block_ids": None}, {"remote_block_ids": []}, {"remote_block_ids": None, "remote_request_id": None}],
    ids=["null blocks", "no blocks", "nothing"],
)
def test_a_hand_over_without_blocks_kills_the_decode_engine(wrong):
    client = Client("1P_2D")
    params = client.prefill(500)
    other = client.send("D0", 50, 500, None, "other")
    safe = client.send("D1", 50, 500, None, "safe")
    client.run(1.0)
    broken = client.send("D0", 500, 5, {**params, **wrong})
    client.run(1.0)
    assert not client.fleet.engines["D0"].alive and client.fleet.engines["D1"].alive
    assert (broken.status, other.status) == (503, 503)
    client.run()
    assert safe.reply.completion_tokens == 500
    client.fleet.revive("D0")
    after = client.send("D0", 500, 5, params)
    client.run()
    assert after.reply.completion_tokens == 5


def test_without_a_request_id_d_hangs_and_dies_when_the_client_leaves():
    client = Client()
    hanging = client.send("D0", 500, 5, {**client.prefill(500), "remote_request_id": None})
    other = client.send("D0", 50, 20, None, "other")
    client.run(100.0)
    assert hanging.silent and other.reply.completion_tokens == 20
    assert client.fleet.engines["D0"].waiting == 1
    assert hanging.call is not None
    hanging.call.abort()
    assert not client.fleet.engines["D0"].alive and hanging.silent


def test_an_expired_lease_is_read_as_garbage_and_counted():
    client = Client()
    params = client.prefill(500)
    client.run(31.0)
    answer = client.send("D0", 500, 5, params)
    client.run()
    assert answer.reply.completion_tokens == 5  # 200, and nobody can tell
    assert (client.fleet.poisoned_reads, client.fleet.leases_expired) == (1, 1)


def test_a_second_read_of_one_lease_is_garbage_and_counted():
    client = Client("1P_2D")
    params = client.prefill(500)
    answers = [client.send("D0", 500, 5, params)]
    client.run()
    answers.append(client.send("D1", 500, 5, params))
    client.run()
    assert [answer.reply.completion_tokens for answer in answers] == [5, 5]
    assert (client.fleet.poisoned_reads, client.fleet.transferred_tokens) == (1, 500)


def test_a_second_reader_that_was_at_its_node_in_time_but_reads_too_late_reads_garbage_too():
    client = Client("1P_2D", replace(P, kv_capacity_tokens=6000))
    client.send("D1", 10, 5500, None, "long")
    params = client.prefill(2000)
    answers = [client.send("D1", 2000, 5, params), client.send("D0", 2000, 5, params)]
    client.run(90.0)
    assert [answer.reply.completion_tokens for answer in answers] == [5, 5]
    assert client.fleet.poisoned_reads == 1


def test_an_unknown_prefill_node_fails_the_request_and_leaves_d_well():
    client = Client()
    answer = client.send("D0", 500, 5, {**client.prefill(500), "remote_engine_id": "P9"})
    client.run(HANDSHAKE_S)
    assert answer.silent
    client.run()
    assert answer.status == 500 and client.fleet.engines["D0"].alive and client.used("D0") == 0


def test_a_d_that_has_read_from_p_before_learns_at_once_that_p_is_gone():
    client = Client("2P_1D")
    client.send("D0", 500, 5, client.prefill(500))
    client.run()
    met, stranger = client.prefill(600, name="met"), client.prefill(600, "P1", "stranger")
    assert client.fleet.met("D0") == ["P0"]
    client.fleet.kill("P0")
    client.fleet.kill("P1")
    soon, late = client.send("D0", 600, 5, met, "met"), client.send("D0", 600, 5, stranger, "stranger")
    client.run(1.0)
    assert soon.status == 500 and late.silent
    client.run(HANDSHAKE_S)
    assert late.status == 500
    client.fleet.kill("D0")
    assert client.fleet.met("D0") == []


@pytest.mark.parametrize(
    ("wrong", "within_s"),
    [
        ({"remote_engine_id": "P9"}, HANDSHAKE_S + 1.0),
        ({"remote_engine_id": "P9", "side_channel": True}, 1.0),
        ({"remote_engine_id": "D0"}, 1.0),
        ({"readable": False}, 1.0),
    ],
    ids=["nobody there", "somebody else", "itself", "blocks that P does not have"],
)
def test_with_recompute_d_computes_what_it_could_not_read(wrong, within_s):
    client = Client(load_failure=LoadFailure.RECOMPUTE)
    answer = client.send("D0", 500, 5, {**client.prefill(500), **wrong})
    client.run(within_s)
    assert answer.reply.completion_tokens == 5 and len(answer.first_s) == 1
    assert (client.fleet.transferred_tokens, client.used("D0")) == (0, 0)
    again = client.send("D0", 500, 5)
    client.run(1.0)
    assert again.reply.cached_tokens > 0  # what it computed is its own


def test_with_recompute_a_p_that_dies_during_a_transfer_costs_time_and_no_answer():
    client = Client("1P_1D", P.with_bandwidth(0.02), LoadFailure.RECOMPUTE)
    answer = client.send("D0", 2000, 5, client.prefill(2000))  # a transfer of 13 s
    client.run(0.1)
    client.fleet.kill("P0")
    client.run(20.0)
    assert answer.reply.completion_tokens == 5 and client.used("D0") == 0


@pytest.mark.parametrize("policy", LoadFailure)
def test_a_client_that_leaves_while_d_waits_for_a_side_channel_leaves_nothing_behind(policy):
    client = Client(load_failure=policy)
    answer = client.send("D0", 500, 5, {**client.prefill(500), "remote_engine_id": "P9"})
    client.run(1.0)
    assert answer.call is not None
    answer.call.abort()
    client.run(HANDSHAKE_S + 1.0)
    assert answer.silent and client.used("D0") == 0 and client.fleet.engines["D0"].alive


def test_what_a_lease_holds_is_a_hit_for_the_next_prompt():
    client = Client()
    first = client.send("P0", 500, 64, START_PREFILL)
    client.run(1.0)
    second = client.send("P0", (("r", 500), ("more", 100)), 64, START_PREFILL)
    client.run(1.0)
    assert client.fleet.open_leases == 2
    assert (first.reply.cached_tokens, second.reply.cached_tokens) == (0, 496)
    client.run(P.lease_s)
    assert client.used("P0") == 0


# -- death ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("back", "late_s"),
    [(False, 0.0), (False, 31.0), (True, 0.0)],
    ids=["dead", "dead and the lease over", "restarted"],
)
def test_a_transfer_from_a_p_that_died_fails_the_request_of_d(back, late_s):
    client = Client()
    params = client.prefill(2000)
    client.fleet.kill("P0")
    if back:
        client.fleet.revive("P0")
    assert client.fleet.open_leases == 0
    client.run(late_s)
    answer = client.send("D0", 2000, 5, params)
    client.run(HANDSHAKE_S + 1.0)
    assert answer.status == 500 and answer.first_s == []
    assert client.used("D0") == 0 and client.fleet.engines["D0"].alive
    assert client.fleet.transferred_tokens == 0
    client.run(60.0)
    assert (client.fleet.leases_expired, client.fleet.poisoned_reads) == (0, 0)


def test_a_p_that_dies_during_a_transfer_fails_the_request_of_d():
    client = Client("1P_1D", P.with_bandwidth(0.02))
    params = client.prefill(2000)
    answer = client.send("D0", 2000, 5, params)  # a transfer of 13 s
    client.run(0.1)
    client.fleet.kill("P0")
    client.fleet.revive("P0")
    fresh = client.send("D0", 100, 5, client.prefill(100, name="s"), "s")
    client.run(2.0)
    assert answer.silent
    assert fresh.reply.completion_tokens == 5  # the new process has a free link
    client.run(10.0)
    assert answer.status == 500 and client.used("D0") == 0


def test_a_d_that_dies_during_a_transfer_fails_its_request_and_p_gets_its_memory_back():
    client = Client("1P_1D", P.with_bandwidth(1))
    answer = client.send("D0", 2000, 5, client.prefill(2000))
    client.run(0.1)
    client.fleet.kill("D0")
    client.fleet.revive("D0")
    client.run(60.0)
    assert answer.status == 503
    assert (client.used("P0"), client.used("D0"), client.fleet.open_leases) == (0, 0, 0)


def test_a_dying_node_fails_all_its_requests_once_and_loses_its_cache():
    client = Client("1P_1D")
    client.send("D0", 1000, 10)
    client.run()
    answers = [client.send("D0", 1000 + n, 400, None, f"a{n}") for n in range(3)]
    client.run(0.5)
    answers.append(client.send("D0", 30, 5, client.prefill(30, name="late"), "late"))
    answers = [answer for answer in answers if not answer.done]
    assert len(answers) == 1  # prefill() above ran for five seconds: only the last is in flight
    answers += [client.send("D0", 1000 + n, 400, None, f"b{n}") for n in range(3)]
    client.run(0.02)
    client.fleet.kill("D0")
    client.fleet.kill("D0")
    client.run()
    assert [answer.status for answer in answers] == [503] * 4
    refused = client.send("D0", 10, 1)
    client.run()
    assert refused.status == 503
    client.fleet.revive("D0")
    again = client.send("D0", 1000, 10)
    client.run()
    assert again.reply.cached_tokens == 0


def test_a_prefill_leg_on_a_dying_p_fails_once():
    client = Client()
    answer = client.send("P0", 8000, 1, START_PREFILL)
    client.run(0.15)
    client.fleet.kill("P0")
    client.fleet.revive("P0")
    client.run(60.0)
    assert answer.status == 503 and client.fleet.open_leases == 0 and client.used("P0") == 0


def test_a_request_too_long_for_the_node_fails_with_a_server_error():
    client = Client()
    answer = client.send("D0", 400_000, 5)
    client.run()
    assert answer.status == 500


# -- clients that leave --------------------------------------------------------------------------------------


def test_one_who_leaves_hears_nothing_more():
    client = Client()
    answer = client.send("D0", 500, 400)
    client.run(1.0)
    assert len(answer.first_s) == 1
    answer.abort()
    client.run()
    assert not answer.done and not answer.failed and client.used("D0") == 0


def test_one_who_leaves_after_the_prefill_leg_leaves_a_lease_that_expires():
    client = Client()
    answer = client.send("P0", 500, 1, START_PREFILL)
    client.run()
    answer.abort()
    client.run(60.0)
    assert (client.fleet.leases_expired, client.used("P0")) == (1, 0)


# -- the whole -----------------------------------------------------------------------------------------------


def day(seed_s: float) -> tuple[list[object], int]:
    """Many turns by both routes with a death in between; everything that clients saw, and the events it took."""
    client = Client("2P_2D", replace(P, kv_capacity_tokens=20_000))
    answers: list[Answer] = []

    def decode(n: int, prompt: Prompt, params: dict[str, object] | None) -> None:
        answers.append(client.send(f"D{n % 2}", prompt, 30 + n % 50, params, f"q{n}"))

    def turn(n: int) -> None:
        prompt = (("system", 200), (f"c{n % 23}", 100 + 57 * n))
        if n % 3:
            decode(n, prompt, None)
            return
        answer = Answer()
        answers.append(answer)
        client.fleet.call(
            f"P{n % 2}",
            Request(f"q{n}", prompt, 1, START_PREFILL),
            None,
            lambda at_s, reply: decode(n, prompt, reply.kv_transfer_params),
            lambda at_s, status: answer.failed.append((at_s, status)),
        )

    for n in range(120):
        client.events.at(0.11 * n + seed_s, turn, n)
    client.events.at(6.0, client.fleet.kill, "D1")
    client.events.at(8.0, client.fleet.revive, "D1")
    client.events.at(9.0, client.fleet.kill, "P0")
    client.events.at(10.0, client.fleet.revive, "P0")
    ran = client.events.run(120.0)
    assert all(client.used(node) == 0 for node in client.fleet.engines)
    assert client.fleet.open_leases == client.fleet.poisoned_reads == 0
    assert client.fleet.transferred_tokens > 20_000
    assert sum(bool(answer.failed) for answer in answers) > 10
    seen: list[object] = [(answer.first_s, answer.done, answer.failed) for answer in answers]
    return seen, ran


def test_a_day_of_turns_and_deaths_replays_exactly_and_leaves_no_memory_behind():
    assert day(0.0) == day(0.0)
    assert day(0.0) != day(0.001)
