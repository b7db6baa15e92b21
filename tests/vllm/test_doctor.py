"""The doctor on real engines: good ones, a hand-over that really moves KV, and one that was started badly."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

from router.turn import Role
from trimtab.cli import app
from trimtab.doctor.checks import diagnose
from trimtab.doctor.facts import Assumed, Facts
from trimtab.doctor.findings import Finding, Level
from trimtab.doctor.gather import Target
from trimtab.doctor.visit import Visit, visit

from .router import until_let_go

pytestmark = pytest.mark.vllm


def look(*targets: tuple[str, Role | None], assumed: Assumed | None = None, **more: Any) -> Facts:
    plan = Visit(tuple(Target(url, role) for url, role in targets), assumed or Assumed("tiny"), **more)
    return asyncio.run(visit(plan))


def told(findings: list[Finding], *levels: Level) -> set[str]:
    return {finding.check for finding in findings if finding.level in levels}


def test_good_engines_pass_their_roles_are_seen_and_d_pulls_the_whole_prompt(engines):
    facts = look(*((engine.url, None) for engine in engines))
    findings = diagnose(facts)
    assert told(findings, Level.FAIL, Level.WARN) == set(), [finding.line() for finding in findings]
    assert told(findings, Level.UNKNOWN) == {"kv-load-failure", "lease"}, "what vLLM does not show"
    assert {node.url: node.role for node in facts.nodes} == {engine.url: Role(engine.role) for engine in engines}
    assert facts.hand_overs
    assert all(over.pulled_tokens == over.prompt_tokens > 64 for over in facts.hand_overs)
    decode = [node for node in facts.nodes if node.role is Role.DECODE]
    assert all(node.ask and node.ask.cached_again and node.ask.details for node in decode)
    assert all(node.idle_closed_s is None for node in facts.nodes), "vLLM keeps idle connections for 5 s"


@pytest.mark.full
def test_the_lease_of_a_real_p_is_measured(engines):
    until_let_go(engines["P0"])  # another lease's end would be taken for this one's
    lease_s = engines["P0"].options.kv_lease_duration_s
    facts = look((engines["P0"].url, Role.PREFILL), measure_leases=True, watch_idle=False)
    (lease,) = facts.leases
    assert lease.held_s is not None and lease_s - 1 < lease.held_s < lease_s + 5
    assert told([f for f in diagnose(facts) if f.check == "lease"], Level.OK) == {"lease"}


def test_an_engine_that_was_started_badly_is_told_what_to_change(engines, home, tmp_path):
    good = engines["D0"].options
    bad = replace(
        good,
        prefix_caching=False,
        block_tokens=64,
        extra_args=(*good.extra_args, "--no-enable-prompt-tokens-details"),
        extra_environment=(*good.extra_environment, ("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "2")),
    )
    with type(engines)("1D", logs=tmp_path, options=bad, home=home) as others:
        prefill, decode = engines["P0"].url, others["D0"].url
        result = CliRunner().invoke(app, ["doctor", "--json", "--prefill", prefill, "--decode", decode])
    assert result.exit_code == 1, result.output
    rows = {row["check"]: row for row in json.loads(result.stdout)["findings"] if row["level"] == "FAIL"}
    assert set(rows) == {"prefix-caching", "block-size", "usage-details", "keep-alive"}
    for check, flag in (
        ("prefix-caching", "--enable-prefix-caching"),
        ("block-size", "--block-size"),
        ("usage-details", "--enable-prompt-tokens-details"),
        ("keep-alive", "VLLM_HTTP_TIMEOUT_KEEP_ALIVE=5"),
    ):
        assert flag in rows[check]["fix"]
    (over,) = [row for row in json.loads(result.stdout)["findings"] if row["check"] == "hand-over"]
    assert over["level"] == "UNKNOWN" and "block size" in over["message"], "too few blocks would end D's engine"
