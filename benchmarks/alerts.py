"""How often somebody is told for nothing, how soon of an incident, how often of one, and what judging costs.

    python benchmarks/alerts.py [--days 100] [--incidents 100] [--seed 0] [--rates 2,10] [--jobs N] [--json FILE]

The ledgers, the judging and the incidents of production in virtual time, both alert families on, a P99 objective with
the default alert policy. *False alarms*: days at 0.9 % slow, where 1 % is allowed, in runs of 20 days. *Detection*: one
hour at 20, 5 and 3 % slow after two healthy hours (0.2 %), begun at a random moment; then four healthy hours.
*Cost*: one evaluation of 100 SLOs whose 28 days are full, CPU time, the median of 50.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from controller.judging import Judging
from controller.ledgers import Ledgers, SliceRow, ledger_key
from controller.rehearsal import BEGIN_S, Message, notifications, rehearse
from slos.alerts import Change
from slos.counts import Count
from slos.epoch import Epoch
from slos.objective import Signal, Slo
from slos.policy import DAY_S, Declaration
from trimtab.cores import on_cores

SLO = Slo("ttft", Signal.TTFT, 0.99, 2.0)
RUN_DAYS = 20
HEALTHY, JUST_INSIDE = 0.002, 0.009
SHARES = (0.2, 0.05, 0.03)
QUIET_S, INCIDENT_S, AFTER_S = 7_200.0, 3_600.0, 4 * 3_600.0


def quiet_days(days: int, rate_hz: float, seed: int) -> list[Message]:
    random = np.random.default_rng([seed, int(rate_hz * 10), days])
    return rehearse(SLO, days * DAY_S, rate_hz, lambda at_s: np.full(at_s.shape, JUST_INSIDE), random)


def incident(share: float, rate_hz: float, seed: int) -> tuple[float | None, int]:
    """(seconds until somebody was told, how often somebody was)."""
    random = np.random.default_rng([seed, int(rate_hz * 10), int(share * 1000)])
    begun_s = QUIET_S + random.uniform(0.0, 60.0)

    def bad(at_s: np.ndarray) -> np.ndarray:
        # A tick holds the turns of the five seconds before it.
        return np.where((at_s - 2.5 >= begun_s) & (at_s - 2.5 < begun_s + INCIDENT_S), share, HEALTHY)

    messages = rehearse(SLO, QUIET_S + INCIDENT_S + AFTER_S, rate_hz, bad, random)
    fired = [m.at_s - begun_s for m in messages if m.change is Change.FIRED and m.at_s >= begun_s]
    return (fired[0] if fired else None), notifications(messages)


def seeds(first: int, runs: int) -> range:
    return range(first, first + runs)


def cost_ms() -> float:
    """CPU time of one evaluation of 100 SLOs."""
    slos = tuple(Slo(f"slo-{n}", Signal.TTFT, 0.99, 1.0 + n) for n in range(100))
    last = int(BEGIN_S // 300.0)
    keys = [ledger_key(slo) for slo in slos]
    rows = [SliceRow(key, at, Count(600, 5)) for key in keys for at in range(last - 8_064, last)]
    ledgers = Ledgers(slos, Epoch(BEGIN_S, 0.0), rows, {slo.name: Count() for slo in slos})
    judging = Judging(Declaration(slos), ledgers, settle_s=0.0)
    spent = []
    for at in range(1, 51):
        now_s = at * 300.0  # every time a slice has closed, so that nothing can be reused
        counts = {slo.name: Count(600 * at, 5 * at) for slo in slos}
        ledgers.take(counts, now_s, BEGIN_S + now_s)
        judging.take(now_s, counts, {"m": 600 * at})
        begun_s = time.process_time()
        judging.evaluate(now_s, lambda _: "")
        spent.append(1e3 * (time.process_time() - begun_s))
    return statistics.median(spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=100)
    parser.add_argument("--incidents", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rates", default="2,10")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rates = [float(text) for text in given.rates.split(",")]
    table = Table("traffic", "slow", "what", "value")
    result: dict[str, object] = {
        "source": "emulated",
        "command": f"python benchmarks/alerts.py --days {given.days} --incidents {given.incidents} --seed {given.seed}",
        "python": platform.python_version(),
        "false_alarms": [],
        "incidents": [],
    }
    for rate in rates:
        runs = max(1, round(given.days / RUN_DAYS)) if given.days else 0
        length = min(RUN_DAYS, given.days)
        found = on_cores(partial(quiet_days, length, rate), seeds(given.seed, runs), given.jobs)
        told = [m for messages in found for m in messages if m.change is not Change.RESOLVED]
        if runs:
            a_day = len(told) / (runs * length)
            by = dict(Counter(f"{m.family.value} {m.severity}" for m in told))
            result["false_alarms"] += [{"rate_hz": rate, "days": runs * length, "a_day": a_day, "by": by}]  # type: ignore[operator]
            table.add_row(f"{rate:g}/s", "0.9 %", f"notifications a day over {runs * length} days", f"{a_day:.2f} {by}")
        for share in SHARES if given.incidents else ():
            seen = on_cores(partial(incident, share, rate), seeds(given.seed, given.incidents), given.jobs)
            after = [seconds for seconds, _ in seen if seconds is not None]
            median = statistics.median(after) if after else None
            each = Counter(number for _, number in seen)
            row = {
                "rate_hz": rate,
                "share": share,
                "incidents": len(seen),
                "detected": len(after),
                "median_s": median,
                "notifications_each": dict(each),
            }
            result["incidents"] += [row]  # type: ignore[operator]
            told_after = "never" if median is None else f"{median:.0f} s"
            table.add_row(
                f"{rate:g}/s",
                f"{share:.0%}",
                f"median of {len(seen)} until told; notifications each",
                f"{told_after}; {dict(each)}",
            )
    result["evaluation_of_100_slos_cpu_ms"] = cost_ms()
    table.add_row("", "", "CPU time to judge 100 SLOs", f"{result['evaluation_of_100_slos_cpu_ms']:.1f} ms")
    Console().print(table)
    if given.json is not None:
        given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
