"""A scenario picture: how several policies fared through the phases of one scenario, on one time axis.

Panels from the top: P99 TTFT and P99 TPOT against their SLOs, then the price p = w_tpot / w_ttft and the
share of later turns that went local, these two only if a series has them. The first series is the one the
picture is about. The views are plain data; `None` and NaN are gaps. Same views and same matplotlib, same
bytes. Left out: computing a P99 or an attainment, and anything interactive. matplotlib is an optional extra
that only `draw` imports.
"""

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

# An axis ends at this multiple of its SLO, so that the SLO region stays readable.
TTFT_CUT, TPOT_CUT = 10.0, 4.0
# The first and the last are the range in which the controller moves the price.
PRICE_TICKS = (0.02, 0.1, 0.3, 1.0, 5.0)

# Inches. 10 in at 200 dpi is sharp at 2000 px, and 10 pt is still legible when a page shows it 1000 px wide.
WIDTH, DPI, LEFT, RIGHT, EDGE = 10.0, 200, 0.72, 0.72, 0.24
INNER = WIDTH - LEFT - RIGHT
TITLE_LINE, PHASE_LINE, NOTE_LINE, CAPTION, TIME_AXIS = 0.31, 0.19, 0.17, 0.36, 0.56

INK, GREY, HATCH, BANDS = "#1f2933", "#66717e", "#cfd6de", ("#f4f6f9", "#e8ecf2")
HERO = "#0057b8"
# Muted hues, each with a dash of its own: told apart with any colour vision, and in print.
OTHERS: tuple[tuple[str, tuple[float, ...]], ...] = (
    ("#d9822b", ()),
    ("#7a828c", (5, 1.6)),
    ("#b5679d", (4, 1.2, 1, 1.2)),
    ("#3b9c82", (1.3, 1.1)),
    ("#8a6d3b", (8, 2)),
)
STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # matplotlib brings it along, so every machine draws the same letters
    "font.size": 10,
    "text.color": INK,
    "text.parse_math": False,  # a dollar sign in a command is a dollar sign
    "hatch.linewidth": 0.8,
    "svg.hashsalt": "trimtab",
}
TIGHT = {
    "frameon": False,
    "borderpad": 0,
    "borderaxespad": 0,
    "handletextpad": 0.6,
}  # legends placed to the point


class PlotUnavailable(RuntimeError):
    """The picture needs matplotlib, which cannot be imported here; the message names the fix."""


@dataclass(frozen=True, slots=True)
class PhaseView:
    """A stretch of the scenario under one load; its first `settle_s` seconds are not judged."""

    label: str
    start_s: float
    end_s: float
    settle_s: float
    ttft_slo_ms: float | None = None  # where it is not the scenario's
    tpot_slo_ms: float | None = None


@dataclass(frozen=True, slots=True)
class SeriesView:
    """One policy's run. A column is as long as `t_s`, or empty where the policy has no such thing."""

    policy: str
    t_s: Sequence[float]
    p99_ttft_ms: Sequence[float | None]
    p99_tpot_ms: Sequence[float | None]
    price: Sequence[float | None]  # ms of TTFT per ms x sequence
    local_share: Sequence[float | None]  # of later turns, in [0, 1]
    attainment: float  # share of later turns that met both SLOs, mean over the phases, in [0, 1]

    def __post_init__(self) -> None:
        """Refuse a column of another length by name."""
        for name in ("p99_ttft_ms", "p99_tpot_ms", "price", "local_share"):
            found, wanted = len(getattr(self, name)), len(self.t_s)
            if found not in (0, wanted):
                raise ValueError(f"series {self.policy!r}: {name} has {found} values for {wanted} times")


@dataclass(frozen=True, slots=True)
class ScenarioView:
    """All that the picture shows."""

    title: str
    phases: Sequence[PhaseView]
    ttft_slo_ms: float
    tpot_slo_ms: float
    series: Sequence[SeriesView]  # the first is drawn strong, the others muted
    provenance: str  # printed at the bottom: "source: emulated · command · commit · seeds"


