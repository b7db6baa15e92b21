"""Recorded traffic as conversations."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from emulator.workload import ConversationPlan, TurnPlan
from trimtab.trace_formats import ANSWER_TOKENS, READING_S
from trimtab.traces import Cut, TraceError, load_traces, sample


def written(folder: Path, name: str, rows: object, *, lines: bool = False) -> Path:
    path = folder / name
    path.write_text("\n".join(json.dumps(row) for row in rows) if lines else json.dumps(rows))  # type: ignore[attr-defined]
    return path


def test_an_agent_conversation_adds_what_its_prompts_grow_by(tmp_path):
    rows = [{"in": 100, "out": 20, "think_time": 0.0}, {"in": 150, "out": 5, "think_time": 3.0}]
    path = written(tmp_path, "a.json", {"id": "a", "requests": rows})
    assert load_traces(path) == [ConversationPlan("a/1", 0.0, (TurnPlan(100, 20, 0.0), TurnPlan(30, 5, 3.0)))]


def test_a_stripped_answer_is_a_turn_of_at_least_one_token_and_a_compaction_begins_anew(tmp_path):
    rows = [{"in": 1000, "out": 200}, {"in": 1100, "out": 10}, {"in": 300, "out": 10}]
    plans = load_traces(written(tmp_path, "a.json", {"id": "a", "requests": rows}))
    assert [[turn.new_tokens for turn in plan.turns] for plan in plans] == [[1000, 1], [300]]


def test_requests_that_share_their_prefix_are_one_session(tmp_path):
    rows = [
        {"timestamp": 0, "input_length": 1500, "output_length": 100, "hash_ids": [1, 2, 3]},
        {"timestamp": 1000, "input_length": 900, "output_length": 10, "hash_ids": [9, 10]},
        {"timestamp": 30000, "input_length": 2000, "output_length": 50, "hash_ids": [1, 2, 4, 5]},
    ]
    plans = load_traces(written(tmp_path, "m.jsonl", rows, lines=True))
    assert [len(plan.turns) for plan in plans] == [2, 1]
    assert plans[0].turns[1] == TurnPlan(400, 50, 30.0)
    assert plans[1].start_s == 1.0


def test_tool_conversations_and_caps(tmp_path):
    path = written(
        tmp_path, "t.jsonl", [{"task_id": 3, "trial": 0, "turns": [[50, 400, "user"], [10, 5, "tool"]]}], lines=True
    )
    (plan,) = load_traces(path, cut=Cut(output_tokens=128, think_s=0.5))
    assert plan.turns == (TurnPlan(50, 128, 0.0), TurnPlan(10, 5, 0.5))


def test_a_folder_is_read_in_order_and_limited(tmp_path):
    for name in ("b", "a", "c"):
        written(tmp_path, f"{name}.json", {"id": name, "requests": [{"in": 10, "out": 1}]})
    plans = load_traces(tmp_path, limit=2, spacing_s=3.0)
    assert [(plan.name, plan.start_s) for plan in plans] == [("a/1", 0.0), ("b/1", 3.0)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("{", "no JSON"),
        ('{"a": 1}', "none of the known"),
        ("[1]", "a line is an object"),
        ('{"id": 1, "requests": [{"in": "x"}]}', "ValueError"),
        ('{"timestamp": 0, "hash_ids": [1]}', "input_length"),
    ],
)
def test_what_is_no_trace_is_refused_with_the_file(tmp_path, text, words):
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with pytest.raises(TraceError, match=words) as refused:
        load_traces(path)
    assert str(path) in str(refused.value)


def test_prompts_without_answers_are_two_turns_of_a_quarter_of_their_bytes(tmp_path):
    rows = [{"question_id": 81, "turns": ["x" * 400, "é" * 10]}]
    (plan,) = load_traces(written(tmp_path, "q.jsonl", rows, lines=True))
    assert plan.turns == (TurnPlan(100, ANSWER_TOKENS, 0.0), TurnPlan(5, ANSWER_TOKENS, READING_S))


def test_requests_of_a_table_are_conversations_of_one_turn_from_the_first_on(tmp_path):
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n"
    )
    first, second = load_traces(path)
    assert (first.start_s, first.turns) == (0.0, (TurnPlan(4808, 10, 0.0),))
    assert second.start_s == pytest.approx(0.052, abs=1e-5)
    assert len(load_traces(path, limit=1)) == 1


def test_lengths_are_scaled_before_they_are_cut_and_turns_and_context_end_a_conversation(tmp_path):
    rows = [{"task_id": 1, "turns": [[1000, 100, "user"], [500, 60, "tool"], [500, 60, "tool"], [500, 60, "tool"]]}]
    path = written(tmp_path, "t.jsonl", rows, lines=True)
    (plan,) = load_traces(path, cut=Cut(scale=0.5, output_tokens=40, turns=3))
    assert [(turn.new_tokens, turn.output_tokens) for turn in plan.turns] == [(500, 40), (250, 30), (250, 30)]
    (plan,) = load_traces(path, cut=Cut(context_tokens=1700))
    assert len(plan.turns) == 2
    assert load_traces(path, cut=Cut(context_tokens=1000)) == []


def test_recorded_conversations_can_be_drawn_from(tmp_path):
    for name in ("a", "b"):
        written(tmp_path, f"{name}.json", {"id": name, "requests": [{"in": 10 + ord(name), "out": 1}]})
    plans = load_traces(tmp_path)
    source = sample("agents", plans)
    rng = np.random.default_rng(1)
    assert {source.draw(rng) for _ in range(20)} == {plan.turns for plan in plans}


@pytest.mark.parametrize(
    ("name", "conversations", "turns_mean", "later_new_p90", "answer_p90"),
    [
        ("claude_code_traces/weka_json", 67, 16.28, 3101, 1113),
        ("claude_code_traces/compact.jsonl", 911, 53.41, 2823, 899),
        ("mooncake/conversation_trace.jsonl", 8535, 1.41, 4636, 597),
        ("mooncake/synthetic_trace.jsonl", 3773, 1.06, 798, 389),
        ("taubench/gpt4o_airline_lengths.jsonl", 200, 12.27, 315, 136),
        ("mt_bench/question.jsonl", 80, 2.0, 43, 250),
        ("azure2023/AzureLLMInferenceTrace_conv.csv", 19366, 1.0, 0, 424),
        ("azure2023/AzureLLMInferenceTrace_code.csv", 8819, 1.0, 0, 55),
    ],
)
def test_every_recorded_trace_is_read_whole(measured_dir, name, conversations, turns_mean, later_new_p90, answer_p90):
    plans = load_traces(measured_dir / name, cut=Cut(context_tokens=10**9, think_s=1e9))
    assert len(plans) == conversations
    assert np.mean([len(plan.turns) for plan in plans]) == pytest.approx(turns_mean, rel=0.01)
    later = [turn.new_tokens for plan in plans for turn in plan.turns[1:]] or [0]
    assert np.percentile(later, 90) == pytest.approx(later_new_p90, rel=0.01)
    answers = [turn.output_tokens for plan in plans for turn in plan.turns]
    assert np.percentile(answers, 90) == pytest.approx(answer_p90, rel=0.01)


def test_a_limit_on_a_trace_of_requests_counts_requests(measured_dir):
    plans = load_traces(measured_dir / "mooncake" / "conversation_trace.jsonl", limit=1000)
    assert sum(len(plan.turns) for plan in plans) == 1000
