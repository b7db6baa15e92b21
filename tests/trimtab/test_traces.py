"""Recorded traffic as conversations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from emulator.workload import ConversationPlan, TurnPlan
from trimtab.traces import TraceError, load_traces


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
    (plan,) = load_traces(path, output_cap=128, think_cap_s=0.5)
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


def test_the_recorded_traces_are_whole(measured_dir):
    claude = load_traces(measured_dir / "claude_code_traces" / "weka_json")
    assert (len(claude), sum(len(plan.turns) for plan in claude)) == (67, 1091)
    requests = load_traces(measured_dir / "mooncake" / "conversation_trace.jsonl", limit=1000)
    assert sum(len(plan.turns) for plan in requests) == 1000
