"""Links: the P2pNccl-like one beside the NIXL-like one, other speeds, mixed fleets. Equation 2 is in test_profiles."""

from __future__ import annotations

from dataclasses import replace

import pytest

from emulator.events import Events
from emulator.fleet import PAPER_TOPOLOGIES, Fleet, Request, Role, parse_topology
from emulator.profiles import (
    LLAMA_3_1_8B_H100,
    LLAMA_3_1_70B_H100_TP4,
    P2P_NCCL,
    QWEN_2_5_14B_H100,
    EngineProfile,
    StepTime,
    injected_delay_ms,
    wire_ms,
)

NIXL = LLAMA_3_1_8B_H100
NCCL = replace(NIXL.with_link(P2P_NCCL), reuse_responses=False)
KV = NIXL.kv_bytes_per_token
ASK = {"do_remote_decode": True}


class Pair:
    """P and D by hand: a prefill leg, then a decode leg with its handle."""

    def __init__(self, profile: EngineProfile, notation: str = "1P_1D", **profiles: EngineProfile) -> None:
        self.events = Events()
        self.fleet = Fleet(notation, profile, self.events, profiles=profiles)
        self.first_s: dict[str, float] = {}
        self.sent_s: dict[str, float] = {}

    def turn(self, name: str, tokens: int, output: int = 50, node: str = "D0") -> None:
        prompt = ((name, tokens),)

        def seen(at_s: float) -> None:
            self.first_s[name] = at_s

        def decode(at_s: float, reply) -> None:
            self.sent_s[name] = self.events.now_s
            request = Request(name, prompt, output, reply.kv_transfer_params)
            self.fleet.call(node, request, seen, lambda *_: None, lambda *_: pytest.fail("failed"))

        self.fleet.call("P0", Request(name, prompt, 1, ASK), None, decode, lambda *_: pytest.fail("failed"))

    def run(self) -> dict[str, float]:
        """Seconds from D's leg to the first token, by turn."""
        self.events.run(self.events.now_s + 60.0)
        return {name: self.first_s[name] - self.sent_s[name] for name in self.first_s}


def decode_ms(profile: EngineProfile, tokens: int) -> float:
    return StepTime(profile).decode_base_ms(1) + tokens * profile.kv_read_ms_per_token + profile.first_token_ms


def test_p2p_nccl_takes_a_fixed_cost_and_one_per_token_of_the_whole_prompt_and_stalls_d():
    pair = Pair(NCCL)
    pair.turn("a", 1000)
    expected = 27 + 25 + 0.010 * 1000 + 3 + decode_ms(NCCL, 1000)
    assert pair.run()["a"] * 1e3 == pytest.approx(expected)


def test_p2p_nccl_sends_again_what_d_has_and_nixl_does_not():
    sent = []
    for profile in (NCCL, NIXL):
        pair = Pair(profile)
        pair.turn("a", 1024)
        pair.run()
        before = pair.fleet.transferred_tokens
        pair.turn("a", 1056)
        pair.run()
        sent.append(pair.fleet.transferred_tokens - before)
    assert sent[0] == 1056
    assert 0 < sent[1] <= 1056 - 1024 + NIXL.block_tokens


def test_a_send_that_queues_behind_another_pays_for_what_p_computed():
    pair = Pair(NCCL)
    pair.turn("a", 1000)
    pair.turn("b", 1010)
    times = pair.run()
    alone = Pair(NCCL)
    alone.turn("b", 1010)
    queued_ms = (25 + 0.010 * 1000) - (pair.sent_s["b"] - pair.sent_s["a"]) * 1e3
    assert queued_ms > 0
    extra_ms = (times["b"] - alone.run()["b"]) * 1e3
    # Behind a's send, then its own costs more; the step that it joins has a beside it.
    assert extra_ms == pytest.approx(queued_ms + 0.055 * 1010, abs=12)


def test_a_slower_wire_stalls_d_under_p2p_nccl_and_holds_the_link_under_nixl():
    slow = {}
    for name, profile in (("nccl", NCCL), ("nixl", NIXL.with_bandwidth(150.0))):
        times = []
        for gb_s in (150.0, 10.0):
            pair = Pair(profile.with_bandwidth(gb_s))
            pair.turn("a", 5115)
            times.append(pair.run()["a"] * 1e3)
        slow[name] = times[1] - times[0]
    assert slow["nccl"] == pytest.approx(injected_delay_ms(5115, KV, 10.0))
    assert slow["nixl"] == pytest.approx(injected_delay_ms(5115, KV, 10.0))
    # The difference is who waits: a sequence that decodes beside it.
    assert P2P_NCCL.send_ms(5115, 0, False, KV) == replace(P2P_NCCL, bandwidth_gb_s=10.0).send_ms(5115, 0, False, KV)


def test_the_speed_of_one_link_can_change_while_it_runs():
    pair = Pair(NIXL)
    pair.turn("a", 4000)
    fast = pair.run()["a"]
    pair.fleet.set_bandwidth(5.0, "P0")
    pair.turn("b", 4000)
    assert (pair.run()["b"] - fast) * 1e3 == pytest.approx(wire_ms(4000, KV, 5.0) - wire_ms(4000, KV, 50.0))


def test_p_and_d_may_be_other_engines():
    slow_p = replace(NIXL, name="slow-p", linear_ms=tuple((n, 3 * ms) for n, ms in NIXL.linear_ms))
    mixed = Pair(NIXL, P=slow_p)
    plain = Pair(NIXL)
    for pair in (mixed, plain):
        pair.turn("a", 2000)
    assert mixed.run()["a"] == pytest.approx(plain.run()["a"])  # D's leg is the same
    assert mixed.sent_s["a"] - plain.sent_s["a"] == pytest.approx(2 * StepTime(NIXL).linear_ms(2000) / 1e3)


def test_one_node_may_be_another_engine():
    small = replace(NIXL, name="small", kv_capacity_tokens=10_000)
    fleet = Fleet("1P_2D", NIXL, Events(), profiles={"D1": small})
    assert [engine.cache.capacity_tokens for engine in fleet.engines.values()] == [390_000, 390_000, 10_000]


def test_a_fleet_of_two_models_or_with_a_profile_for_nobody_is_refused():
    with pytest.raises(ValueError, match=r"one model with KV of one size, got llama-3\.1-70b, llama-3\.1-8b"):
        Fleet("1P_1D", NIXL, Events(), profiles={"D": LLAMA_3_1_70B_H100_TP4})
    with pytest.raises(ValueError, match="profiles for R, but the nodes are P0, D0"):
        Fleet("1P_1D", NIXL, Events(), profiles={"R": NIXL})


def test_the_papers_17_configurations_have_four_nodes_each():
    assert len(PAPER_TOPOLOGIES) == 17
    kinds = sorted(PAPER_TOPOLOGIES.values())
    assert kinds.count("replica") == 1 and sum(kind.startswith("hybrid") for kind in kinds) == 7
    for notation in PAPER_TOPOLOGIES:
        assert sum(parse_topology(notation).values()) == 4, notation


def test_a_pd_node_is_a_d_engine_that_the_fleet_lists_apart():
    fleet = Fleet("1P_2D_1pD", NIXL, Events())
    assert list(fleet.engines) == ["P0", "D0", "D1", "pD0"]
    assert fleet.roles["pD0"] is Role.DECODE and fleet.appends == {"pD0"}


def test_a_14b_costs_about_what_its_parameters_say():
    ratio = StepTime(QWEN_2_5_14B_H100).decode_base_ms(1) / StepTime(NIXL).decode_base_ms(1)
    assert 1.5 < ratio < 1.85
