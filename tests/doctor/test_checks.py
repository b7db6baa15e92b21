"""Every check on facts, both ways."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from router.turn import Role
from tests.doctor.fleets import (
    D0,
    GOOD,
    MISSING,
    OLDER,
    OVER,
    P0,
    PAGE,
    R0,
    Spoil,
    asked,
    assumed,
    cache_of,
    of,
    over,
    page_of,
    told,
)
from trimtab.doctor.checks import CHECKS, diagnose
from trimtab.doctor.facts import Facts, HandOver, Lease, Served
from trimtab.doctor.findings import Finding, Level, document, fail, failed, joined, ok, summary, warn

WARN, FAIL, UNKNOWN = Level.WARN, Level.FAIL, Level.UNKNOWN


def nodes(*chosen: object) -> Spoil:
    return lambda facts: replace(facts, nodes=tuple(chosen), hand_overs=(), leases=())  # type: ignore[arg-type]


def leases(*found: Lease) -> Spoil:
    return lambda facts: replace(facts, leases=found)


def serving(name: str, **more: object) -> Spoil:
    return of(name, models=(replace(Served("m", "/models/m", 8192), **more),))  # type: ignore[arg-type]


def no_overs(facts: Facts) -> Facts:
    return replace(facts, hand_overs=())


CASES: list[tuple[str, Spoil, Level, str, str]] = [
    # check, what is otherwise, level, part of the message, part of the fix
    ("reachable", of("D0", problem="no connection (refused)"), FAIL, "no connection", "http://d0.example:8000"),
    ("topology", nodes(P0), FAIL, "nobody decodes", "--decode"),
    ("topology", nodes(D0), WARN, "every turn is local", "--prefill"),
    ("topology", nodes(P0, R0), WARN, "no decode node to hand over to", "--decode"),
    ("api-key", of("D0", wants_key=True), FAIL, "the router has none", "without --api-key"),
    ("api-key", of("D0", wants_key=True, let_in=False), FAIL, "--api-key-env", "engine_key_env"),
    ("version", of("D0", version="0.31.1"), WARN, "0.31.1 has not been tested", "0.32"),
    ("version", of("D0", version="0.320"), WARN, "0.320 has not been tested", "0.32"),
    ("version", of("D0", version=None), UNKNOWN, "does not tell", "0.32"),
    ("same-version", of("D0", version="0.31.1"), FAIL, "P0 0.32.0, D0 0.31.1", "same vLLM"),
    ("role", page_of("P0", connector=False), FAIL, "no KV connector", '"kv_role": "kv_producer"'),
    ("role", page_of("D0", connector=False), FAIL, "no KV connector", '"kv_role": "kv_consumer"'),
    ("role", page_of("P0", consumer=True), WARN, "kv_consumer or kv_both", "kv_producer"),
    ("role", page_of("D0", consumer=False), WARN, "shows itself as kv_producer", "kv_consumer"),
    ("role", of("D0", role=None), UNKNOWN, "what it is for", "--replica"),
    (
        "model",
        of("D0", models=(Served("x", "/models/m", 8192),)),
        FAIL,
        "not serve 'm' but 'x'",
        "--served-model-name m",
    ),
    ("model", serving("D0", root="/other/m"), WARN, "another model", "same --model"),
    ("model", of("D0", models=()), FAIL, "lists no model", "log"),
    ("max-model-len", serving("P0", max_model_len=4096), FAIL, "takes 4096", "--max-model-len 8192"),
    ("prefix-caching", cache_of("D0", enable_prefix_caching="False"), FAIL, "is off", "--enable-prefix-caching"),
    ("prefix-caching", asked("D0", cached_again=0), FAIL, "computed twice", "--enable-prefix-caching"),
    ("prefix-caching", page_of("D0", cache=None), UNKNOWN, "not shown", "--enable-prefix-caching"),
    ("kv-memory", page_of("D0", cache=None), WARN, "blocks of 16", "/metrics"),
    (
        "kv-memory",
        cache_of("D0", num_gpu_blocks="100"),
        WARN,
        "not enough for one request of 8192",
        "--max-model-len 3200",
    ),
    ("block-size", cache_of("D0", block_size="64"), FAIL, "P0 32, D0 64, D1 32", "same --block-size"),
    ("kv-dtype", cache_of("D0", cache_dtype="fp8"), FAIL, "D0 fp8", "same --kv-cache-dtype"),
    ("data-parallel", page_of("D0", engines=2), WARN, "2 data parallel engines", "--data-parallel-external-lb"),
    ("usage-in-streams", asked("D0", usage=False), FAIL, "had none", "proxy"),
    ("usage-in-streams", asked("D0", error="status 500"), FAIL, "status 500", "log"),
    (
        "usage-details",
        asked("D0", details=False, cached_again=None),
        FAIL,
        "evictions",
        "--enable-prompt-tokens-details",
    ),
    ("request-id", asked("D0", id_taken=False), WARN, "not taken over", "header"),
    ("metrics", page_of("D0", scrape=MISSING), WARN, "lacks vllm:request_time_per_output_token_seconds", "0.32"),
    ("metrics", page_of("D0", scrape=OLDER), WARN, "vllm:time_per_output_token_seconds", "newer"),
    ("metrics", of("D0", page=None, page_problem="status 404"), WARN, "status 404", "--disable-log-stats"),
    ("keep-alive", of("D0", idle_closed_s=2.0), FAIL, "closed after 2.0 s", "VLLM_HTTP_TIMEOUT_KEEP_ALIVE=5"),
    ("clock", of("D0", skew_s=-90.0), WARN, "90 s behind", "NTP"),
    ("clock", of("D0", skew_s=None), UNKNOWN, "no Date", ""),
    ("kv-events", of("D0", event_sources={"tcp://*:5557": False}), WARN, "tcp://*:5557", "port"),
    ("development-mode", of("D0", config=told()), WARN, "development mode", "VLLM_SERVER_DEV_MODE"),
    ("hand-over", over(failed="prefill", detail="status 500"), FAIL, "status 500", "P's log"),
    ("hand-over", over(failed="handshake", detail="lacks remote_host"), FAIL, "lacks remote_host", "kv_producer"),
    ("hand-over", over(failed="decode", detail="status 500"), FAIL, "status 500", "VLLM_NIXL_SIDE_CHANNEL_HOST"),
    ("hand-over", over(pulled_tokens=0.0), FAIL, "computed the prompt itself: 0 of 420", "UCX_NET_DEVICES"),
    ("hand-over", over(pulled_tokens=0.0, failed_transfers=1.0), FAIL, "after a transfer that failed", "UCX"),
    ("hand-over", over(pulled_tokens=None), UNKNOWN, "do not tell", ""),
    ("hand-over", over(failed="untried", detail="block size"), UNKNOWN, "differ in block size", ""),
    ("hand-over", lambda f: no_overs(assumed(probed=False)(f)), UNKNOWN, "no hand-over was tried", "--no-probe"),
    ("hand-over", lambda f: no_overs(assumed(connector="other")(f)), UNKNOWN, "by other", ""),
    ("kv-load-failure", of("D0", config=told(policy="recompute")), WARN, "unseen by the router", '"fail"'),
    ("kv-load-failure", of("D0", config=None), UNKNOWN, "not shown", "recompute"),
    ("lease", leases(Lease("P0", 12.0, 40.0)), FAIL, "12.0 s and the router believes 30 s", '"kv_lease_duration": 30'),
    ("lease", lambda f: leases()(of("P0", config=told(lease_s=6.0))(f)), FAIL, "6.0 s", "models.NAME.lease"),
    ("lease", leases(), UNKNOWN, "not shown", "--lease"),
    ("lease", leases(Lease("P0", None, 0.0, "P hands nothing over")), UNKNOWN, "hands nothing over", ""),
]


def found(facts: Facts, check: str) -> list[Finding]:
    return [finding for finding in diagnose(facts) if finding.check == check]


def test_a_good_fleet_fails_nothing_and_warns_of_nothing():
    rows = diagnose(of("D1", config=told())(of("D0", config=told())(GOOD)))
    assert {(row.check, row.level) for row in rows if row.level is not Level.OK} == {("development-mode", WARN)}
    assert not failed(rows)
    without = [row for row in diagnose(GOOD) if row.level is not Level.OK]
    assert [(row.check, row.level, row.nodes) for row in without] == [("kv-load-failure", UNKNOWN, ("D0", "D1"))]


@pytest.mark.parametrize(
    ("check", "spoil", "level", "message", "fix"), CASES, ids=[f"{row[0]}-{number}" for number, row in enumerate(CASES)]
)
def test_what_is_wrong_is_said_by_its_own_check_with_the_fix(check, spoil, level, message, fix):
    rows = [row for row in found(spoil(GOOD), check) if row.level is level]
    assert len(rows) == 1, found(spoil(GOOD), check)
    assert message in rows[0].message and fix in rows[0].fix
    assert all(row.level is not level for row in found(GOOD, check)) or level is UNKNOWN, "and not of a good fleet"


def test_every_check_has_a_case_that_finds_something():
    assert {row[0] for row in CASES} == set(CHECKS)


def test_every_check_but_those_of_rarities_says_when_all_is_well():
    well = {
        row.check
        for row in diagnose(of("D1", config=told(), event_sources={"tcp://*:5557": True})(GOOD))
        if row.level is Level.OK
    }
    assert set(CHECKS) - well == {"same-version", "data-parallel", "development-mode"}


def test_what_cannot_be_reached_is_said_once_and_not_by_every_check():
    rows = diagnose(of("D0", problem="no connection (refused)")(GOOD))
    assert [row.check for row in rows if "D0" in row.nodes and row.level is FAIL] == ["reachable"]


def test_the_same_of_several_nodes_is_one_line():
    rows = joined([warn("x", "y", "D0"), ok("z", "P0"), warn("x", "y", "D1"), warn("x", "other", "D2")])
    assert [(row.level, row.nodes) for row in rows] == [
        (WARN, ("D0", "D1")),
        (Level.OK, ("P0",)),
        (WARN, ("D2",)),
    ]


def test_under_the_engine_signal_a_metric_that_is_not_there_fails():
    (row,) = [r for r in found(assumed(engine_signal=True)(page_of("D0", scrape=MISSING)(GOOD)), "metrics") if r.fix]
    assert row.level is FAIL and "the law holds" in row.message


def test_a_side_channel_on_the_loopback_of_another_host_is_called_by_its_name():
    (row,) = found(over(failed="decode", detail="status 500", side_channel="127.0.0.1:5600")(GOOD), "hand-over")
    assert "which is D itself" in row.fix and "VLLM_NIXL_SIDE_CHANNEL_HOST" in row.fix


def test_replicas_alone_are_a_whole_fleet():
    rows = diagnose(Facts((R0,), GOOD.assumed))
    assert not failed(rows) and not [row for row in rows if row.level is WARN]


def test_a_lease_that_is_longer_than_watched_is_enough():
    (row,) = found(leases(Lease("P0", None, 40.0))(GOOD), "lease")
    assert row.level is Level.OK and "more than 40 s" in row.message


def test_a_node_whose_role_was_seen_says_what_it_was_taken_for():
    rows = found(of("P0", role_given=False)(GOOD), "role")
    assert [row.message for row in rows if "P0" in row.nodes] == [
        "taken for a prefill node: shows itself as kv_producer"
    ]


def test_a_page_without_kv_size_says_nothing_of_it():
    assert replace(PAGE, cache={"block_size": "0", "num_gpu_blocks": "None"}).kv_tokens is None


def test_a_line_says_level_check_nodes_message_and_fix():
    row = replace(fail("it is off", "turn it on", "D0", "D1"), check="prefix-caching")
    assert row.line(5) == "FAIL     prefix-caching    D0 D1  it is off. Fix: turn it on"
    assert summary([row, row]) == "0 OK, 0 WARN, 2 FAIL, 0 UNKNOWN"
    assert json.loads(json.dumps(document([row])))[0]["nodes"] == ["D0", "D1"]


def test_a_hand_over_that_nobody_made_is_not_called_good():
    assert found(replace(GOOD, hand_overs=()), "hand-over") == []
    assert HandOver("P0", "D0").pulled_tokens is None and OVER.pulled_tokens == 420.0
    assert P0.role is Role.PREFILL


@pytest.mark.parametrize(("let_in", "level"), [(True, Level.OK), (False, FAIL)])
def test_an_engine_that_takes_the_routers_key_is_well(let_in: bool, level: Level) -> None:
    facts = of("D0", wants_key=True, let_in=let_in)(GOOD)
    facts = replace(facts, assumed=replace(facts.assumed, keyed=True))
    assert {found.level for found in diagnose(facts) if found.check == "api-key" and "D0" in found.nodes} == {level}
