"""Which requests a rule strikes, and what is said of one that makes no sense."""

from __future__ import annotations

import re
from math import inf

import pytest

from emulator.rules import Condition, Pages, Rules, Trouble, condition, of_header, rule

PREFILL = {"kv_transfer_params": {"do_remote_decode": True}}
DECODE = {"kv_transfer_params": {"do_remote_prefill": True}}
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.mark.parametrize(
    ("nth", "struck"),
    [
        ("3", [3]),
        ("2-4", [2, 3, 4]),
        ("5-", [5, 6, 7]),
        ("every 3", [3, 6]),
        (None, [1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_a_rule_strikes_the_requests_whose_turn_it_is(nth, struck):
    rules = Rules((rule({"fault": "reset"} | ({"nth": nth} if nth else {})),))
    assert [at for at in range(1, 8) if rules.strike("D0", CHAT, {})] == struck
    assert (rules.met, rules.struck) == ([7], [len(struck)])


@pytest.mark.parametrize(
    ("values", "fits", "fits_not"),
    [
        ({"node": "D1"}, ("D1", CHAT, {}), ("D0", CHAT, {})),
        ({"node": "D"}, ("D7", CHAT, {}), ("P0", CHAT, {})),
        ({"path": "chat"}, ("D0", CHAT, {}), ("D0", TEXT, {})),
        ({"path": "completions"}, ("D0", TEXT, {}), ("D0", CHAT, {})),
        ({"leg": "prefill"}, ("P0", CHAT, PREFILL), ("P0", CHAT, DECODE)),
        ({"leg": "decode"}, ("D0", CHAT, DECODE), ("D0", CHAT, {})),
        ({"leg": "plain"}, ("D0", CHAT, {}), ("D0", CHAT, PREFILL)),
        ({"has": "min_tokens"}, ("P0", CHAT, {"min_tokens": 0}), ("P0", CHAT, {"min_tokens": None})),
        ({"has": "n>1"}, ("P0", CHAT, {"n": 2}), ("P0", CHAT, {"n": 1})),
        ({"has": "n > 1"}, ("P0", CHAT, {"n": 2}), ("P0", CHAT, {"n": "many"})),
    ],
)
def test_a_rule_is_for_those_whom_it_names(values, fits, fits_not):
    made = rule({"fault": "status"} | values)
    assert made.fits(*fits)
    assert not made.fits(*fits_not)


def test_the_first_rule_whose_turn_it_is_decides_and_all_that_fit_count():
    rules = Rules((rule({"fault": "status", "status": "503", "nth": "2"}), rule({"fault": "reset"})))
    struck = [rules.strike("D0", CHAT, {}) for _ in range(3)]
    assert [mishap.trouble for mishap in struck if mishap] == [Trouble.RESET, Trouble.STATUS, Trouble.RESET]
    assert rules.met == [3, 3]


def test_a_header_says_the_same_in_short():
    mishap = of_header("stall after=3 for=1.5")
    assert (mishap.trouble, mishap.after, mishap.for_s) == (Trouble.STALL, 3, 1.5)
    assert of_header("status status=429").status == 429
    assert of_header("stall").for_s == inf


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "fault: '' is none of status, reset"),
        ({"fault": "earthquake"}, "fault: 'earthquake' is none of"),
        ({"fault": "status", "status": "200"}, "status: an error is 400 to 599"),
        ({"fault": "status", "status": "often"}, "status: 'often' is no number"),
        ({"fault": "empty", "after": "2"}, "after: empty comes before the headers"),
        ({"fault": "reset", "after": "0"}, "after: "),
        ({"fault": "stall", "for": "0s"}, "for: a stall lasts longer"),
        ({"fault": "stall", "for": "a while"}, "for: 'a while' is no time; write"),
        ({"fault": "reset", "nth": "0"}, "nth: '0' is no number of requests; write"),
        ({"fault": "reset", "nth": "4-2"}, "nth: '4-2' ends before"),
        ({"fault": "reset", "leg": "left"}, "leg: 'left' is none of"),
        ({"fault": "reset", "path": "/v1"}, "path: '/v1' is neither"),
        ({"fault": "reset", "has": "n<2"}, "has: 'n<2' is no field; write"),
        ({"fault": "reset", "when": "noon"}, "when: unknown key"),
    ],
)
def test_what_makes_no_sense_is_told_by_its_key(values, says):
    with pytest.raises(ValueError, match="^" + re.escape(says)):
        rule(values)


def test_a_nodes_condition_keeps_what_is_not_named():
    slow = condition({"slow": "10", "metrics": "frozen"})
    assert slow == Condition(10.0, Pages.FROZEN)
    assert condition({"keep_alive": "500ms", "connections": "2"}, slow) == Condition(10.0, Pages.FROZEN, 2, 0.5)


@pytest.mark.parametrize(
    "values", [{"slow": "0"}, {"metrics": "melted"}, {"connections": "-1"}, {"keep_alive": "0s"}, {"fast": "1"}]
)
def test_a_condition_that_cannot_be_is_told_by_its_key(values):
    with pytest.raises(ValueError, match=f"^{next(iter(values))}: "):
        condition(values)
