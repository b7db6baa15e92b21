"""The scenario picture renders whatever the views hold, gives the same bytes, and says what it lacks."""

import importlib.util
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dashboards.scenario_plot import PhaseView, PlotUnavailable, ScenarioView, SeriesView, draw

needs_matplotlib = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib: pip install 'trimtab[plots]'"
)
PNG, SVG = b"\x89PNG\r\n\x1a\n", b"<?xml"
PHASES = (
    PhaseView("agents 0.9/s", 0.0, 240.0, 60.0),
    PhaseView("agents 0.6/s, one P out", 240.0, 480.0, 60.0),
    PhaseView("agents 0.9/s", 480.0, 720.0, 60.0),
)


def invented_series(
    policy: str,
    attainment: float,
    ttft_ms: Sequence[float],
    tpot_ms: Sequence[float],
    price: Sequence[float],
    local_share: Sequence[float],
    seed: int,
) -> SeriesView:
    """A noisy walk towards one level per phase, a sample every 5 s; no price at all if `price` is empty."""
    dice = random.Random(seed)

    def walk(levels: Sequence[float], lag_s: float, noise: float) -> list[float | None]:
        log_value, wobble, values = math.log(levels[0] * 0.7), 0.0, []
        for t_s in range(0, 720, 5):
            log_value += (math.log(levels[t_s // 240]) - log_value) * 5 / lag_s
            wobble = 0.8 * wobble + dice.gauss(0, noise)
            values.append(math.exp(log_value + wobble))
        return [None] * 3 + values[3:]

    return SeriesView(
        policy=policy,
        t_s=[float(t_s) for t_s in range(0, 720, 5)],
        p99_ttft_ms=walk(ttft_ms, 45, 0.07),
        p99_tpot_ms=walk(tpot_ms, 40, 0.035),
        price=walk(price, 30, 0.0 if min(price) == max(price) else 0.06) if price else (),
        local_share=walk(local_share, 25, 0.03) if 0 < local_share[0] < 1 else [local_share[0]] * 144,
        attainment=attainment,
    )


def invented_scenario() -> ScenarioView:
    """Twelve minutes shaped like H1; the numbers are made up."""
    return ScenarioView(
        title="One of two prefill nodes fails for four minutes",
        phases=PHASES,
        ttft_slo_ms=2000.0,
        tpot_slo_ms=38.0,
        series=[
            invented_series(
                "controller", 0.997, [950, 1300, 1000], [28, 31, 28], [0.35, 0.16, 0.4], [0.3, 0.62, 0.28], 1
            ),
            invented_series("dynamo", 0.977, [1500, 3900, 1650], [36, 32, 41], (), [0.4, 0.42, 0.4], 2),
            invented_series("x0", 0.526, [2100, 26000, 9000], [24, 23, 26], (), [0, 0, 0], 3),
            invented_series("x1", 0.568, [2900, 11000, 19000], [85, 190, 280], (), [1, 1, 1], 4),
            invented_series("price_0.4", 0.997, [1080, 1480, 1120], [27, 29, 27], [0.4] * 3, [0.33, 0.5, 0.32], 5),
        ],
        provenance="source: invented numbers · pytest tests/dashboards · no commit · seeds 1-5",
    )


def rendered(scenario: ScenarioView, path: Path) -> bytes:
    draw(scenario, path)
    return path.read_bytes()


@needs_matplotlib
def test_suffix_chooses_png_or_svg(tmp_path: Path) -> None:
    assert rendered(invented_scenario(), tmp_path / "a.png").startswith(PNG)
    assert rendered(invented_scenario(), tmp_path / "a.svg").startswith(SVG)
    assert rendered(invented_scenario(), tmp_path / "A.PNG").startswith(PNG)


def test_another_suffix_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.pdf.*\.png or \.svg"):
        draw(invented_scenario(), tmp_path / "a.pdf")
    assert list(tmp_path.iterdir()) == []


@needs_matplotlib
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_same_views_give_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    first = rendered(invented_scenario(), tmp_path / f"a.{suffix}")
    assert rendered(invented_scenario(), tmp_path / f"b.{suffix}") == first


@needs_matplotlib
def test_svg_carries_title_and_provenance_but_no_date(tmp_path: Path) -> None:
    svg = rendered(invented_scenario(), tmp_path / "a.svg").decode()
    assert invented_scenario().title in svg
    assert invented_scenario().provenance in svg
    assert "dc:date" not in svg


@needs_matplotlib
def test_settings_of_the_caller_neither_leak_in_nor_change(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    first = rendered(invented_scenario(), tmp_path / "a.png")
    with matplotlib.rc_context({"font.size": 31.0, "lines.linewidth": 9.0}):
        assert rendered(invented_scenario(), tmp_path / "b.png") == first
        assert matplotlib.rcParams["font.size"] == 31.0


@needs_matplotlib
def test_drawing_leaves_pyplot_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it would now fail
    assert rendered(invented_scenario(), tmp_path / "a.png").startswith(PNG)


def odd_scenarios() -> dict[str, ScenarioView]:
    whole = invented_scenario()
    gaps: list[float | None] = [None, 900.0, None, math.nan, math.inf, 0.0, None, 4e9, 700.0]
    gappy = SeriesView("gappy", [float(t) for t in range(9)], gaps, gaps, gaps, [None] * 9, 0.5)
    empty = SeriesView("empty", [], [], [], [], [], 0.0)
    return {
        "gaps": replace(whole, series=[gappy, whole.series[1]]),
        "only gaps": replace(whole, series=[SeriesView("mute", [0.0, 5.0], [None] * 2, [None] * 2, (), (), 1.0)]),
        "hero without samples": replace(whole, series=[empty, *whole.series]),
        "every series empty": replace(whole, series=[empty]),
        "no series": replace(whole, series=[]),
        "one phase": replace(whole, phases=PHASES[:1]),
        "no phases": replace(whole, phases=[]),
        "no phases and no series": replace(whole, phases=[], series=[]),
        "a phase of no length": replace(whole, phases=[PhaseView("now", 5.0, 5.0, 5.0)]),
        "settle longer than its phase": replace(whole, phases=[PhaseView("brief", 0.0, 30.0, 60.0), *PHASES[1:]]),
        "many phases and series": replace(
            whole,
            phases=[
                PhaseView(f"a phase with a long label, number {i}", 60.0 * i, 60.0 * i + 60, 10.0) for i in range(12)
            ],
            series=[replace(whole.series[i % 5], policy=f"policy_{i}" * (1 + i % 3)) for i in range(11)],
        ),
        "tiny SLOs": replace(whole, ttft_slo_ms=0.2, tpot_slo_ms=0.004),
        "no texts": replace(whole, title="", provenance="", phases=[replace(phase, label="") for phase in PHASES]),
        "long texts": replace(whole, title="long title " * 20, provenance="$HOME · a_{b}^c " * 30),
    }


@needs_matplotlib
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("suffix", ["png", "svg"])
@pytest.mark.parametrize("name", odd_scenarios())
def test_odd_scenarios_still_render_without_a_warning(tmp_path: Path, name: str, suffix: str) -> None:
    assert rendered(odd_scenarios()[name], tmp_path / f"a.{suffix}").startswith(PNG if suffix == "png" else SVG)


def test_column_of_another_length_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="series 'dynamo': price has 1 values for 2 times"):
        SeriesView("dynamo", [0.0, 5.0], [1.0, 2.0], [1.0, 2.0], [0.4], [], 1.0)


def test_missing_matplotlib_names_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # what a failed import looks like
    with pytest.raises(PlotUnavailable, match=r"pip install 'trimtab\[plots\]'"):
        draw(invented_scenario(), tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []
