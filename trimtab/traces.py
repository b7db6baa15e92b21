"""Recorded traffic as conversations: token counts, thinking times and starts; no text.

Read by what a file looks like:
    {"id", "requests": [{"in", "out", "think_time"}, …]}                  one agent conversation a file
    {"turns": [[t_s, in, out, cached, think_s, …], …]} a line             agent conversations
    {"timestamp", "input_length", "output_length", "hash_ids"} a line     requests; sessions by shared prefix
    {"task_id", "turns": [[new_in, out, kind], …]} a line                 tool-agent conversations

A turn's new tokens are its prompt less the prompt and answer before it. Where the prompt shrinks (the client
compacted its history) a new conversation begins, for none of the old prefix is left.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from emulator.workload import ConversationPlan, TurnPlan

MAX_CONTEXT_TOKENS = 131_072
COMPACTED = 0.5
"""A prompt below this share of the one before has lost its prefix; a little less is a stripped answer."""
TOOL_THINK_S = 1.0
"""Between tool calls where a trace does not say."""


class TraceError(ValueError):
    """A trace that cannot be read; the message names the file and the line."""


def load_traces(
    path: Path,
    *,
    limit: int | None = None,
    output_cap: int | None = None,
    think_cap_s: float = 60.0,
    spacing_s: float = 2.0,
) -> list[ConversationPlan]:
    """Conversations of a file, or of every .json and .jsonl file in a folder, by start. `limit` counts
    requests of a request trace, else conversations. Conversations without a start of their own begin
    `spacing_s` apart. Raises TraceError.
    """
    files = sorted(item for item in path.iterdir() if item.suffix in (".json", ".jsonl")) if path.is_dir() else [path]
    if not files:
        raise TraceError(f"{path}: no .json or .jsonl file in this folder")
    plans: list[ConversationPlan] = []
    for file in files:
        plans.extend(_file(file, limit))
        if limit is not None and len(plans) >= limit:
            break
    spaced = []
    for at, plan in enumerate(plans):
        start_s = plan.start_s if plan.start_s >= 0 else at * spacing_s
        turns = tuple(
            TurnPlan(
                max(1, turn.new_tokens),
                max(1, min(turn.output_tokens, output_cap or turn.output_tokens)),
                min(turn.think_s, think_cap_s),
            )
            for turn in plan.turns
        )
        spaced.append(replace(plan, start_s=start_s, turns=_within(turns)))
    return sorted((plan for plan in spaced if plan.turns), key=lambda plan: plan.start_s)


def _within(turns: tuple[TurnPlan, ...]) -> tuple[TurnPlan, ...]:
    """As many turns as fit the engines' context."""
    total = 0
    for at, turn in enumerate(turns):
        total += turn.new_tokens + turn.output_tokens
        if total > MAX_CONTEXT_TOKENS:
            return turns[:at]
    return turns


def _file(path: Path, limit: int | None) -> Iterable[ConversationPlan]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read ({type(error).__name__})") from None
    rows = list(_rows(path, text, limit))
    if not rows:
        raise TraceError(f"{path}: is empty")
    try:
        first = rows[0]
        if "requests" in first:
            return [plan for row in rows for plan in _conversation(str(row["id"]), _requests(row["requests"]))]
        if "hash_ids" in first:
            return _sessions(rows)
        if "task_id" in first:
            return [_tools(f"{row['task_id']}-{row.get('trial', 0)}-{at}", row["turns"]) for at, row in enumerate(rows)]
        if "turns" in first:
            return [plan for row in rows for plan in _conversation(str(row["id"]), _compact(row["turns"]))]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise TraceError(f"{path}: {type(error).__name__}: {error}") from None
    raise TraceError(f"{path}: none of the known trace formats (docs/reference/demo.md)")


def _rows(path: Path, text: str, limit: int | None) -> Iterator[Mapping[str, object]]:
    try:
        whole = json.loads(text)
        if isinstance(whole, dict):
            yield whole
            return
    except json.JSONDecodeError:
        pass
    for number, line in enumerate(text.splitlines(), start=1):
        if limit is not None and number > limit:
            return
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise TraceError(f"{path}:{number}: no JSON: {error.msg}") from None
        if not isinstance(row, dict):
            raise TraceError(f"{path}:{number}: a line is an object")
        yield row


def _requests(rows: object) -> Iterator[tuple[int, int, float]]:
    for row in rows:  # type: ignore[attr-defined]
        yield int(row["in"]), int(row["out"]), float(row.get("think_time") or 0.0)


def _compact(rows: object) -> Iterator[tuple[int, int, float]]:
    for row in rows:  # type: ignore[attr-defined]
        yield int(row[1]), int(row[2]), float(row[4] or 0.0)


def _conversation(name: str, turns: Iterable[tuple[int, int, float]]) -> Iterator[ConversationPlan]:
    """From whole prompts to what each turn adds."""
    context = before = 0
    part = 1
    collected: list[TurnPlan] = []
    for prompt, output, think_s in turns:
        new = prompt - context
        if collected and prompt < COMPACTED * before:
            yield ConversationPlan(f"{name}/{part}", -1.0, tuple(collected))
            part, collected, new = part + 1, [], prompt
        collected.append(TurnPlan(new, output, think_s if collected else 0.0))
        before, context = prompt, prompt + output
    if collected:
        yield ConversationPlan(f"{name}/{part}", -1.0, tuple(collected))


def _tools(name: str, rows: object) -> ConversationPlan:
    turns = [TurnPlan(int(row[0]), int(row[1]), TOOL_THINK_S if at else 0.0) for at, row in enumerate(rows)]  # type: ignore[arg-type, var-annotated]
    return ConversationPlan(name, -1.0, tuple(turns))


def _sessions(rows: list[Mapping[str, object]]) -> list[ConversationPlan]:
    """A request that begins with all whole blocks of an earlier one continues its session."""
    turns: list[list[tuple[float, int, int]]] = []
    last_of: dict[int, int] = {}
    blocks_of: list[int] = []
    for row in rows:
        ids = [int(value) for value in row["hash_ids"]]  # type: ignore[attr-defined]
        entry = (float(row["timestamp"]) / 1e3, int(row["input_length"]), int(row["output_length"]))  # type: ignore
        session = None
        for depth in range(len(ids), 0, -1):
            known = last_of.get(ids[depth - 1])
            if known is not None:
                longer = entry[1] > turns[known][-1][1] + turns[known][-1][2]
                if depth >= max(2, blocks_of[known] - 1) and longer:
                    session = known
                break
        if session is None:
            session = len(turns)
            turns.append([])
            blocks_of.append(0)
        turns[session].append(entry)
        blocks_of[session] = len(ids)
        for value in ids:
            last_of[value] = session
    plans = []
    for number, entries in enumerate(turns):
        collected = []
        for at, (start_s, prompt, output) in enumerate(entries):
            if at == 0:
                collected.append(TurnPlan(prompt, output, 0.0))
                continue
            before = entries[at - 1]
            collected.append(TurnPlan(prompt - before[1] - before[2], output, max(0.0, start_s - before[0])))
        plans.append(ConversationPlan(f"session-{number}", entries[0][0], tuple(collected)))
    return plans
