"""What `trimtab simulate` prints: a table a point, or a line a point where many are swept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import isfinite

from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from slos.objective import Signal

from .experiment import Result, Stopped
from .runs import Outcome
from .score import PhaseScore
from .spread import Spread

MAX_TABLES = 4
"""With more points one table has a line for each."""
_MEANING = (
    "J: later turns that meet both SLOs, mean over phases. margin: J of the first policy − J, percentage points, "
    "paired by seed.\nall: share of seeds that hold both P99s in every phase. good/s: answers in time per second. "
    "fail: turns that failed, a seed.\n± 95 % interval over seeds (Student)."
)
_PER_PHASE = " Per phase: J · P99 TTFT of later turns / P99 TPOT in ms, mean ± · local share · share of seeds that hold"


def tables(results: Sequence[Result], command: str, commit: str) -> list[Table]:
    """One table a point, or one for all of them."""
    source = f"source: emulated · {escape(command)} · {commit}"
    if len(results) > MAX_TABLES:
        return [_sweep_table(results, source)]
    return [_point_table(result, source if result is results[-1] else "") for result in results]


def _point_table(result: Result, source: str) -> Table:
    outcome = result.outcome
    caption = f"{_MEANING}{_PER_PHASE}.\n{source}" if source else None
    table = _table(f"{_values(result)}{_title(outcome)}", caption)
    for name in ("policy", "J %", "margin", "all", "good/s", "fail"):
        table.add_column(name, justify="left" if name == "policy" else "right", no_wrap=True)
    for phase in outcome.scenario.phases:
        table.add_column(phase.label, justify="right")
    limits = {slo.signal: (slo.threshold_s or 0.0) * 1e3 for slo in outcome.scenario.slos}
    for policy in sorted(outcome.runs, key=lambda name: -outcome.attainment(name)):
        scores = [run.score for run in outcome.runs[policy]]
        phases = [
            _cell([score.phases[at] for score in scores], limits[Signal.TTFT], limits[Signal.TPOT])
            for at in range(len(outcome.scenario.phases))
        ]
        table.add_row(*_row(outcome, policy), *phases)
    return table


def _sweep_table(results: Sequence[Result], source: str) -> Table:
    paths = [path for path, _ in results[0].at]
    table = _table(f"{results[0].outcome.scenario.title}, {len(results)} points", f"{_MEANING}\n{source}")
    for name in (*paths, "policy", "J %", "margin", "all", "good/s", "fail"):
        table.add_column(name, justify="left" if name == "policy" else "right")
    for result in results:
        for number, policy in enumerate(result.outcome.runs):
            values = [value if number == 0 else "" for _, value in result.at]
            last = number == len(result.outcome.runs) - 1
            table.add_row(*values, *_row(result.outcome, policy), end_section=last)
    return table


def _table(title: str, caption: str | None) -> Table:
    return Table(title=title, caption=caption, box=box.SIMPLE_HEAD, title_justify="left", caption_justify="left")


def _title(outcome: Outcome) -> str:
    scenario = outcome.scenario
    limits = {slo.signal: (slo.threshold_s or 0.0) * 1e3 for slo in scenario.slos}
    promised = f"P99 TTFT of later turns ≤ {limits[Signal.TTFT]:g} ms, P99 TPOT ≤ {limits[Signal.TPOT]:g} ms"
    seeds = f"{len(outcome.seeds)} seed{'s' if len(outcome.seeds) > 1 else ''}"
    return f"{scenario.title}\n{scenario.profile}, {scenario.topology}, {promised}, {seeds}"


def _values(result: Result) -> str:
    return "".join(f"{path} = {value}\n" for path, value in result.at)


def _row(outcome: Outcome, policy: str) -> list[Text]:
    scores = [run.score for run in outcome.runs[policy]]
    attainment = Spread.of(score.attainment for score in scores)
    goodput = Spread.of(score.goodput_hz for score in scores)
    first = policy == outcome.hero
    return [
        Text(policy, style="bold" if first else ""),
        Text(_shown(attainment, 100, 2)),
        Text("" if first else _shown(outcome.margin(policy), 100, 2, sign="+")),
        Text(f"{outcome.holds_all(policy):.1f}"),
        Text(_shown(goodput, 1, 2)),
        Text(f"{sum(score.failures for score in scores) / len(scores):.1f}"),
    ]


def _cell(scores: list[PhaseScore], ttft_slo_ms: float, tpot_slo_ms: float) -> Text:
    ttft, tpot = Spread.of(s.p99_ttft_ms for s in scores), Spread.of(s.p99_tpot_ms for s in scores)
    attainment, share = Spread.of(s.attainment for s in scores), Spread.of(s.local_share for s in scores)
    holds = sum(s.hold for s in scores) / len(scores)
    local = "–" if share is None else f"{100 * share.mean:.0f} %"
    cell = Text(f"{_shown(attainment, 100, 2)} %\n", justify="right")
    for value, limit, digits, end in ((ttft, ttft_slo_ms, 0, " / "), (tpot, tpot_slo_ms, 1, "\n")):
        # No spread: a seed whose P99 is endless, or no sample at all.
        endless = any(s.p99_ttft_ms is not None and not isfinite(s.p99_ttft_ms) for s in scores)
        shown = _shown(value, 1, digits) if value is not None else ("∞" if endless else "–")
        inside = value.mean <= limit if value is not None else not endless
        cell.append(shown, style="green" if inside else "red").append(end)
    return cell.append(f"local {local} · {holds:.1f}")


def _shown(spread: Spread | None, factor: float, digits: int, sign: str = "") -> str:
    if spread is None:
        return "–"
    width = f" ±{spread.half_width * factor:.{digits}f}" if isfinite(spread.half_width) else ""
    return f"{spread.mean * factor:{sign}.{digits}f}{width}"


def stopped_text(stopped: Stopped) -> str:
    """What was done when the user stopped it."""
    counts = Counter(run.policy for _, run in stopped.done)
    listed = ", ".join(f"{policy} {count}" for policy, count in counts.items())
    done = f"{len(stopped.done)} of {stopped.total} runs were done"
    return f"stopped: {done}{f' ({listed})' if listed else ''}; nothing was written"