@dataclass(frozen=True, slots=True)
class _Panel:
    """What one panel shows and its y axis; all numbers are in the view's own units."""

    name: str
    note: str
    column: str  # field of SeriesView
    height: float
    low: float
    high: float
    log: bool
    ticks: dict[float, str]
    slo: float | None = None
    slo_label: str = ""
    slo_column: str = ""  # field of PhaseView with a phase's own
    weight: float = 1.0  # of the lines


def draw(scenario: ScenarioView, path: Path) -> None:
    """Write the picture to `path`, as PNG or SVG by its suffix.

    Raises `PlotUnavailable` without matplotlib, and `ValueError` for any other suffix.
    """
    paint(path, scenario.title, scenario.provenance, lambda figure: _compose(figure, scenario))


def paint(path: Path, title: str, provenance: str, compose: Callable[["Figure"], None]) -> None:
    """Write what `compose` puts on an empty figure, the same bytes every time. Raises as `draw` does."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("png", "svg"):
        raise ValueError(f"cannot draw {path.name!r}: its suffix must be .png or .svg")
    try:
        from matplotlib import style
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotUnavailable("drawing needs matplotlib: pip install 'trimtab[plots]'") from error

    origin = {"Software": "trimtab"} if kind == "png" else {"Creator": "trimtab", "Date": None}
    about = {"Title": title, "Description": provenance}
    with style.context(["default", STYLE]):  # the caller's matplotlibrc has no say
        figure = Figure(dpi=DPI, facecolor="white")
        FigureCanvasAgg(figure)
        compose(figure)
        figure.savefig(path, format=kind, metadata={**origin, **about})


def _compose(figure: "Figure", scenario: ScenarioView) -> None:
    """Stack title, legend, phase labels, panels, time axis and provenance; the height follows."""
    span = _time_range(scenario)
    panels = _panels(scenario)
    title = textwrap.wrap(scenario.title, 68)
    provenance = textwrap.wrap(scenario.provenance, 125)
    labels = [_fit(phase, span) for phase in scenario.phases]
    legend, legend_height = _draw_legend(figure, scenario.series)

    legend_top = EDGE + TITLE_LINE * len(title)
    body_top = legend_top + legend_height
    panels_top = body_top + PHASE_LINE * max(map(len, labels), default=0) + 0.06
    body_end = panels_top + sum(CAPTION + panel.height for panel in panels) + 0.08
    height = body_end + TIME_AXIS + NOTE_LINE * len(provenance) + EDGE
    figure.set_size_inches(WIDTH, height)

    def at(x: float, top: float) -> tuple[float, float]:
        return x / WIDTH, 1 - top / height

    def add_axes(top: float, end: float) -> "Axes":
        box = (*at(LEFT, end), INNER / WIDTH, (end - top) / height)
        axes = figure.add_axes(box, facecolor="none", xlim=span, xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0, colors=GREY, labelsize=9)
        return axes

    note: dict[str, Any] = {"size": 9, "color": GREY, "va": "top"}
    figure.text(*at(LEFT, EDGE), "\n".join(title), va="top", size=15, weight="bold", linespacing=1.3)
    if legend is not None:
        explained = "share of later turns that met both SLOs, mean over the phases:"
        figure.text(*at(LEFT, legend_top + 0.05), explained, **note)
        legend.set_bbox_to_anchor(at(LEFT, legend_top + 0.28))

    background = add_axes(body_top, body_end)  # behind all panels: one band per phase, its label on top
    for i, (phase, lines) in enumerate(zip(scenario.phases, labels, strict=True)):
        background.axvspan(phase.start_s, phase.end_s, color=BANDS[i % 2], lw=0)
        spot = ((phase.start_s + phase.end_s) / 2, 1 - 0.08 / (body_end - body_top))
        background.text(*spot, "\n".join(lines), ha="center", va="top", linespacing=1.25)
    background.set_xticks(*_time_ticks(span))
    figure.text(*at(LEFT + INNER / 2, body_end + 0.27), f"time, {_time_unit(span)[0]}", ha="center", **note)
    if any(phase.settle_s > 0 for phase in scenario.phases):
        _draw_settle_key(figure, at(LEFT + INNER, body_end + 0.29))

    for panel in panels:
        panels_top += CAPTION + panel.height
        _draw_panel(add_axes(panels_top - panel.height, panels_top), panel, scenario)
    figure.text(*at(LEFT, body_end + TIME_AXIS), "\n".join(provenance), linespacing=1.3, **{**note, "size": 8})


def _draw_panel(axes: "Axes", panel: _Panel, scenario: ScenarioView) -> None:
    axes.set_yscale("log" if panel.log else "linear")
    axes.minorticks_off()
    axes.set_ylim(panel.low, panel.high)
    axes.set_yticks(list(panel.ticks), list(panel.ticks.values()))
    axes.grid(axis="y", color="white", lw=1.1)
    axes.set_axisbelow(True)
    nearby: dict[str, Any] = {"textcoords": "offset points", "annotation_clip": False}
    name = axes.annotate(panel.name, (0, 1), (6, 5), xycoords="axes fraction", weight="bold", **nearby)
    axes.annotate(panel.note, (1, 0), (7, 0), xycoords=name, va="bottom", size=9, color=GREY, **nearby)
    for phase in scenario.phases:
        if phase.settle_s > 0:
            settled_s = min(phase.start_s + phase.settle_s, phase.end_s)
            axes.axvspan(phase.start_s, settled_s, fc="none", ec=HATCH, hatch="////", lw=0, zorder=0.6)
    if panel.slo is not None:
        for begin_s, end_s, slo in _promised(scenario, panel):
            axes.hlines(slo, begin_s, end_s, color=INK, lw=1.2, ls=(0, (6, 3)), zorder=6)
        spot, place = (1, panel.slo), ("axes fraction", "data")
        axes.annotate(panel.slo_label, spot, (6, 0), xycoords=place, va="center", weight="bold", **nearby)
    for i, series in enumerate(scenario.series):
        # An endless wait leaves the panel; it is no gap.
        values = [min(value, 100 * panel.high) for value in _values(series, panel.column)]
        if values:
            looks = _looks(i, panel.weight)
            axes.plot(series.t_s, values, **looks)
            lone = _lone(values)
            looks.update(ls="none", marker="o", ms=looks["lw"], mew=0)
            axes.plot([series.t_s[j] for j in lone], [values[j] for j in lone], **looks)


def _looks(index: int, weight: float) -> dict[str, Any]:
    """Line properties of the series at `index`: the first strong, with a white rim, the others muted."""
    from matplotlib.patheffects import Normal, Stroke

    if index == 0:
        lw = 3.0 * weight
        rim = [Stroke(linewidth=lw + 1.6, foreground="white"), Normal()]
        return {"color": HERO, "lw": lw, "zorder": 5, "path_effects": rim, "solid_joinstyle": "round"}
    color, dash = OTHERS[(index - 1) % len(OTHERS)]
    return {"color": color, "lw": 1.6 * weight, "zorder": 3, "alpha": 0.85, "ls": (0, dash) if dash else "-"}


def _draw_legend(figure: "Figure", series: Sequence[SeriesView]) -> tuple["Legend | None", float]:
    """The legend in as few rows as its width allows, yet to be placed, and its height in inches."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], **_looks(i, 1.0)) for i in range(len(series))]
    names = [f"{one.policy}  {100 * one.attainment:.1f} %" for one in series]
    looks: dict[str, Any] = {"handlelength": 2.2, "labelspacing": 0.5, "columnspacing": 1.6, **TIGHT}
    for columns in range(len(names), 0, -1):
        legend = figure.legend(handles, names, ncols=columns, loc="upper left", **looks)
        legend.get_texts()[0].set_fontweight("bold")
        extent = legend.get_window_extent()
        if extent.width <= INNER * figure.dpi or columns == 1:
            return legend, extent.height / figure.dpi + 0.46
        legend.remove()
    return None, 0.1


