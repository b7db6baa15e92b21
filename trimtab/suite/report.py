"""The suite's result for people: one Markdown page, losses as plain as wins, and a picture a scenario."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from dashboards.scenario_plot import draw

from ..picture import as_view
from ..spread import Spread
from .play import Played
from .policies import CONSTANT, CONTROLLER, PRICES, STARTS, STATIC
from .split import Split
from .verdicts import Verdict, verdicts

PAGE = "README.md"


def write_report(found: Sequence[Played], split: Split, command: str, commit: str, folder: Path) -> None:
    """The page and its pictures. Raises PlotUnavailable without matplotlib."""
    (folder / PAGE).write_text(page(found, split, command, commit), encoding="utf-8")
    for played in found:
        view = as_view(played.outcome, command, commit, drawn(played))
        draw(view, folder / f"{played.entry.name}.png")


def drawn(played: Played) -> tuple[str, ...]:
    """The controller, the constant that is hard to beat, and the fixed rule that did best."""
    return tuple(dict.fromkeys((CONTROLLER, CONSTANT, played.best_of(played.fixed))))


def page(found: Sequence[Played], split: Split, command: str, commit: str) -> str:
    """The page as Markdown."""
    judged = verdicts(found, split)
    lines = ["# The scenario suite", "", f"source: emulated · `{command}` · {commit}", ""]
    lines += [
        "J is the share of later turns that meet both objectives, mean over the phases and the seeds. Margins are",
        "controller − rival in percentage points, paired by seed, ± 95 % interval.",
        "",
        *_verdict_lines(judged),
        *_overview(found, split),
    ]
    for played in found:
        lines += _scenario(played, split)
    return "\n".join(lines).rstrip() + "\n"


def _verdict_lines(judged: Sequence[Verdict]) -> Iterator[str]:
    for kind, title in (("must", "Musts"), ("target", "Targets")):
        asked = [verdict for verdict in judged if verdict.kind == kind]
        met = sum(verdict.met is True for verdict in asked)
        unknown = sum(verdict.met is None for verdict in asked)
        yield f"## {title}: {met} of {len(asked)} met" + (f", {unknown} unknown" if unknown else "")
        yield ""
        missed = [verdict for verdict in asked if verdict.met is False]
        if missed:
            yield "Not met:"
            yield ""
            yield from (f"- {_said(verdict)}" for verdict in missed)
            yield ""


def _said(verdict: Verdict) -> str:
    where = f"`{verdict.scenario}`: " if verdict.scenario else ""
    rival = f" `{verdict.against}`" if verdict.against else ""
    if verdict.against is not None:
        figure = f"{100 * (verdict.figure or 0):+.2f} points, limit {100 * verdict.limit:+.1f}"
        return f"{where}{verdict.demand}{rival}: {figure}{'' if verdict.sure is not None else ' (one seed)'}"
    figure = "–" if verdict.figure is None else f"{verdict.figure:.3g}"
    return f"{where}{verdict.demand}: {figure}, limit {verdict.limit:g}"


def _overview(found: Sequence[Played], split: Split) -> Iterator[str]:
    yield "## All scenarios"
    yield ""
    yield (
        "| scenario | sided | use | J % | − `price_0.4` | − best fixed rule | − `paper_table` | oracle % | recovered "
        "| holds all | settle, ticks | sd ln p | reversals/h |"
    )
    yield "|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    for played in found:
        best = played.best_of(played.fixed)
        oracle, recovery = played.oracle, played.gap_recovery
        own = [measures for (policy, _), measures in played.measures.items() if policy == CONTROLLER]
        settled = [each.ticks for measures in own for each in measures.settled]
        cells = [
            f"[{played.entry.name}](#{played.entry.name})",
            played.entry.sided.value,
            split.use_of(played.entry.name).replace("_", " "),
            f"{100 * played.outcome.attainment(CONTROLLER):.2f}",
            _points(played.margin(CONTROLLER, CONSTANT)),
            f"{_points(played.margin(CONTROLLER, best))} `{best}`",
            _points(played.margin(CONTROLLER, STATIC)),
            "" if oracle is None else f"{100 * oracle.attainment:.2f}",
            "" if recovery is None else f"{100 * recovery:.0f} %",
            f"{played.outcome.holds_all(CONTROLLER):.2f}",
            f"{fmean(settled):.1f}" if settled else "",
            f"{fmean(measures.sd_ln_p for measures in own):.2f}",
            f"{fmean(measures.reversals_per_h for measures in own):.0f}",
        ]
        yield f"| {' | '.join(cells)} |"
    yield ""


def _scenario(played: Played, split: Split) -> Iterator[str]:
    scenario = played.entry.scenario
    yield f"## {played.entry.name}"
    yield ""
    yield f"{scenario.title}: {played.entry.about}. {scenario.topology}, `{scenario.profile}`."
    yield ""
    yield f"![{scenario.title}]({played.entry.name}.png)"
    yield ""
    yield f"| policy | seeds | J % | controller − policy | all | {' | '.join(p.label for p in scenario.phases)} |"
    yield "|---|--:|--:|--:|--:|" + "--:|" * len(scenario.phases)
    shown = [CONTROLLER, *STARTS, *PRICES, *played.cast.rules, played.best_of(played.cast.hindsight)]
    ranked = sorted(dict.fromkeys(shown), key=lambda policy: -played.outcome.attainment(policy))
    called = {policy: name for name, policy in played.by_name.items() if name != policy}
    for policy in ranked:
        runs = played.outcome.runs[policy]
        phases = []
        for at in range(len(scenario.phases)):
            known = [a for run in runs if (a := run.score.phases[at].attainment) is not None]
            hold = fmean(run.score.phases[at].hold for run in runs)
            phases.append(f"{100 * fmean(known):.2f} · {hold:.1f}" if known else "")
        name = f"`{policy}`" + (f" ({called[policy]})" if policy in called else "")
        margin = "" if policy == CONTROLLER else _points(played.margin(CONTROLLER, policy))
        attained, holds = played.outcome.attainment(policy), played.outcome.holds_all(policy)
        yield f"| {name} | {len(runs)} | {100 * attained:.2f} | {margin} | {holds:.2f} | {' | '.join(phases)} |"
    yield ""
    yield "Per phase: J % · share of seeds that hold both objectives."
    yield ""
    oracle = played.oracle
    if oracle is not None:
        best = ", ".join(f"`{phase.policy}` {100 * phase.attainment:.2f}" for phase in oracle.phases)
        yield f"Best constant by phase: {best}."
        yield ""


def _points(margin: Spread) -> str:
    width = "" if margin.half_width != margin.half_width else f" ± {100 * margin.half_width:.2f}"
    return f"{100 * margin.mean:+.2f}{width}".replace("-", "−")
