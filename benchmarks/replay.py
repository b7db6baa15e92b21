"""Recorded traffic over HTTP: every conversation of the traces through router, controller and emulated fleet.

    python benchmarks/replay.py [--data DIR] [--speed 20] [--output-cap 128] [--json FILE]

The Claude Code conversations and the first 1,000 Mooncake requests, one after the other on an emulated 8B
2P_2D fleet whose clock runs `speed` times as fast. Fails unless every turn is answered, every stream says
exactly what the engine says to that prompt, and the whole takes at most 90 s. Reads the traces from --data,
TRIMTAB_DATA, or ../shared/data.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from emulator.workload import ConversationPlan
from estimators.quantile import nearest_rank
from slos.objective import Outcome
from trimtab.clients import Crowd, SeenTurn
from trimtab.installation import install
from trimtab.scenarios import promises
from trimtab.traces import Cut, load_traces

LIMIT_S = 90.0
PROFILE, TOPOLOGY = "llama-3.1-8b-h100", "2P_2D"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--speed", type=float, default=20.0)
    parser.add_argument("--output-cap", type=int, default=128)
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    beside = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
    data = arguments.data or Path(os.environ.get("TRIMTAB_DATA") or beside)
    if not data.is_dir():
        print(f"skipped: no traces at {data}; name their folder with --data or TRIMTAB_DATA")
        return 0
    command = " ".join(["python", "benchmarks/replay.py", *sys.argv[1:]])
    print(f"source: emulated · {command}")
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    began = monotonic()
    results = asyncio.run(_replay(data, arguments.speed, arguments.output_cap))
    took_s = monotonic() - began
    problems = [problem for name, turns, planned in results for problem in _problems(name, turns, planned)]
    if took_s > LIMIT_S:
        problems.append(f"the replay took {took_s:.0f} s, more than {LIMIT_S:.0f} s")
    print(f"all: {took_s:.1f} s, {'ok' if not problems else '; '.join(problems)}")
    if arguments.json is not None:
        document = {"source": "emulated", "command": command, "seconds": round(took_s, 1), "problems": problems}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if problems else 0


async def _replay(data: Path, speed: float, cap: int) -> list[tuple[str, list[SeenTurn], int]]:
    claude, mooncake = data / "claude_code_traces" / "weka_json", data / "mooncake" / "conversation_trace.jsonl"
    parts = (
        ("claude", load_traces(claude, cut=Cut(output_tokens=cap, think_s=10), spacing_s=3)),
        ("mooncake", load_traces(mooncake, cut=Cut(output_tokens=cap), limit=1000)),
    )
    results = []
    with TemporaryDirectory(prefix="trimtab-replay-") as folder:
        installation = await install(Path(folder), PROFILE, TOPOLOGY, promises(5.0, 0.05), speed=speed)
        try:
            for name, plans in parts:
                planned = sum(len(plan.turns) for plan in plans)
                began = monotonic()
                crowd = Crowd(installation.router_url, installation.model, plans, speed=speed)
                await crowd.run()
                _print(name, plans, crowd.turns, monotonic() - began)
                results.append((name, crowd.turns, planned))
        finally:
            installation.stop()
    return results


def _print(name: str, plans: list[ConversationPlan], turns: list[SeenTurn], took_s: float) -> None:
    chunks = sum(turn.output_tokens for turn in turns)
    ttft = sorted(turn.ttft_s for turn in turns if turn.ttft_s is not None)
    local = sum(turn.went_local for turn in turns)
    print(
        f"{name}: {len(plans)} conversations, {len(turns)} turns, {chunks} chunks in {took_s:.1f} s "
        f"({chunks / took_s:.0f} chunks/s), {local} local; TTFT P50 {nearest_rank(ttft, 0.5) * 1e3:.0f} ms, "
        f"P99 {nearest_rank(ttft, 0.99) * 1e3:.0f} ms (engine time); {dict(Counter(turn.reason for turn in turns))}",
        flush=True,
    )


def _problems(name: str, turns: list[SeenTurn], planned: int) -> list[str]:
    lost = planned - sum(turn.outcome is Outcome.COMPLETED for turn in turns)
    different = sum(turn.outcome is Outcome.COMPLETED and not turn.text_matches for turn in turns)
    found = [f"{name}: {lost} of {planned} turns lost"] if lost else []
    return found + ([f"{name}: {different} streams differ from what the engine says"] if different else [])


if __name__ == "__main__":
    sys.exit(main())
