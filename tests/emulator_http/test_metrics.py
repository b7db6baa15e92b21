"""/metrics: vLLM's names, labels and buckets, and numbers that agree with what was asked."""

from __future__ import annotations

import asyncio
import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.emulator_http.harness import PROFILE, START_PREFILL, captured, fleet, in_loop, until

DECODE_ONLY = "vllm:num_requests_kv_fetch_by_stage"


def table() -> dict[str, tuple[str, set[str], set[str], list[str]]]:
    """metrics-table.md: kind, labels, values of the last label, bucket bounds, by name."""
    found = {}
    for line in captured("metrics-table.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        name, kind, labels, rest = cells[0].strip("`"), cells[1], cells[2], cells[3]
        values = re.search(r"∈\{(.*)\}", rest)
        bounds = rest.removeprefix("buckets:").split() if rest.startswith("buckets") else []
        found[name] = (kind, set(labels.split(", ")), set(values[1].split(", ")) if values else set(), bounds)
    return found


async def pages(topology: str = "1P_1D_1R") -> dict[str, str]:
    async with fleet(topology) as client:
        return {node: (await client.get(node, "/metrics")).text for node in client.running.nodes}


def samples(page: str, name: str) -> list[tuple[dict[str, str], str]]:
    """Labels and number of each line of that name."""
    lines = re.findall(rf"^{re.escape(name)}\{{(.*)\}} (\S+)$", page, re.MULTILINE)
    return [(dict(re.findall(r'(\w+)="([^"]*)"', labels)), number) for labels, number in lines]


@in_loop
async def test_names_kinds_labels_and_buckets_are_those_of_real_vllm():
    expected = table()
    found = await pages()
    assert len(expected) > 40
    for node, page in found.items():
        for name, (kind, labels, values, bounds) in expected.items():
            if (name == DECODE_ONLY and node != "D0") or (name.startswith("vllm:nixl") and node == "R0"):
                assert name not in page, f"{node} should not have {name}"
                continue
            assert f"# TYPE {name} {kind}\n" in page, f"{node} lacks {name}"
            if name == "vllm:cache_config_info":
                continue
            lines = samples(page, f"{name}_bucket" if bounds else name)
            assert lines, f"{node}: {name} has no samples"
            for own, _ in lines:
                assert own.keys() - {"le"} == labels, name
            if values:
                (label,) = labels - {"engine", "model_name"}
                assert {own[label] for own, _ in lines} == values, name
            assert [own["le"] for own, _ in lines if bounds] == bounds, name


@pytest.mark.parametrize(("node", "file"), [("P0", "metrics-p.txt"), ("D0", "metrics-d.txt")])
@in_loop
async def test_every_vllm_sample_of_a_real_page_is_there_with_the_same_labels(node, file):
    real = captured(file).read_text(encoding="utf-8")
    page = (await pages())[node]

    def named(text: str) -> set[tuple[str, tuple[str, ...]]]:
        lines = re.findall(r"^(vllm:\w+)\{(.*)\} ", text, re.MULTILINE)
        names = {(name, tuple(sorted(re.findall(r"(\w+)=", labels)))) for name, labels in lines}
        return {each for each in names if "tool_call_parser" not in each[0]}  # those engines had no parser

    assert named(real) - named(page) == set()
    assert named(page) - named(real) == set()


@in_loop
async def test_the_page_is_in_the_exposition_format_and_names_the_process():
    for page in (await pages()).values():
        families = {family.name: family for family in text_string_to_metric_families(page)}
        assert families["vllm:prompt_tokens"].type == "counter"
        assert families["process_start_time_seconds"].samples[0].value > 1e9
        assert {"python_info", "process_resident_memory_bytes", "emulator_lag_seconds"} <= families.keys()
        (config,) = families["vllm:cache_config_info"].samples
        blocks, size = int(config.labels["num_gpu_blocks"]), int(config.labels["block_size"])
        assert size == PROFILE.block_tokens and blocks * size == PROFILE.kv_capacity_tokens // size * size


@in_loop
async def test_counters_and_histograms_add_up_to_what_was_asked():
    async with fleet("1P_1D", speed=10) as client:
        asks = [await client.chat("D0", f"Question {n}. " * 30, max_tokens=20) for n in range(5)]
        asks.append(await client.chat("D0", "Question 0. " * 30, max_tokens=1))
        numbers = await client.numbers("D0")
    prompt = sum(answer.usage["prompt_tokens"] for answer in asks)
    cached = sum(answer.usage["prompt_tokens_details"]["cached_tokens"] for answer in asks)
    assert cached > 0
    assert numbers["prompt_tokens_total"] == numbers["prefix_cache_queries_total"] == prompt
    assert numbers["prefix_cache_hits_total"] == numbers["prompt_tokens_cached_total"] == cached
    assert numbers['prompt_tokens_by_source_total{source="local_compute"}'] == prompt - cached
    assert numbers["external_prefix_cache_queries_total"] == prompt - cached
    assert numbers["generation_tokens_total"] == numbers["request_generation_tokens_sum"] == 101
    assert numbers['request_success_total{finished_reason="length"}'] == 6
    assert numbers["inter_token_latency_seconds_count"] == 95
    assert numbers["iteration_tokens_total_sum"] == prompt - cached + 95
    for name in ("time_to_first_token", "request_time_per_output_token", "e2e_request_latency", "request_queue_time"):
        assert numbers[f"{name}_seconds_count"] == 6
    whole = numbers["e2e_request_latency_seconds_sum"]
    first, decode = numbers["time_to_first_token_seconds_sum"], numbers["request_decode_time_seconds_sum"]
    assert whole == pytest.approx(first + decode) and decode == pytest.approx(
        numbers["inter_token_latency_seconds_sum"]
    )
    # Ten times the speed: seconds are the client's, not the engine's.
    assert 0.0005 < decode / 95 < 0.0015 and 0.002 < first / 6 < 0.02


@in_loop
async def test_gauges_show_what_runs_waits_and_is_held():
    async with fleet("1P_1D", speed=1.0) as client:
        idle = await client.numbers("D0")
        asks = [asyncio.create_task(client.chat("D0", f"{n} " * 400, max_tokens=500)) for n in range(3)]
        await until(lambda: client.running.fleet.engines["D0"].running == 3)
        busy = await client.numbers("D0")
        await client.chat("P0", "x" * 4000, max_tokens=1, kv_transfer_params=START_PREFILL)
        lent = await client.numbers("P0")
        for ask in asks:
            ask.cancel()
        await until(lambda: client.running.fleet.engines["D0"].running == 0)
        after = await client.numbers("D0")
    assert (idle["num_requests_running"], busy["num_requests_running"], after["num_requests_running"]) == (0, 3, 0)
    assert idle["kv_cache_usage_perc"] == after["kv_cache_usage_perc"] == 0
    assert busy["kv_cache_usage_perc"] == pytest.approx(3 * 700 / PROFILE.kv_capacity_tokens, rel=0.2)
    assert lent["kv_cache_usage_perc"] == pytest.approx(1008 / PROFILE.kv_capacity_tokens, rel=0.05)
    assert lent["num_requests_running"] == lent["num_requests_waiting"] == 0
    # As in vLLM, a client that leaves is counted nowhere but in the gauges; the emulator counts it for itself.
    assert sum(number for name, number in after.items() if name.startswith("request_success_total")) == 0
    assert after["emulator_aborted_requests_total"] == 3


@in_loop
async def test_a_revived_node_counts_from_zero_and_started_later():
    async with fleet("1P_1D") as client:
        await client.chat("D0", "Hello", max_tokens=5)
        before, other = await client.numbers("D0"), await client.numbers("P0")
        started = "process_start_time_seconds"
        client.running.kill("D0")
        await client.running.revive("D0")
        after = await client.numbers("D0")
        assert (await client.numbers("P0"))[started] == other[started]
    assert before["generation_tokens_total"] == 5 and after["generation_tokens_total"] == 0
    assert after["prompt_tokens_created"] == after[started] > before[started]
