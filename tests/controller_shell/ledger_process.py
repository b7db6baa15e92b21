"""A control process without HTTP, to be killed: `wall_s report` on each line of standard input, an answer for each.

    python ledger_process.py STATE_DIR FLUSH_EVERY_REPORTS

Reports are folded and ticks made as in production, and a thread flushes what the loop handed over, so that a kill may
fall into the middle of a transaction.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from controller.config import ControlConfig
from controller.loop import ControlLoop
from controller.store import Store
from router.wire import report_from_json
from slos.objective import Match, Signal, Slo

SLOS = (Slo("later-ttft", Signal.TTFT, 0.99, 2.0, Match(turn_min=2)), Slo("ok", Signal.SUCCESS, 0.999, None))


def main() -> None:
    folder, every = Path(sys.argv[1]), int(sys.argv[2])
    at_s = float(sys.stdin.readline())
    wall = [at_s]
    store = Store(folder)
    loop = ControlLoop(
        ControlConfig(folder, SLOS, law=None),
        store,
        store.restore(SLOS),
        monotonic=lambda: wall[0],
        wall=lambda: wall[0],
    )
    due, over = threading.Event(), threading.Event()

    def flush() -> None:
        while not over.is_set():
            due.wait()
            due.clear()
            store.flush(wall[0])

    thread = threading.Thread(target=flush, daemon=True)
    thread.start()
    print("ready", flush=True)
    for number, line in enumerate(sys.stdin, start=1):
        told, _, report = line.partition(" ")
        wall[0] = float(told)
        loop.accept(report_from_json(report.encode()), wall[0])
        loop.tick(wall[0])
        if number % every == 0:
            loop.save_counts()
            due.set()
        print(number, flush=True)
    over.set()
    due.set()
    thread.join()
    loop.save_counts()
    store.close(wall[0])


if __name__ == "__main__":
    main()
