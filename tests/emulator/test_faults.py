"""Faults as data: what is refused, and that the fleet takes them on."""

import math

import pytest

from emulator.events import Events
from emulator.faults import Fault, FaultKind, check
from emulator.fleet import Fleet, Request
from emulator.profiles import LLAMA_3_1_8B_H100 as P

NODES = ("P0", "D0", "D1")


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ({"kind": FaultKind.OUT, "at_s": -1.0, "for_s": 1.0, "node": "D0"}, "a start and a duration"),
        ({"kind": FaultKind.OUT, "at_s": 1.0, "for_s": -1.0, "node": "D0"}, "a start and a duration"),
        ({"kind": FaultKind.OUT, "at_s": 1.0, "for_s": 1.0}, "name the node"),
        ({"kind": FaultKind.SLOW, "at_s": 1.0, "for_s": 1.0, "node": "D0"}, "a value above 0"),
        ({"kind": FaultKind.SLOW, "at_s": 1.0, "for_s": 1.0, "node": "D0", "value": math.nan}, "a value above 0"),
        ({"kind": FaultKind.BANDWIDTH, "at_s": 1.0, "for_s": 1.0, "value": 0.0}, "a value above 0"),
        ({"kind": FaultKind.METRICS, "at_s": 1.0, "for_s": 1.0, "node": "D0"}, "of no node"),
        ({"kind": FaultKind.OUT, "at_s": 1.0, "for_s": 1.0, "node": "D0", "value": 2.0}, "takes no value"),
    ],
)
def test_a_fault_that_cannot_be_is_refused(fault, why):
    with pytest.raises(ValueError, match=why):
        Fault(**fault)


def test_faults_come_in_order_and_must_be_of_the_fleet():
    late = Fault(FaultKind.OUT, 9.0, 1.0, "D0")
    early = Fault(FaultKind.SLOW, 1.0, math.inf, "D0", 2.0)
    assert check([late, early], NODES) == (early, late)
    with pytest.raises(ValueError, match="no node 'D7'; the nodes are P0, D0, D1"):
        check([Fault(FaultKind.OUT, 0.0, 1.0, "D7")], NODES)


def test_two_of_a_kind_at_once_on_a_node_are_refused():
    everywhere = Fault(FaultKind.BANDWIDTH, 0.0, 10.0, None, 10.0)
    with pytest.raises(ValueError, match="overlap"):
        check([everywhere, Fault(FaultKind.BANDWIDTH, 5.0, 1.0, "P0", 1.0)], NODES)
    check([everywhere, Fault(FaultKind.BANDWIDTH, 10.0, 1.0, "P0", 1.0)], NODES)


def ended_s(factor: float, from_s: float = 0.0) -> float:
    """When a lone request of 100 tokens ends on an engine that is slow from some time on."""
    events, seen = Events(), []
    fleet = Fleet("1R", P, events)
    events.at(from_s, fleet.engines["R0"].slow, factor)
    fleet.call("R0", Request("a", (("a", 512),), 100), None, lambda at_s, reply: seen.append(at_s), lambda *_: None)
    events.run(60.0)
    return seen[0]


def test_a_slow_node_takes_so_many_times_as_long_for_every_step():
    front_s = (P.front_ms + 512 * P.tokenise_ms_per_token + P.first_token_ms) / 1e3
    assert ended_s(3.0) - front_s == pytest.approx(3 * (ended_s(1.0) - front_s))


def test_a_node_that_gets_slow_in_the_middle_of_a_stretch_is_slow_from_the_next_step_on():
    half = ended_s(2.0, from_s=0.4)
    assert ended_s(1.0) < half < ended_s(2.0)
    assert half - 0.4 == pytest.approx(2 * (ended_s(1.0) - 0.4), abs=0.02)


def test_a_slowdown_that_is_no_factor_is_refused():
    with pytest.raises(ValueError, match="a finite factor above 0"):
        Fleet("1R", P, Events()).engines["R0"].slow(0.0)
