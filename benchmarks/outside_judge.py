"""The emulated engine beside one that this project did not write: the mocker of NVIDIA Dynamo.

    python -m venv VENV && VENV/bin/pip install ai-dynamo-runtime pyyaml zstandard fastapi pyzmq msgspec transformers \
        uvicorn prometheus_client aiohttp && VENV/bin/pip install --no-deps ai-dynamo
    python benchmarks/outside_judge.py --dynamo VENV/bin/python [--slow 4] [--repeats 3] [--json FILE]

One engine that does prefill and decode. Batches of two-turn conversations that start together, and cells of the paper's
grid as they arrive. The mocker runs for real, `--slow` times as slow as it could, so that a busy machine disturbs it
less, and is driven over HTTP; ours runs in virtual time with the mocker's own timing (its documented polynomials of
prefill and decode). So what is judged is not the constants but the mechanics: what goes into a step, what waits, what
a cache hit saves. The mocker listens on all addresses and tells others its machine's own, so all of this re-executes
itself in a network namespace of its own (`unshare -rn`, Linux), where only the loopback is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import aiohttp
import numpy as np
from rich.console import Console
from rich.table import Table

from emulator.profiles import LLAMA_3_1_8B_H100, EngineProfile
from emulator.workload import ConversationPlan, TurnPlan
from slos.objective import Outcome
from trimtab.grid import Conditions, arrivals, simulate
from trimtab.simulate import EAGER
from trimtab.workloads import PAPER_WORKLOADS

SEED = 0
PORT = 8123
INSIDE = "TRIMTAB_IN_NAMESPACE"
BLOCK, BLOCKS, BUDGET, SEQUENCES = 64, 16_384, 8192, 256
BATCHES = (1, 8, 32, 64)
CELLS = (("small/mid_bal", 4.0), ("large/big_paste", 2.0), ("large/long_gen", 2.0))
TURNS = (TurnPlan(1024, 128, 0.0), TurnPlan(128, 128, 0.0))

# prefill: 4.21e-7 t² + .01518 t + 16.5 ms; decode: −25.74 p² + 54.01 p + 5.74 ms, p = used share of the KV memory. A
# step of up to 64 tokens is a decode (no batch here is larger), one of more has a prompt in it (no prompt here is
# smaller); −25.74 p² is left out (p stays below .15).
DECODES = 64
MOCKER_TIMING: EngineProfile = replace(
    LLAMA_3_1_8B_H100,
    name="dynamo-mocker-timing",
    provenance="the documented default timing of Dynamo's mocker 1.6.1",
    linear_ms=((1, 5.74), (DECODES, 5.74), (DECODES + 1, 16.5 + 0.01518 * DECODES), (8192, 16.5 + 0.01518 * 8192)),
    kv_read_ms_per_token=54.01 / (BLOCK * BLOCKS),
    attention_ms_per_token2=2 * 4.21e-7,
    step_fixed_ms=0.0,
    per_sequence_ms=0.0,
    front_ms=0.0,
    tokenise_ms_per_token=0.0,
    first_token_ms=0.0,
    kv_capacity_tokens=BLOCK * BLOCKS,
    token_budget=BUDGET,
    max_sequences=SEQUENCES,
    block_tokens=BLOCK,
    reuse_responses=False,
)


@dataclass(frozen=True)
class Turn:
    number: int
    ttft_ms: float
    tpot_ms: float


@dataclass(frozen=True)
class Row:
    scenario: str
    what: str
    mocker: float
    trimtab: float

    @property
    def ratio(self) -> float:
        return self.trimtab / self.mocker


def scenarios() -> dict[str, list[ConversationPlan]]:
    found = {f"batch of {n}": [ConversationPlan(f"b{n}-{at}", 0.0, TURNS) for at in range(n)] for n in BATCHES}
    for name, qps in CELLS:
        workload = PAPER_WORKLOADS[name]
        turns = (TurnPlan(*workload.first, 0.0), TurnPlan(*workload.second, 0.0))
        starts = arrivals(qps, 10.0, np.random.default_rng([SEED, round(qps)]))
        found[f"{name} at {qps:g}/s"] = [ConversationPlan(f"{name}-{at}", s, turns) for at, s in enumerate(starts)]
    return found


def virtual(plans: list[ConversationPlan]) -> list[Turn]:
    run = simulate("1R", plans, Conditions(MOCKER_TIMING, client=EAGER), SEED)
    done = [r for r in run.records if r.outcome is Outcome.COMPLETED]
    return [Turn(r.turn, (r.ttft_s or 0) * 1e3, (r.tpot_s or 0) * 1e3) for r in done]


# -- the mocker --------------------------------------------------------------------------------------------------------


def model_folder(folder: Path) -> None:
    """A tokenizer of one token a word, and a configuration: all that the mocker reads of a model."""
    special = {"<unk>": 3000, "<s>": 3001, "</s>": 3002}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": at, "content": text, **flags} for text, at in special.items()],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {f"w{n}": n for n in range(3000)} | special, "unk_token": "<unk>"},
    }
    ends = {"bos_token_id": 3001, "eos_token_id": 3002}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 3003,
        "max_position_embeddings": 131_072,
        **ends,
    }
    names = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }
    for name, content in {
        "tokenizer.json": tokenizer,
        "config.json": config,
        "generation_config.json": ends,
        "tokenizer_config.json": {**names, "chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}"},
    }.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")


def start(python: Path, folder: Path, slow: float) -> list[subprocess.Popen[bytes]]:
    planes = ["--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq"]
    engine = f"--block-size {BLOCK} --num-gpu-blocks-override {BLOCKS} --max-num-seqs {SEQUENCES}"
    engine += f" --max-num-batched-tokens {BUDGET} --speedup-ratio {1 / slow:g} --model-path {folder} --model-name m"
    env = os.environ | {
        "DYN_HTTP_HOST": "127.0.0.1",
        "DYN_FILE_KV": str(folder / "kv"),
        "DYN_DISCOVERY_BACKEND": "file",
        "HF_HUB_OFFLINE": "1",
    }
    commands = [
        [str(python), "-m", "dynamo.mocker", *engine.split(), *planes],
        [str(python), "-m", "dynamo.frontend", "--http-port", str(PORT), *planes],
    ]
    with (folder / "log").open("wb") as log:
        return [subprocess.Popen(command, env=env, stdout=log, stderr=log) for command in commands]


async def ready(client: aiohttp.ClientSession, limit_s: float = 60.0) -> None:
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        try:
            async with client.get("/v1/models") as reply:
                if (await reply.json())["data"]:
                    return
        except (aiohttp.ClientError, ValueError):
            pass
        await asyncio.sleep(0.5)
    raise SystemExit("the mocker did not come up within a minute")


def words(rng: np.random.Generator, count: int) -> str:
    return " ".join(f"w{n}" for n in rng.integers(0, 3000, count))


async def converse(client: aiohttp.ClientSession, plan: ConversationPlan, number: int, slow: float) -> list[Turn]:
    """What it says again is not the mocker's answer but as many words: a cache hit is the prompt, as in ours."""
    await asyncio.sleep(plan.start_s * slow)
    rng = np.random.default_rng([SEED, number])
    text, turns = "", []
    for at, turn in enumerate(plan.turns, start=1):
        text = f"{text} {words(rng, turn.new_tokens)}".strip()
        body = {"model": "m", "prompt": text, "max_tokens": turn.output_tokens, "stream": True, "ignore_eos": True}
        sent = time.monotonic()
        times = []
        async with client.post("/v1/completions", json=body) as reply:
            reply.raise_for_status()
            async for line in reply.content:
                if line.startswith(b"data: {"):
                    times.append(time.monotonic())
        first, last = times[0] - sent, times[-1] - times[0]
        turns.append(Turn(at, first * 1e3 / slow, last * 1e3 / slow / (turn.output_tokens - 1)))
        text = f"{text} {words(rng, turn.output_tokens)}"
    return turns


async def real(plans: dict[str, list[ConversationPlan]], slow: float, repeats: int) -> dict[str, list[list[Turn]]]:
    limits = aiohttp.TCPConnector(limit=0)
    patience = aiohttp.ClientTimeout(total=600)
    found: dict[str, list[list[Turn]]] = {name: [] for name in plans}
    async with aiohttp.ClientSession(f"http://127.0.0.1:{PORT}", connector=limits, timeout=patience) as client:
        await ready(client)
        number = 10_000
        await converse(client, ConversationPlan("warm", 0.0, TURNS), number, slow)
        for name, some in [*plans.items()] * repeats:
            talks = [converse(client, plan, number + at, slow) for at, plan in enumerate(some, start=1)]
            number += len(talks) + 1
            found[name].append([turn for turns in await asyncio.gather(*talks) for turn in turns])
    return found


def compared(name: str, theirs: list[list[Turn]], ours: list[Turn]) -> list[Row]:
    """Medians; of the mocker's runs the least, for what else the machine does can only slow it down."""
    rows = []
    for number in (1, 2):
        for what in ("ttft_ms", "tpot_ms"):
            real, own = (
                [median(getattr(turn, what) for turn in turns if turn.number == number) for turns in runs]
                for runs in (theirs, [ours])
            )
            rows.append(Row(name, f"turn {number} {what.removesuffix('_ms').upper()}, ms", min(real), own[0]))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dynamo", type=Path, required=True, help="Python of a venv with ai-dynamo")
    parser.add_argument("--slow", type=float, default=4.0, help="the mocker runs so many times slower than it could")
    parser.add_argument("--repeats", type=int, default=3, help="of the mocker's runs; the least counts")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if os.environ.get(INSIDE) != "1":
        command = 'ip link set lo up && exec "$0" "$@"'
        again = ["unshare", "-rn", "sh", "-c", command, sys.executable, *sys.argv]
        raise SystemExit(subprocess.run(again, env=os.environ | {INSIDE: "1"}, check=False).returncode)
    plans = scenarios()
    with tempfile.TemporaryDirectory() as folder:
        model_folder(Path(folder))
        processes = start(args.dynamo, Path(folder), args.slow)
        try:
            theirs = asyncio.run(real(plans, args.slow, args.repeats))
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(timeout=30)
    rows = [row for name, some in plans.items() for row in compared(name, theirs[name], virtual(some))]
    table = Table("scenario", "what", "Dynamo's mocker", "Trimtab", "ratio")
    for row in rows:
        table.add_row(row.scenario, row.what, f"{row.mocker:.2f}", f"{row.trimtab:.2f}", f"{row.ratio:.2f}")
    Console(width=110).print(table)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    how = f"the mocker {args.slow:g} times slower than real time, least of {args.repeats} medians"
    print(f"source: emulated, both · seed {SEED} · {how} · {machine}")
    if args.json:
        args.json.write_text(json.dumps([asdict(row) | {"ratio": row.ratio} for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