def _draw_settle_key(figure: "Figure", corner: tuple[float, float]) -> None:
    from matplotlib.patches import Patch

    swatch = Patch(fc=BANDS[0], ec=HATCH, hatch="//////", lw=0)
    looks: dict[str, Any] = {"fontsize": 9, "labelcolor": GREY, "handlelength": 2.0, **TIGHT}
    figure.legend([swatch], ["settling, not judged"], loc="upper right", bbox_to_anchor=corner, **looks)


def _panels(scenario: ScenarioView) -> list[_Panel]:
    """The latencies always; price and local share if any series has a value."""
    start_s, end_s = _time_range(scenario)
    known: dict[str, list[float]] = {}  # the values that the picture will show
    for column in ("p99_ttft_ms", "p99_tpot_ms", "price", "local_share"):
        points = [zip(one.t_s, _values(one, column), strict=False) for one in scenario.series]
        shown = [v for each in points for t_s, v in each if start_s <= t_s <= end_s]
        known[column] = [v for v in shown if not math.isnan(v)]
    ttft, tpot = (scenario.ttft_slo_ms, TTFT_CUT), (scenario.tpot_slo_ms, TPOT_CUT)
    known["p99_ttft_ms"] += [phase.ttft_slo_ms for phase in scenario.phases if phase.ttft_slo_ms is not None]
    known["p99_tpot_ms"] += [phase.tpot_slo_ms for phase in scenario.phases if phase.tpot_slo_ms is not None]
    panels = [
        _latency("P99 TTFT of later turns", "p99_ttft_ms", 2.3, *ttft, known["p99_ttft_ms"]),
        _latency("P99 TPOT of all turns", "p99_tpot_ms", 1.8, *tpot, known["p99_tpot_ms"]),
    ]
    if known["price"]:
        ticks = {tick: f"{tick:g}" for tick in PRICE_TICKS}
        note = "p = w_tpot / w_ttft, log scale: higher spares TPOT, lower spares TTFT"
        ends = (PRICE_TICKS[0], PRICE_TICKS[-1])
        panels.append(_Panel("Price", note, "price", 1.0, *ends, True, ticks, weight=0.8))
    if known["local_share"]:
        ticks = {0.0: "0 %", 0.5: "50 %", 1.0: "100 %"}
        note = "of later turns: append-prefill on D"
        panels.append(_Panel("Local share", note, "local_share", 0.6, -0.06, 1.06, False, ticks, weight=0.6))
    return panels


