"""vLLM's scheduler as a node of the emulated fleet (`benchmarks/vllm_engine.py`) against the emulated engine: small
cases, in virtual time, under the engines' own Python."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "vllm_scheduler.py"
LIMIT_S = 300.0
KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH")


@pytest.fixture(scope="module")
def rows(home) -> dict[str, tuple[float, float]]:
    """By what was measured: (vLLM's scheduler, ours)."""
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    command = [str(home.python), "-W", "ignore", str(SCRIPT), "--check", "--also", sysconfig.get_paths()["purelib"]]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return {row["what"]: (row["vllm"], row["emulator"]) for row in json.loads(done.stdout)["rows"]}


def test_times_of_single_requests_are_the_emulators(rows):
    for what in ("alone, TTFT", "alone, TPOT", "prefix hit, TTFT", "prefix hit, TPOT"):
        real, ours = rows[f"{what}, ms"]
        assert ours > 0 and real == pytest.approx(ours, rel=0.02), what


def test_the_next_turn_finds_what_the_last_one_left(rows):
    real, ours = rows["prefix hit, tokens"]
    assert real == ours > 6000  # prompt and answer, in whole blocks


def test_a_prompt_in_chunks_beside_decodes_takes_as_long_on_both(rows):
    for what in ("20,000 tokens beside 16 decodes, TTFT, ms", "decodes beside it, TPOT, ms"):
        real, ours = rows[what]
        assert real == pytest.approx(ours, rel=0.03), what


@pytest.mark.parametrize("turn", ["first turn", "second turn"])
def test_a_transferred_turns_kv_arrives(rows, turn):
    assert rows["poisoned reads"] == (0.0, 0.0)
    pulled = rows[f"{turn}, tokens pulled"]
    assert pulled[0] == pulled[1] > 0
    cached = rows[f"{turn}, P's cached tokens"]
    assert cached[0] == cached[1]
    for what in ("P's leg, ms", "TTFT on D, ms", "TPOT on D, ms"):
        real, ours = rows[f"{turn}, {what}"]
        assert real == pytest.approx(ours, rel=0.03), what


def test_p_keeps_a_prompt_until_it_is_read_and_no_longer(rows):
    held, _ = rows["first turn, P's memory under lease, tokens"]
    assert 7000 <= held < 7100
    assert rows["first turn, P's memory after it, tokens"] == (0.0, 0.0)
    assert rows["second turn, leases left"] == (0.0, 0.0)


def test_a_read_from_a_dead_p_fails_the_request_and_frees_its_memory(rows):
    assert rows["P died, requests failed"] == (1.0, 1.0)
    assert rows["P died, D's memory"] == (0.0, 0.0)
