"""kill -9 at any moment: no slice is lost beyond the flush interval, and no turn is counted twice or lost for good."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import IO

import pytest

from controller.ledgers import ledger_key
from controller.store import Store
from router.wire import report_to_json
from slos.counts import Count
from tests.conftest import CHECKOUT
from tests.controller_shell.ledger_process import SLOS
from tests.controller_shell.reports import report

TURNS, KILLS = 100_000, 20
TURNS_A_REPORT = 25
REPORT_S = 15.0
FLUSH_EVERY = 4
"""Reports: a minute."""
START_S = 1_796_000_000.0
SLICE_S = 300.0


class Process:
    """The process under test, killed and started again by hand."""

    def __init__(self, folder: Path, at_s: float) -> None:
        environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
        script = str(Path(__file__).with_name("ledger_process.py"))
        self._process = subprocess.Popen(
            [sys.executable, script, str(folder), str(FLUSH_EVERY)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        self._write(f"{at_s}\n")
        assert self._out.readline().strip() == "ready"

    @property
    def _out(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line)
        self._process.stdin.flush()

    def take(self, at_s: float, body: bytes) -> None:
        """Give it a report and wait for its answer."""
        self._write(f"{at_s} {body.decode()}\n")
        assert self._out.readline()

    def offer(self, at_s: float, body: bytes) -> None:
        """Give it a report; it may be dead before it has folded it."""
        self._write(f"{at_s} {body.decode()}\n")

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._close()

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(20) == 0
        self._close()

    def _close(self) -> None:
        self._process.wait(20)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


@pytest.mark.slow
def test_a_hundred_thousand_turns_and_twenty_kills_lose_no_slice_and_count_nothing_twice(tmp_path: Path) -> None:
    dice = random.Random(7)
    reports = TURNS // TURNS_A_REPORT
    killed_at = sorted(dice.sample(range(20, reports - 1), KILLS))
    boots = {"router-0": "a", "router-1": "a"}
    totals = {name: Count() for name in boots}
    truth: Counter[int] = Counter()
    bad = 0
    kills: list[int] = []
    process = Process(tmp_path, START_S)
    try:
        for name, boot in boots.items():  # what a router has counted before anybody was there belongs to no slice
            empty = {slo.name: Count() for slo in SLOS}
            process.take(START_S, report_to_json(report(0, router=name, boot=boot, counts=empty)))
        for seq in range(1, reports + 1):
            name = dice.choice(tuple(boots))
            at_s = START_S + seq * REPORT_S
            if dice.random() < 0.003:  # a router restarts: its counters begin anew
                boots[name], totals[name] = f"boot-{seq}", Count()
            slow = sum(dice.random() < 0.01 for _ in range(TURNS_A_REPORT))
            totals[name] += Count(TURNS_A_REPORT, slow)
            truth[int(at_s // SLICE_S)] += TURNS_A_REPORT
            bad += slow
            counts = {slo.name: totals[name] for slo in SLOS}
            body = report_to_json(report(seq, router=name, boot=boots[name], counts=counts))
            if seq not in killed_at:
                process.take(at_s, body)
                if dice.random() < 0.05:
                    process.take(at_s, body)  # a batch sent twice
                continue
            process.offer(at_s, body)
            time.sleep(dice.random() * 0.004)
            process.kill()
            kills.append(seq)
            process = Process(tmp_path, at_s)
            process.take(at_s, body)  # nobody acknowledged it
        last_s = START_S + (reports + 1) * REPORT_S
        for name, boot in boots.items():  # the counters of a boot that was cut off come again
            counts = {slo.name: totals[name] for slo in SLOS}
            process.take(last_s, report_to_json(report(reports + 1, router=name, boot=boot, counts=counts)))
        process.end()
    except BaseException:
        process.kill()
        raise
    assert len(kills) == KILLS
    store = Store(tmp_path)
    assert store.on_disk and not store.damage
    restored = store.restore(SLOS)
    for slo in SLOS:
        rows = store.slices([ledger_key(slo)])
        found = {row.at: row.count for row in rows}
        total = sum((count.valid for count in found.values()), 0)
        lost_boots = restored.counts[slo.name].valid - total
        assert lost_boots == 0, "the ledger and the lifetime counts are of one moment"
        # A router that restarts between a report that was not yet on disk and the kill takes its counters with it.
        assert 0 <= TURNS - total <= 2 * FLUSH_EVERY * TURNS_A_REPORT
        assert 0 <= bad - sum(count.bad for count in found.values()) <= 2 * FLUSH_EVERY * TURNS_A_REPORT
        differs = {at: truth[at] - found.get(at, Count()).valid for at in truth}
        moved = {at: turns for at, turns in differs.items() if turns}
        slices_of_kills = {int((START_S + seq * REPORT_S) // SLICE_S) + after for seq in kills for after in (-1, 0, 1)}
        assert moved.keys() <= slices_of_kills, "slices without a kill are exact"
        # What was counted since the last flush comes again with the next report, one slice later at most.
        assert all(abs(turns) <= 2 * FLUSH_EVERY * TURNS_A_REPORT for turns in moved.values())
    store.close(last_s)