def _latency(name: str, column: str, height: float, slo_ms: float, cut: float, known: Sequence[float]) -> _Panel:
    """The axis ends at the largest value, but within 1.5 to `cut` times the SLO; log if it spans much."""
    unit, unit_ms = ("s", 1000.0) if slo_ms >= 1000 else ("ms", 1.0)
    largest = max(known, default=0.0)
    high = min(max(1.5 * slo_ms, 1.08 * largest), cut * slo_ms)
    low = max(min((value for value in known if value > 0), default=slo_ms), slo_ms / 20)
    log = high / low > 4
    low = 0.85 * low if log else 0.0
    ticks = _log_ticks(low, high) if log else _linear_ticks(high)
    cut_off = f", axis ends at {high / unit_ms:g} {unit}" if largest > high else ""
    return _Panel(
        name=name,
        note=f"{unit}{', log scale' if log else ''}{cut_off}",
        column=column,
        height=height,
        low=low,
        high=high,
        log=log,
        ticks={tick: f"{tick / unit_ms:g}" for tick in ticks},
        slo=slo_ms,
        slo_label=f"SLO\n{slo_ms / unit_ms:g} {unit}",
        slo_column=column.replace("p99_", "").replace("_ms", "_slo_ms"),
    )


def _promised(scenario: ScenarioView, panel: _Panel) -> list[tuple[float, float, float]]:
    """(begin, end, SLO) of stretches under one promise; one over the whole axis where it never changes."""
    assert panel.slo is not None
    own = [(phase, getattr(phase, panel.slo_column)) for phase in scenario.phases]
    if all(slo is None for _, slo in own):
        return [(*_time_range(scenario), panel.slo)]
    return [(phase.start_s, phase.end_s, panel.slo if slo is None else slo) for phase, slo in own]


