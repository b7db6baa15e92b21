"""The report: one HTML document with nothing from elsewhere."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from importlib.resources import files

from . import draw
from .document import Provenance
from .target import Chapter, Finding, Verdict

E = html.escape


def page(chapters: Mapping[str, Chapter], about: Provenance) -> str:
    """The document. Raises PlotUnavailable without matplotlib."""
    style = (files("trimtab.reproduce") / "report.css").read_text(encoding="utf-8")
    links = "".join(f'<a href="#{name}">{E(name)}</a>' for name in chapters)
    body = "".join(_chapter(name, chapter) for name, chapter in chapters.items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Trimtab reproduces the PPD paper</title><style>{style}</style></head><body><header>"
        "<h1>The PPD paper from virtual time</h1>"
        "<p>“Not All Prefills Are Equal: PPD Disaggregation for Multi-turn LLM Serving”, figure by "
        "figure: what the paper says, "
        "what its published measurements say, and what Trimtab's simulator comes to. What misses "
        "says why; no constant, "
        "scenario or seed was set to meet a figure here.</p>"
        f"{_totals(chapters)}{_key()}<nav>{links}</nav></header>{body}"
        f"<footer>{_about(about)}</footer></body></html>\n"
    )


def _totals(chapters: Mapping[str, Chapter]) -> str:
    verdicts = [finding.verdict for chapter in chapters.values() for finding in chapter.findings]
    parts = [f'<b class="{v.value}">{verdicts.count(v)}</b> {v.value}' for v in Verdict]
    return f'<p class="totals">{" · ".join(parts)} (no limit, or nothing to hold it against)</p>'


def _key() -> str:
    return (
        '<p class="key"><b>Error</b>: of Trimtab against the measured value where there is one, else against the '
        "paper's; relative for sizes, in points (pp) for shares and changes. In plots: dots on lines are Trimtab's, "
        "hollow circles were measured, diamonds are the paper's.</p>"
    )


def _chapter(name: str, chapter: Chapter) -> str:
    return (
        f'<section id="{E(name)}"><h2>{E(chapter.title)}</h2><p class="how">{E(chapter.how)}</p>'
        f"{_panels(chapter)}{_table(chapter.findings)}</section>"
    )


def _panels(chapter: Chapter) -> str:
    if not chapter.panels:
        return ""
    labels = [[series.label for series in panel.series] for panel in chapter.panels]
    longest = max(len(one) for one in labels)
    shared = any(all(set(one) <= set(top) for one in labels) for top in labels if len(top) == longest)
    figures = []
    for panel in chapter.panels:
        image = base64.b64encode(draw.svg(panel).encode()).decode()
        caption = "" if shared else f'<figcaption class="legend">{draw.legend([panel])}</figcaption>'
        figures.append(
            f'<figure><img alt="{E(panel.title)}" src="data:image/svg+xml;base64,{image}">{caption}</figure>'
        )
    top = f'<div class="legend">{draw.legend(chapter.panels)}</div>' if shared else ""
    return f'{top}<div class="panels columns-{chapter.columns}">{"".join(figures)}</div>'


def _table(findings: Sequence[Finding]) -> str:
    if not findings:
        return '<p class="none">Nothing to compare: no measured points were given.</p>'
    notes: list[str] = []
    lines = []
    for found in findings:
        target, unit = found.target, found.target.unit
        mark = ""
        if target.why:
            if target.why not in notes:
                notes.append(target.why)
            mark = f"<sup>{notes.index(target.why) + 1}</sup>"
        ours = unit.text(found.trimtab)
        if found.interval is not None:
            ours += f" <small>{unit.text(found.interval[0])}–{unit.text(found.interval[1])}</small>"
        cells = (
            unit.text(target.paper),
            unit.text(found.measured),
            f"<b>{ours}</b>",
            unit.error_text(found.error),
            E(found.bound_text()),
        )
        verdict = found.verdict
        shown = "" if verdict is Verdict.SHOWN else verdict.value
        values = "".join(f"<td class=n>{cell}</td>" for cell in cells)
        lines.append(
            f'<tr class="{verdict.value}"><td>{E(target.what)}{mark}</td><td>{E(target.place)}</td>'
            f"{values}<td>{shown}</td></tr>"
        )
    listed = "".join(f"<li>{E(note)}.</li>" for note in notes)
    return (
        '<div class="wide"><table><thead><tr><th>what</th><th>where</th><th class=n>paper</th><th class=n>measured</th>'
        "<th class=n>Trimtab</th><th class=n>error</th><th class=n>held to</th><th></th></tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>" + (f"<ol>{listed}</ol>" if listed else "")
    )


def _about(about: Provenance) -> str:
    runs = ", ".join(f"{name} {count:,}" for name, count in about.runs.items())
    versions = ", ".join(f"{name} {version}" for name, version in about.versions.items())
    lines = (
        f"source: {about.source} · {about.command} · {about.commit} · seed {about.seed}",
        f"{versions} · {about.machine} · {about.took_s:,.0f} s",
        f"runs: {runs}",
        f"measured: {about.measured}",
    )
    return "".join(f"<p>{E(line)}</p>" for line in lines)
