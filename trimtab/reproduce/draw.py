"""Panels as SVG, and the legend of a group of panels as HTML.

A colour is a subject, a mark is a source: dots on a line are Trimtab's, hollow circles were measured, diamonds are the
paper's. matplotlib is an optional extra that only `svg` imports.
"""

from __future__ import annotations

import html
import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dashboards.scenario_plot import GREY, HERO, INK, OTHERS, STYLE, PlotUnavailable

from .panel import Panel, Series, Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = (HERO, *(color for color, _ in OTHERS))
SIZE = (3.7, 2.75)
"""Inches; text stays legible where a page shows it 360 px wide."""
MANY = 300
"""Points from which a series is drawn as pixels."""
FAILED = "#c62828"


def available() -> None:
    """Raises PlotUnavailable without matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise PlotUnavailable("the report needs matplotlib: pip install 'trimtab[plots]'") from error


def svg(panel: Panel) -> str:
    """One panel; the same panel and the same matplotlib give the same text. Raises PlotUnavailable."""
    available()
    from matplotlib import style
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with style.context(["default", {**STYLE, "font.size": 8.5}]):
        figure = Figure(figsize=SIZE, dpi=150, facecolor="none", layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot(facecolor="none")
        _scales(axes, panel)
        for series in panel.series:
            _draw(axes, series)
        _frame(axes, panel)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Creator": "trimtab", "Date": None, "Title": panel.title})
    return text.getvalue()


def _scales(axes: Axes, panel: Panel) -> None:
    if panel.x_log:
        axes.set_xscale("log")
    if panel.y_log:
        axes.set_yscale("log")


def _draw(axes: Axes, series: Series) -> None:
    looks = _looks(series)
    if len(series.x) >= MANY:
        looks["rasterized"] = True
    axes.plot(series.x, series.y, **looks)
    bad = [at for at, failed in enumerate(series.failed) if failed]
    if bad:
        x, y = [series.x[at] for at in bad], [series.y[at] for at in bad]
        axes.plot(x, y, ls="none", marker="x", ms=6, mew=1.6, color=FAILED, zorder=7)


def _looks(series: Series) -> dict[str, Any]:
    color = COLORS[series.color % len(COLORS)]
    # Lines that lie on each other stay visible: the later, the thinner.
    width = max(1.0, 2.4 - 0.5 * series.color) if series.line else 0
    base: dict[str, Any] = {"color": color, "lw": width, "zorder": 4}
    match series.source:
        case Source.PAPER:
            return {
                **base,
                "ls": ":",
                "lw": base["lw"] and 1.0,
                "marker": "D",
                "ms": 5,
                "mfc": "white",
                "mew": 1.3,
                "zorder": 6,
            }
        case Source.MEASURED:
            tiny = series.mark == "."
            own = {
                "marker": series.mark or "o",
                "ms": 4 if tiny else 5,
                "mfc": color if tiny else "none",
                "mew": 0 if tiny else 1,
            }
            return {
                **base,
                "ls": (0, (3, 2)),
                "lw": base["lw"] and 1.0,
                "alpha": 0.55 if tiny else 0.9,
                **own,
                "zorder": 3,
            }
    mark = series.mark or "o"
    return {**base, "marker": mark, "ms": 9 if mark == "*" else 4.2 if not series.line else 3.2, "mew": 0}


def _frame(axes: Axes, panel: Panel) -> None:
    axes.set_title(panel.title, loc="left", size=9.5, weight="bold")
    axes.set_xlabel(panel.x_label, color=GREY)
    axes.set_ylabel(panel.y_label, color=GREY)
    axes.grid(color="#e3e8ee", lw=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#b8c1cb")
    axes.tick_params(colors=GREY, length=2.5)
    if panel.x_names:
        axes.set_xticks(range(len(panel.x_names)), panel.x_names)
        axes.set_xlim(-0.4, len(panel.x_names) - 0.6)
    elif panel.x_log:
        _plain_ticks(axes, "x")
    if panel.y_log:
        _plain_ticks(axes, "y")
    else:
        _from_zero(axes, [y for series in panel.series for y in series.y])
    if panel.diagonal:
        low = max(axes.get_xlim()[0], axes.get_ylim()[0])
        high = min(axes.get_xlim()[1], axes.get_ylim()[1])
        axes.plot([low, high], [low, high], color=INK, lw=0.9, zorder=2)


def _from_zero(axes: Axes, values: Sequence[float]) -> None:
    """The axis begins at 0 unless that would leave most of the panel empty."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    if 0 <= low < 0.4 * high:
        axes.set_ylim(0, 1.08 * high)


def _plain_ticks(axes: Axes, which: str) -> None:
    """1, 2, 5, 10 … as numbers, where the axis spans little; powers of ten where it spans much."""
    from matplotlib.ticker import NullFormatter

    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = axis.get_view_interval()
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks = (1, 1.5, 2, 3, 4, 5, 7) if high / low < 6 else (1, 2, 5) if high / low < 150 else (1,)
    ticks = [n * 10.0**decade for decade in decades for n in marks if low <= n * 10.0**decade <= high]
    axis.set_ticks(ticks, [f"{tick:,g}" if tick < 1e4 else f"{tick / 1e3:,g}k" for tick in ticks])
    axis.set_minor_formatter(NullFormatter())


def legend(panels: Sequence[Panel]) -> str:
    """One entry a label, in the order met."""
    entries: dict[str, str] = {}
    for panel in panels:
        for series in panel.series:
            entries.setdefault(series.label, _swatch(series))
            if any(series.failed):
                entries["below 95 % success"] = _icon(
                    f'<path d="M8 2l8 8M16 2l-8 8" stroke="{FAILED}" stroke-width="2"/>'
                )
    return "".join(f"<span>{icon}{html.escape(label)}</span>" for label, icon in entries.items())


def _swatch(series: Series) -> str:
    color = COLORS[series.color % len(COLORS)]
    dash = {Source.PAPER: ' stroke-dasharray="1.5 2.5"', Source.MEASURED: ' stroke-dasharray="4 3"'}.get(
        series.source, ""
    )
    line = f'<path d="M1 6h22" stroke="{color}" stroke-width="1.6"{dash}/>' if series.line else ""
    if series.source is Source.PAPER:
        return _icon(f'{line}<path d="M12 2l4 4-4 4-4-4z" fill="#fff" stroke="{color}" stroke-width="1.4"/>')
    shape = {
        "s": '<rect x="9" y="3" width="6" height="6"',
        "D": '<path d="M12 2l4 4-4 4-4-4z"',
        "*": '<path d="M12 0l1.6 4.2 4.4.2-3.4 2.8 1.1 4.3L12 9.2l-3.7 2.3 1.1-4.3L6 4.4l4.4-.2z"',
    }.get(series.mark, '<circle cx="12" cy="6" r="3.2"')
    hollow = series.source is Source.MEASURED and series.mark != "."
    fill = "none" if hollow else color
    return _icon(f'{line}{shape} fill="{fill}" stroke="{color}" stroke-width="{1.2 if hollow else 0}"/>')


def _icon(content: str) -> str:
    return f'<svg width="24" height="12" viewBox="0 0 24 12" aria-hidden="true">{content}</svg>'
