"""The emulator against what real vLLM 0.32 answered: it differs in the documented fields, and in no other.

The record is made by `python -m tests.conformance_face ask` from engines of `trimtab.vllm_cpu`; tests/vllm asks them
again.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from emulator.fleet import LoadFailure
from emulator.server import serve
from tests.conformance_face import documented
from tests.conformance_face.emulated import PROFILE, SPEED, emulated_sheet
from tests.conformance_face.faults import FAULTS
from tests.conformance_face.sheet import Sheet, ask, differences, dump, fields, kill, load

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "engine-face.md"
DEADLY = [fault.name for fault in FAULTS if fault.kills]


@pytest.fixture(scope="module")
def emulated() -> Sheet:
    return asyncio.run(emulated_sheet(nonce=1))


def test_the_emulator_differs_from_vllm_in_the_documented_fields_and_in_no_other(emulated: Sheet):
    real = load(documented.VLLM)
    assert real.keys() | {f"metric {node} {name}" for node in "PD" for name in OWN_METRICS} == emulated.keys()
    assert len(fields(real)) > 7000
    assert differences(real, emulated) == documented.load()


OWN_METRICS = {
    f"emulator_{name}"
    for name in (
        "aborted_requests_total",
        "behind",
        "lag_bound_seconds",
        "lag_p99_seconds",
        "lag_seconds",
        "speed",
    )
}


@pytest.mark.parametrize("policy", LoadFailure)
@pytest.mark.parametrize("fault", DEADLY)
def test_what_killed_a_real_engine_kills_an_emulated_one(fault: str, policy: LoadFailure):
    async def killed() -> dict[str, object]:
        fleet = await serve("1P_1D", PROFILE, base_port=0, speed=SPEED, max_model_len=8192, load_failure=policy)
        try:
            return await kill(fleet.urls["P0"], fleet.urls["D0"], fault, patience_s=0.5)
        finally:
            await fleet.close()

    assert asyncio.run(killed()) == load(documented.VLLM_DEADLY)[f"{policy}, {fault}"]


def test_every_documented_difference_has_one_heading_on_the_page_and_every_heading_a_difference():
    page = PAGE.read_text(encoding="utf-8")
    found = documented.load()
    headings = [documented.reasons_of(each.field) for each in found]
    assert all(len(each) == 1 for each in headings)
    assert {each[0] for each in headings} == documented.REASONS.keys()
    for reason in documented.REASONS:
        assert f"| {reason} |" in page
    real = load(documented.VLLM)
    assert f"{len(real)} questions, {len(fields(real)):,} fields" in page
    assert f"emulator's, {len(found)} differ" in page


def test_the_record_is_small_and_reads_back_as_it_was_written():
    for path in (documented.VLLM, documented.VLLM_DEADLY):
        assert path.stat().st_size < 100_000
        assert dump(load(path)) == path.read_text(encoding="utf-8")
    assert documented.dump(documented.load()) == documented.FIELDS.read_text(encoding="utf-8")


def test_a_comparison_sees_a_missing_field_another_value_another_order_and_another_status():
    one: Sheet = {"a": {"status": 200, "body": {"x": 1, "y": [1, 2]}}, "b": {"status": 200, "body": {"x": 1}}}
    assert differences(one, one) == []
    other: Sheet = {"a": {"status": 200, "body": {"y": [1, 3], "x": 1}}, "b": {"status": 400, "body": {"e": 1}}}
    assert [each.field for each in differences(one, other)] == ["a/body/y/1", "a/body/{order}", "b/status"]
    assert [each.field for each in differences(one, {"a": one["a"]})] == ["b/status"]


def test_a_second_run_of_the_emulator_on_other_prompts_gives_the_same_sheet(emulated: Sheet):
    again = asyncio.run(emulated_sheet(nonce=987_654))
    assert differences(emulated, again) == []


def test_a_pair_without_a_recompute_engine_is_asked_less():
    async def asked() -> Sheet:
        fleet = await serve("1P_1D", PROFILE, base_port=0, speed=SPEED, max_model_len=8192)
        try:
            return await ask(fleet.urls["P0"], fleet.urls["D0"], lease_s=PROFILE.lease_s / SPEED, nonce=3)
        finally:
            await fleet.close()

    assert not any(name.startswith("recompute, ") for name in asyncio.run(asked()))
