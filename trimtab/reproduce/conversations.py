"""Real conversations by stand-ins: PD, x = 1 and PPD on three P:D ratios, under two clients.

The paper's own client has at most 50 requests in flight and waits 120 s and more, so a timeout of 30 s can only be
judged afterwards, from when a turn was sent. The open loop sends at once and gives a turn up after 30 s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from emulator.workload import Mix

from ..real import AS_MEASURED_REAL, WITHOUT_PAUSE
from ..simulate import Client
from .lab import RATIOS, Lab
from .network import WILDCHAT_AT_ONCE
from .trial import Ran, Rule, Trial

DATASETS: dict[str, Mix] = {"sharegpt": WITHOUT_PAUSE, "wildchat": WILDCHAT_AT_ONCE}
MODES = ("x = 0", "x = 1", "PPD")
QPS = (1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 20.0)
"""The paper has nine levels from 1 to 20, 14 among them, and does not list them."""
QUICK_QPS = (2.0, 8.0, 14.0)
TIMEOUT_S, TIGHT_S = 30.0, 10.0
Key = tuple[str, str, float, str]
"""Data set, P:D ratio, QPS, mode."""
STANDINS = (
    "Conversations are stand-ins by published statistics, for neither sample of the paper is published. PPD: "
    "Algorithm 1 at weights (1, 1) with the tables from virtual time."
)


def datasets(lab: Lab) -> Sequence[str]:
    """Those that are run."""
    return ["wildchat"] if lab.quick else list(DATASETS)


def levels(lab: Lab) -> Sequence[float]:
    """QPS that are run."""
    return QUICK_QPS if lab.quick else QPS


def capped(lab: Lab) -> dict[Key, Ran]:
    """By the paper's client, on all data sets."""
    return lab.once(
        "capped", lambda: _run(lab, "real conversations, 50 in flight", AS_MEASURED_REAL.client, datasets(lab))
    )


def open_loop(lab: Lab) -> dict[Key, Ran]:
    """WildChat in the open loop."""
    client = Client(timeout_s=TIMEOUT_S)
    return lab.once("open loop", lambda: _run(lab, "real conversations, open loop", client, ["wildchat"]))


def _run(lab: Lab, what: str, client: Client, names: Sequence[str]) -> dict[Key, Ran]:
    conditions = replace(AS_MEASURED_REAL, client=client, limit_s=7200.0)

    def trial(key: Key) -> Trial:
        dataset, ratio, qps, mode = key
        rule = Rule(lab.table(ratio)) if mode == "PPD" else None
        return Trial(ratio, DATASETS[dataset], qps, lab.conversations, conditions, float(mode == "x = 1"), rule)

    keys = [(name, ratio, qps, mode) for name in names for ratio in RATIOS for qps in levels(lab) for mode in MODES]
    return dict(zip(keys, lab.trials(what, [trial(key) for key in keys]), strict=True))
