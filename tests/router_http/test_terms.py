"""What a request says of its own SLOs arrives in its record and in the counts; keys and headers go no further."""

from __future__ import annotations

import json

import pytest

from router.doors import Doors
from slos.counts import Count
from slos.objective import Match, Signal, Slo
from slos.terms import NO_TERMS, Terms

from .client import ask, chat, in_loop
from .fake_engine import FakeEngine
from .installation import installation

SLOS = (
    Slo("ttft", Signal.TTFT, 0.99, 60.0, Match(streaming=True)),
    Slo("own", Signal.TTFT, 0.99, None, Match(asked=True)),
    Slo("answers", Signal.SUCCESS, 0.99, None),
    Slo("gold", Signal.SUCCESS, 0.99, None, Match(classes=("gold",))),
    Slo("assistants", Signal.SUCCESS, 0.99, None, Match(tenants=("assistants",))),
)


@pytest.mark.parametrize(
    ("headers", "terms"),
    [
        ({}, NO_TERMS),
        ({"Authorization": "Bearer sk-c"}, NO_TERMS),
        ({"X-SLO-TTFT-ms": "60000"}, Terms(ttft_s=60.0)),
        ({"x-llm-d-slo-ttft-ms": "60000", "x-llm-d-slo-tpot-ms": "50"}, Terms(ttft_s=60.0, tpot_s=0.05)),
        ({"x-slo-ttft-ms": "soon", "x-slo-tpot-ms": "9999999999"}, Terms(tpot_s=600.0)),
        ({"x-slo-class": "gold"}, Terms("gold")),
        ({"x-slo-class": "iron"}, NO_TERMS),
        ({"Authorization": "Bearer sk-a"}, Terms(tenant="assistants")),
        ({"Authorization": "Bearer sk-b"}, NO_TERMS),
    ],
)
@in_loop
async def test_the_terms_of_a_request_are_those_of_its_headers_and_of_its_key(headers, terms: Terms):
    d = FakeEngine("D0")
    keys = [("assistants", "sk-a"), ("", "sk-b"), ("nobodys-tenant", "sk-c")]
    async with installation([], [d], slos=SLOS, keys=keys, tenants=["assistants"]) as router:
        headers = {"Authorization": "Bearer sk-b", **headers}
        answer = await ask(router.url, chat("hi", stream=True), headers=headers)
        assert answer.status == 200
        await router.settle()
        (record,) = router.records
        counts = router.core.counts.snapshot()
    assert record.terms == terms
    own = terms.ttft_s is not None
    assert counts["ttft"] == Count(not own, 0, own)
    assert counts["own"] == Count(own, 0, not own)
    assert counts["answers"] == Count(1)
    assert counts["gold"].valid == (terms.slo_class == "gold")
    assert counts["assistants"].valid == (terms.tenant == "assistants")


@in_loop
async def test_neither_a_key_nor_a_deadline_goes_to_an_engine_or_into_what_is_printed():
    d = FakeEngine("D0")
    keys = [("assistants", "sk-secret")]
    caller = Doors([("", "sk-secret")]).caller({b"authorization": b"Bearer sk-secret"})
    assert "sk-secret" not in repr(caller)
    async with installation([], [d], slos=SLOS, keys=keys, tenants=["assistants"]) as router:
        headers = {"Authorization": "Bearer sk-secret", "x-slo-ttft-ms": "100"}
        await ask(router.url, chat("hi", stream=True), headers=headers)
        await router.settle()
        assert "sk-secret" not in repr(router.records)
    sent = json.dumps([{name.lower(): value for name, value in each.items()} for each in d.headers])
    assert "sk-secret" not in sent and "slo" not in sent


@in_loop
async def test_a_request_that_a_draining_router_sends_away_spends_the_budget_of_success_and_of_no_latency():
    d = FakeEngine("D0")
    async with installation([], [d], slos=SLOS) as router:
        router.dispatcher.draining = True
        answer = await ask(router.url, chat("hi", stream=True))
        counts = router.core.counts.snapshot()
    assert (answer.status, answer.error["code"], d.calls) == (503, "draining", 0)
    assert counts["answers"] == Count(1, 1)
    assert counts["ttft"] == Count()