def _values(series: SeriesView, column: str) -> list[float]:
    return [math.nan if value is None else float(value) for value in getattr(series, column)]


def _lone(values: Sequence[float]) -> list[int]:
    """Points between two gaps: a line alone would not show them."""
    gap = [True, *map(math.isnan, values), True]
    return [i for i in range(len(values)) if gap[i] and not gap[i + 1] and gap[i + 2]]


def _log_ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks = (1, 2, 3, 5) if high / low < 12 else (1, 2, 5) if high / low < 1000 else (1,)
    return [tick for decade in decades for n in marks if low <= (tick := n * 10.0**decade) <= high]


def _linear_ticks(high: float) -> list[float]:
    decade = 10.0 ** math.floor(math.log10(high))
    step = next(n * decade for n in (0.2, 0.25, 0.5, 1.0, 2.0, 2.5) if high / (n * decade) <= 5)
    return [step * i for i in range(math.floor(high / step + 1e-9) + 1)]


def _time_range(scenario: ScenarioView) -> tuple[float, float]:
    """The phases' extent, or the data's if there are none; never empty."""
    times = [t for phase in scenario.phases for t in (phase.start_s, phase.end_s)]
    times = times or [t for series in scenario.series for t in series.t_s] or [0.0]
    return min(times), max(*times, min(times) + 1.0)


def _time_unit(span: tuple[float, float]) -> tuple[str, float]:
    """The unit's name and its length in s."""
    length_s = span[1] - span[0]
    return ("s", 1.0) if length_s < 180 else ("min", 60.0) if length_s < 10800 else ("h", 3600.0)


def _time_ticks(span: tuple[float, float]) -> tuple[list[float], list[str]]:
    """Round times, at most about a dozen, and what to write at them."""
    steps_s = (
        0.1,
        0.2,
        0.5,
        1,
        2,
        5,
        10,
        15,
        30,
        60,
        120,
        300,
        600,
        1200,
        1800,
        3600,
        7200,
        14400,
        43200,
        86400,
    )
    longest_s = span[1] - span[0]
    step_s = next((s for s in steps_s if longest_s / s <= 12), 86400 * math.ceil(longest_s / 12 / 86400))
    ticks = [step_s * i for i in range(math.ceil(span[0] / step_s), math.floor(span[1] / step_s + 1e-9) + 1)]
    return ticks, [f"{tick / _time_unit(span)[1]:g}" for tick in ticks]


def _fit(phase: PhaseView, span: tuple[float, float]) -> list[str]:
    """The label in at most two even lines of 10 pt within its band; what does not fit ends in an ellipsis."""
    width = INNER * (phase.end_s - phase.start_s) / (span[1] - span[0])
    room = int((width - 0.06) / 0.074)
    if room < 2:
        return []
    lines = textwrap.wrap(phase.label, room, max_lines=2, placeholder="…", break_on_hyphens=False)
    if len(lines) == 2 and not lines[-1].endswith("…"):
        longest = max(map(len, phase.label.split()))
        evener = (textwrap.wrap(phase.label, n, break_on_hyphens=False) for n in range(longest, room))
        lines = next((found for found in evener if len(found) == 2), lines)
    return lines
