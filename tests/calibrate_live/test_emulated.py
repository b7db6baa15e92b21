"""`trimtab calibrate --live` on an emulated fleet, as an operator runs it: broken off, gone on with, and compared with
virtual time on the same cells."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from statistics import median

import pytest

from router.artefact import Artefact, load
from router.latency import LatencyModel
from trimtab.calibrate import Plan, artefact_text, run_phase1
from trimtab.cells import Window, cells_named

from .commands import emulated, ended, live, reason, serving, trimtab, waited

pytestmark = pytest.mark.slow

PROFILE, TOPOLOGY = "llama-3.1-8b-h100", "1P_2D"
CELLS = "small/tiny@4,small/big_paste@4,small/huge_paste@2"
WINDOW = Window(30, 25.0)
NARROW = ("--cells", CELLS, "--turns", WINDOW.later_turns, "--limit-s", WINDOW.limit_s)
TOLERANCE = 0.2
"""Of a predicted TTFT or step, in the median. Live adds HTTP, some 2 ms of 35; the rest is room for a busy machine."""
PER_CELL_S = 300.0


@pytest.fixture(scope="module")
def virtual() -> Artefact:
    chosen = tuple((cell.workload, cell.qps) for cell in cells_named(CELLS.split(",")))
    plan = Plan(PROFILE, TOPOLOGY, cells=chosen, window=WINDOW)
    return load(artefact_text(plan, run_phase1(plan, lambda *_: None), date="2026-01-01", command="c"), "virtual")


def finished(state: Path) -> list[str]:
    """Lines of finished cells."""
    return state.read_text().splitlines()[1:] if state.exists() else []


def nodes(urls: dict[str, str]) -> tuple[list[str], list[str]]:
    return [urls["P0"]], [urls["D0"], urls["D1"]]


def off(live_model: LatencyModel, virtual_model: LatencyModel) -> dict[str, float]:
    """Median relative difference of what the two predict, over what the cells measured."""
    points = [(d, p, 256 + d, b) for d in (16, 64, 256, 1024) for p in (144, 400, 1280) for b in (0, 2, 8)]
    pairs = {
        "local": [(m.local_ms(d, prompt, b) for m in (live_model, virtual_model)) for d, _, prompt, b in points],
        "transferred": [
            (m.remote_ms(p, d, prompt, b) for m in (live_model, virtual_model)) for d, p, prompt, b in points
        ],
        "step": [(m.decode_step_ms(b, b * 400) for m in (live_model, virtual_model)) for b in range(1, 9)],
    }
    return {name: median(abs(a / b - 1) for a, b in both) for name, both in pairs.items()}


def test_a_run_that_was_killed_goes_on_and_its_table_is_virtual_times(tmp_path, virtual):
    table, log = tmp_path / "table.json", tmp_path / "calibrate.log"
    state = table.with_suffix(".cells.jsonl")
    with emulated(TOPOLOGY, tmp_path) as urls:
        command = live(*nodes(urls), *NARROW, "--out", table)
        process = trimtab(*command, log=log)
        try:
            waited(lambda: len(finished(state)) == 1, process, PER_CELL_S)
        finally:
            process.kill()
            process.wait()
        (first,) = finished(state)
        with state.open("a") as file:
            file.write('{"cell":"small/big_')  # killed in the middle of a line

        process = trimtab(*command, log=log)
        try:
            assert process.wait(3 * PER_CELL_S) == 0, log.read_text()
        finally:
            ended(process)
        assert finished(state)[0] == first, "a finished cell is not measured again"
        assert "1 of 3 cells are in" in log.read_text()

        artefact = load(table.read_text(), "live")
        assert [str(cell.key) for cell in artefact.cells] == [str(cell.key) for cell in virtual.cells]
        origin = artefact.origin
        assert (origin.source, origin.topology, origin.model) == ("emulated", TOPOLOGY, "llama-3.1-8b")
        assert "calibrate --live" in origin.command and artefact.missing == {}
        for cell in artefact.cells:
            assert cell.x0.success > 0.9 and cell.x1.success > 0.9

        differences = off(artefact.table.model, virtual.table.model)
        print(differences, artefact.table.model)
        assert max(differences.values()) < TOLERANCE, differences

        with serving(*nodes(urls), table, tmp_path) as url:
            assert reason(url, origin.model, "a-conversation") in ("score", "local_slower")


def test_ctrl_c_says_where_it_goes_on_and_another_seed_does_not_go_on_from_there(tmp_path):
    state, log = tmp_path / "cells.jsonl", tmp_path / "calibrate.log"
    with emulated("1P_1D", tmp_path) as urls:
        more = ("--cells", "small/tiny@4", "--state", state, "--out", tmp_path / "table.json")
        command = live([urls["P0"]], [urls["D0"]], *more)
        process = trimtab(*command, log=log)
        try:
            waited(lambda: "1 cells on 1P_1D" in log.read_text(), process, PER_CELL_S)
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
        finally:
            ended(process)
        assert f"broken off; finished cells are in {state}: the same command goes on from there" in log.read_text()
        assert "Traceback" not in log.read_text()
        assert json.loads(state.read_text())["seed"] == 0
        assert trimtab(*command, "--seed", 1, log=log).wait(60) == 2
        assert "was measured otherwise: seed was 0, is 1" in log.read_text()
