"""Recorded traffic on disk, told by what a file looks like, as conversations of token counts.

    {"id", "requests": [{"in", "out", "think_time"}, …]}                  one agent conversation a file
    {"id", "turns": [[t_s, in, out, cached, think_s, …], …]} a line       agent conversations (Claude Code, compact)
    {"timestamp", "input_length", "output_length", "hash_ids"} a line     requests (Mooncake); sessions by shared prefix
    {"task_id", "turns": [[new_in, out, kind], …]} a line                 tool-agent conversations (tau-bench)
    {"question_id", "turns": ["text", …]} a line                          prompts without answers (MT-bench)
    TIMESTAMP,ContextTokens,GeneratedTokens                               requests alone (Azure 2023), CSV

A turn's new tokens are its prompt less the prompt and answer before it. Where the prompt shrinks (the client
compacted its history) a new conversation begins, for none of the old prefix is left. `start_s` is -1 where a
trace does not say. Left out: sub-agents inside Claude Code conversations, which run beside them.
"""

from __future__ import annotations

import csv
import datetime
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from emulator.workload import ConversationPlan, TurnPlan

SUFFIXES = (".json", ".jsonl", ".csv")
NO_START_S = -1.0
COMPACTED = 0.5
"""A prompt below this share of the one before has lost its prefix; a little less is a stripped answer."""
TOOL_THINK_S = 1.0
"""Between tool calls where a trace does not say."""
READING_S = 9.0
"""Before a second prompt where a trace does not say: the median of the mix `chat`."""
ANSWER_TOKENS = 250
"""Of an answer where a trace does not say: the median of ShareGPT's."""
BYTES_PER_TOKEN = 4
"""Of a prompt that is given as text."""

Row = Mapping[str, object]


class TraceError(ValueError):
    """A trace that cannot be read; the message names the file and the line."""


def read_trace(path: Path, limit: int | None) -> list[ConversationPlan]:
    """The conversations of one file as recorded; `limit` is of lines. Raises TraceError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read ({type(error).__name__})") from None
    rows = list(_table(text, limit) if path.suffix == ".csv" else _objects(path, text, limit))
    if not rows:
        raise TraceError(f"{path}: is empty")
    try:
        return _conversations(rows)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise TraceError(f"{path}: {type(error).__name__}: {error}") from None


def _conversations(rows: list[Row]) -> list[ConversationPlan]:
    first = rows[0]
    if "requests" in first:
        return [plan for row in rows for plan in _agent(str(row["id"]), _requests(row["requests"]))]
    if "hash_ids" in first:
        return _sessions(rows)
    if "task_id" in first:
        return [_tools(f"{row['task_id']}-{row.get('trial', 0)}-{at}", row["turns"]) for at, row in enumerate(rows)]
    if "question_id" in first:
        return [_texts(str(row["question_id"]), row["turns"]) for row in rows]
    if "turns" in first:
        return [plan for row in rows for plan in _agent(str(row["id"]), _compact(row["turns"]))]
    if "ContextTokens" in first:
        return _lone(rows)
    raise ValueError("none of the known trace formats (docs/reference/traces.md)")


def _table(text: str, limit: int | None) -> Iterator[Row]:
    for number, row in enumerate(csv.DictReader(text.splitlines())):
        if limit is not None and number >= limit:
            return
        yield row


def _objects(path: Path, text: str, limit: int | None) -> Iterator[Row]:
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


def _agent(name: str, turns: Iterable[tuple[int, int, float]]) -> Iterator[ConversationPlan]:
    """From whole prompts to what each turn adds."""
    context = before = 0
    part = 1
    collected: list[TurnPlan] = []
    for prompt, output, think_s in turns:
        new = prompt - context
        if collected and prompt < COMPACTED * before:
            yield ConversationPlan(f"{name}/{part}", NO_START_S, tuple(collected))
            part, collected, new = part + 1, [], prompt
        collected.append(TurnPlan(new, output, think_s if collected else 0.0))
        before, context = prompt, prompt + output
    if collected:
        yield ConversationPlan(f"{name}/{part}", NO_START_S, tuple(collected))


def _tools(name: str, rows: object) -> ConversationPlan:
    turns = [TurnPlan(int(row[0]), int(row[1]), TOOL_THINK_S if at else 0.0) for at, row in enumerate(rows)]  # type: ignore[arg-type, var-annotated]
    return ConversationPlan(name, NO_START_S, tuple(turns))


def _texts(name: str, texts: object) -> ConversationPlan:
    sizes = [-(-len(str(text).encode()) // BYTES_PER_TOKEN) for text in texts]  # type: ignore[attr-defined]
    turns = [TurnPlan(size, ANSWER_TOKENS, READING_S if at else 0.0) for at, size in enumerate(sizes)]
    return ConversationPlan(name, NO_START_S, tuple(turns))


def _lone(rows: list[Row]) -> list[ConversationPlan]:
    """Requests that nothing ties together, each a conversation of one turn; the first starts at 0 s."""
    # Python reads six digits of a second, and these have seven.
    stamps = [datetime.datetime.fromisoformat(str(row["TIMESTAMP"])[:26]) for row in rows]
    begin = min(stamps)
    return [
        ConversationPlan(
            f"request-{at}",
            (stamp - begin).total_seconds(),
            (TurnPlan(int(str(row["ContextTokens"])), int(str(row["GeneratedTokens"])), 0.0),),
        )
        for at, (stamp, row) in enumerate(zip(stamps, rows, strict=True))
    ]


def _sessions(rows: list[Row]) -> list[ConversationPlan]:
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
