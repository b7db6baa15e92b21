"""The sweep picture: the same bytes from the same views, lines for one path and maps for more."""

import warnings
from math import inf, nan
from pathlib import Path

import pytest

from dashboards.sweep_plot import SweepView, Swept, SweptAxis, draw_sweep

pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'trimtab[plots]'")

LOAD = SweptAxis("load", ["0.7", "0.85", "1"])
TOPOLOGY = SweptAxis("topology", ["1P_3D", "2P_2D"])
BUDGET = SweptAxis("phases[0].traffic[0].rate", ["1/s", "2/s"])


def view(*axes: SweptAxis, points: int, policies: int = 3) -> SweepView:
    swept = [
        Swept(
            f"policy {at}",
            [0.9 + 0.01 * at] * points,
            [0.02] * points,
            [900.0 + 500 * at] * points,
            [30.0] * points,
        )
        for at in range(policies)
    ]
    return SweepView("A sweep", axes, swept, 2000.0, 38.0, "source: emulated · command · commit · 3 seeds a point")


def drawn(found: SweepView, folder: Path, name: str = "p.svg") -> bytes:
    path = folder / name
    draw_sweep(found, path)
    return path.read_bytes()


@pytest.mark.parametrize(("axes", "points"), [((LOAD,), 3), ((TOPOLOGY, LOAD), 6), ((TOPOLOGY, BUDGET, LOAD), 12)])
def test_same_views_give_the_same_bytes(tmp_path, axes, points):
    found = view(*axes, points=points)
    assert drawn(found, tmp_path) == drawn(found, tmp_path, "again.svg")


def test_one_path_is_lines_and_two_are_a_map_a_policy(tmp_path):
    lines = drawn(view(LOAD, points=3), tmp_path).decode()
    assert "P99 TTFT" in lines and "P99 TPOT" in lines
    maps = drawn(view(TOPOLOGY, LOAD, points=6), tmp_path).decode()
    assert "P99" not in maps and all(text in maps for text in ("policy 2", "topology 1P_3D", "92.0"))


def test_odd_sweeps_still_render_without_a_warning(tmp_path):
    gaps = [Swept("only", [None, 0.5, nan], [None, nan, 0.1], [inf, 10.0, None], [None, None, None])]
    cases = [
        SweepView("Gaps " * 30, [LOAD], gaps, None, None, "x " * 200),
        SweepView("One", [SweptAxis("load", ["1"])], [Swept("a", [1.0], [None], [1.0], [1.0])], 1.0, 1.0, ""),
        SweepView(
            "Map", [TOPOLOGY, SweptAxis("a", ["1"])], [Swept("a", [1.0, None], [None] * 2, [], [])], 1.0, 1.0, ""
        ),
        SweepView("Wide", [SweptAxis("t", ["a", "b"])], [Swept("a", [1, 1], [0, 0], [1, 1e6], [1, 2])], 1.0, 1.0, ""),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for at, case in enumerate(cases):
            assert drawn(case, tmp_path, f"{at}.png")
