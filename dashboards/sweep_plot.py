"""A sweep picture: attainment, and the P99s of the worst phase, over the values that were swept.

One swept path: a line a policy over its values, in three panels. Two or more: a heat map of attainment a policy,
the last path across, all others down. The views are plain data; `None` is a gap. Left out: more than one number
in a cell, and interpolation between values.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .scenario_plot import EDGE, GREY, HERO, INK, NOTE_LINE, OTHERS, TITLE_LINE, WIDTH, paint

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEFT, RIGHT, PANEL, GAP, CELL, NAMES = 0.8, 0.35, 1.9, 0.62, 0.36, 0.32
COLORS = ("#b2182b", "#ef8a62", "#fddbc7", "#f7f7f7", "#d1e5f0", "#67a9cf", "#2166ac")
"""From all turns late to all in time: told apart with any colour vision."""
LOG_FROM = 8.0
"""A P99 axis is logarithmic where its values span so many times."""


@dataclass(frozen=True, slots=True)
class SweptAxis:
    """A path of the scenario file and its values as written."""

    path: str
    values: Sequence[str]


@dataclass(frozen=True, slots=True)
class Swept:
    """One policy. Columns are as long as there are points, the last axis running fastest."""

    policy: str
    attainment: Sequence[float | None]  # 0..1
    half_width: Sequence[float | None]  # of its 95 % interval; None where it is not known
    p99_ttft_ms: Sequence[float | None]  # of the worst phase
    p99_tpot_ms: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class SweepView:
    """All that the picture shows. An SLO that was itself swept is None."""

    title: str
    axes: Sequence[SweptAxis]
    policies: Sequence[Swept]
    ttft_slo_ms: float | None
    tpot_slo_ms: float | None
    provenance: str


def draw_sweep(view: SweepView, path: Path) -> None:
    """Write the picture to `path`, PNG or SVG by its suffix. Raises as `scenario_plot.draw` does."""
    compose = _lines if len(view.axes) == 1 else _maps
    paint(path, view.title, view.provenance, lambda figure: compose(figure, view))


def _lines(figure: Figure, view: SweepView) -> None:
    panels = (
        ("Attainment", "%, later turns that met both SLOs, mean over phases and seeds, 95 % interval", None),
        ("P99 TTFT of later turns", "ms, worst phase", view.ttft_slo_ms),
        ("P99 TPOT of all turns", "ms, worst phase", view.tpot_slo_ms),
    )
    title, provenance = textwrap.wrap(view.title, 68), textwrap.wrap(view.provenance, 125)
    legend_rows = -(-len(view.policies) // 4)
    top = EDGE + TITLE_LINE * len(title) + 0.26 * legend_rows + 0.1
    height = top + len(panels) * (PANEL + GAP) + 0.2 + NOTE_LINE * len(provenance) + EDGE
    figure.set_size_inches(WIDTH, height)
    _write(figure, height, title, provenance)
    positions, ticks = _positions(view.axes[0].values)
    for number, (name, note, slo) in enumerate(panels):
        above = top + number * (PANEL + GAP) + 0.34
        axes = figure.add_axes(
            (LEFT / WIDTH, 1 - (above + PANEL) / height, (WIDTH - LEFT - RIGHT) / WIDTH, PANEL / height)
        )
        _dress(axes, name, note)
        shown: list[float] = []
        for at, policy in enumerate(view.policies):
            columns = (policy.attainment, policy.p99_ttft_ms, policy.p99_tpot_ms)
            factor = 100.0 if number == 0 else 1.0
            values = [nan if value is None or value == inf else factor * value for value in columns[number]]
            shown.extend(value for value in values if not isnan(value))
            axes.plot(positions, values, label=policy.policy, **_looks(at))
            if number == 0:
                widths = [0.0 if width is None or isnan(width) else 100 * width for width in policy.half_width]
                low = [value - width for value, width in zip(values, widths, strict=True)]
                high = [min(value + width, 100.0) for value, width in zip(values, widths, strict=True)]
                axes.fill_between(positions, low, high, color=_looks(at)["color"], alpha=0.12, lw=0)
        if slo is not None:
            axes.axhline(slo, color=INK, lw=1.2, ls=(0, (6, 3)))
            axes.annotate("SLO", (1, slo), (4, 0), xycoords=("axes fraction", "data"), va="center", size=9, **_NEAR)
        _scale(axes, number, shown)
        axes.set_xticks(positions, ticks)
        if number == len(panels) - 1:
            axes.set_xlabel(view.axes[0].path, color=GREY, size=9)
        if number == 0:
            anchor = (0.0, 1.0 + (0.36 + 0.24 * legend_rows) / PANEL)
            axes.legend(loc="upper left", bbox_to_anchor=anchor, ncols=4, frameon=False, borderaxespad=0, fontsize=9)


def _maps(figure: Figure, view: SweepView) -> None:
    across, down = view.axes[-1], _rows(view.axes[:-1])
    title, provenance = textwrap.wrap(view.title, 68), textwrap.wrap(view.provenance, 125)
    left = LEFT + 0.075 * max(len(row) for row in down)
    each = NAMES + CELL * len(down) + 0.62
    top = EDGE + TITLE_LINE * len(title) + 0.15
    height = top + each * -(-len(view.policies) // 2) + 0.3 + NOTE_LINE * len(provenance) + EDGE
    figure.set_size_inches(WIDTH, height)
    _write(figure, height, title, provenance)
    from matplotlib.colors import LinearSegmentedColormap

    colors = LinearSegmentedColormap.from_list("attainment", COLORS)
    width = (WIDTH - left - RIGHT - 0.3) / 2
    known = [value for policy in view.policies for value in policy.attainment if value is not None]
    low = min(known, default=0.0)
    for number, policy in enumerate(view.policies):
        above = top + each * (number // 2) + NAMES
        begin = left + (number % 2) * (width + 0.3)
        axes = figure.add_axes(
            (begin / WIDTH, 1 - (above + CELL * len(down)) / height, width / WIDTH, CELL * len(down) / height)
        )
        _dress(axes, policy.policy, "attainment, %")
        axes.grid(visible=False)
        columns = len(across.values)
        grid = [
            [nan if value is None else 100 * value for value in policy.attainment[at * columns : (at + 1) * columns]]
            for at in range(len(down))
        ]
        axes.imshow(grid, cmap=colors, vmin=min(100 * low, 99), vmax=100, aspect="auto")
        middle = (min(100 * low, 99) + 100) / 2
        for row, values in enumerate(grid):
            for column, value in enumerate(values):
                if not isnan(value):
                    far = abs(value - middle) > 0.32 * (100 - min(100 * low, 99))
                    color = "white" if far else INK
                    axes.text(column, row, f"{value:.1f}", ha="center", va="center", color=color, size=9)
        axes.set_xticks(range(columns), list(across.values))
        axes.set_yticks(range(len(down)), down if number % 2 == 0 else [""] * len(down))
        axes.set_xlabel(across.path, color=GREY, size=9)


_NEAR: dict[str, Any] = {"textcoords": "offset points", "annotation_clip": False}


def _dress(axes: Axes, name: str, note: str) -> None:
    axes.spines[:].set_visible(False)
    axes.set_facecolor("#f4f6f9")
    axes.tick_params(length=0, colors=GREY, labelsize=9)
    axes.grid(color="white", lw=1.1)
    axes.set_axisbelow(True)
    label = axes.annotate(name, (0, 1), (0, 6), xycoords="axes fraction", weight="bold", **_NEAR)
    axes.annotate(note, (1, 0), (7, 0), xycoords=label, va="bottom", size=9, color=GREY, **_NEAR)


def _write(figure: Figure, height: float, title: Sequence[str], provenance: Sequence[str]) -> None:
    figure.text(
        LEFT / WIDTH,
        1 - EDGE / height,
        "\n".join(title),
        va="top",
        size=15,
        weight="bold",
        linespacing=1.3,
    )
    below = (EDGE + NOTE_LINE * len(provenance)) / height
    figure.text(LEFT / WIDTH, below, "\n".join(provenance), va="top", size=8, color=GREY, linespacing=1.3)


def _scale(axes: Axes, number: int, shown: Sequence[float]) -> None:
    """Attainment ends at 100 %; a P99 that spans much is logarithmic, else it starts at 0."""
    if number == 0:
        # By the means: an interval over two or three seeds may be wider than the scale.
        room = max(100.0 - min(shown, default=0.0), 1.0)
        axes.set_ylim(max(0.0, 100.0 - 1.35 * room), 100.0 + 0.05 * room)
        return
    if shown and min(shown) > 0 and max(shown) / min(shown) > LOG_FROM:
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=8))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.tick_params(which="minor", length=0)
    else:
        axes.set_ylim(0.0, axes.get_ylim()[1])


def _looks(index: int) -> dict[str, Any]:
    if index == 0:
        return {"color": HERO, "lw": 2.6, "marker": "o", "ms": 5, "zorder": 5}
    color, dash = OTHERS[(index - 1) % len(OTHERS)]
    return {"color": color, "lw": 1.6, "marker": "o", "ms": 3.5, "ls": (0, dash) if dash else "-", "zorder": 3}


def _positions(values: Sequence[str]) -> tuple[list[float], list[str]]:
    """Along the axis by size where all values are numbers with one unit, else one after the other."""
    numbers, units = [], set()
    for value in values:
        digits = value.rstrip("/%abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
        try:
            numbers.append(float(digits))
        except ValueError:
            return [float(at) for at in range(len(values))], list(values)
        units.add(value[len(digits) :])
    if len(units) > 1:
        return [float(at) for at in range(len(values))], list(values)
    return numbers, list(values)


def _rows(axes: Sequence[SweptAxis]) -> list[str]:
    """Every combination of the values down the side, the last running fastest."""
    rows = [""]
    for axis in axes:
        short = axis.path.rsplit(".", 1)[-1]
        rows = [f"{row}, {short} {value}".removeprefix(", ") for row in rows for value in axis.values]
    return rows
