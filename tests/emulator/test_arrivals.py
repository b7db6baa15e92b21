"""Arrival processes have the rates, the burstiness and the shape that they are named for."""

import numpy as np
import pytest

from emulator.arrivals import Arrivals, Diurnal, FlashCrowd, Mmpp, Poisson

BURSTY = Mmpp((0.5, 6.0), (40.0, 10.0))
DAY = Diurnal(2.0, 0.8, period_s=1000.0, peak_s=250.0)
CROWD = FlashCrowd(1.0, 5.0, start_s=300.0, lasting_s=60.0)
ALL = {"poisson": Poisson(1.3), "mmpp": BURSTY, "diurnal": DAY, "flash crowd": CROWD}


def starts(process: Arrivals, end_s: float, seed: int = 1, begin_s: float = 0.0) -> np.ndarray:
    return np.array(list(process.starts(begin_s, end_s, np.random.default_rng(seed))))


def dispersion(at_s: np.ndarray, end_s: float, window_s: float) -> float:
    """Variance over mean of the counts in windows."""
    counts, _ = np.histogram(at_s, bins=np.arange(0.0, end_s + window_s / 2, window_s))
    return float(counts.var() / counts.mean())


@pytest.mark.parametrize("process", ALL.values(), ids=ALL)
def test_one_seed_gives_the_same_starts_in_order_inside_the_span(process):
    found = starts(process, 700.0, begin_s=100.0)
    assert np.array_equal(found, starts(process, 700.0, begin_s=100.0))
    assert not np.array_equal(found, starts(process, 700.0, seed=2, begin_s=100.0))
    assert np.all(np.diff(found) > 0) and found[0] >= 100.0 and found[-1] < 700.0


@pytest.mark.parametrize("process", ALL.values(), ids=ALL)
def test_a_scaled_process_brings_so_many_times_as_many(process):
    once, thrice = len(starts(process, 20_000.0)), len(starts(process.scaled(3.0), 20_000.0))
    assert thrice / once == pytest.approx(3.0, rel=0.08)
    assert process.scaled(3.0).mean_hz == pytest.approx(3.0 * process.mean_hz)


@pytest.mark.parametrize("process", [Poisson(1.3), BURSTY, DAY], ids=["poisson", "mmpp", "diurnal"])
def test_the_mean_rate_is_kept_over_a_long_time(process):
    assert len(starts(process, 100_000.0)) / 100_000.0 == pytest.approx(process.mean_hz, rel=0.05)


def test_a_poisson_process_is_as_dispersed_as_its_mean_and_its_gaps_vary_as_much_as_they_last():
    at_s = starts(Poisson(2.0), 50_000.0)
    assert dispersion(at_s, 50_000.0, 50.0) == pytest.approx(1.0, abs=0.12)
    gaps = np.diff(at_s)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.03)


def test_a_rate_of_zero_brings_nobody():
    assert len(starts(Poisson(0.0), 1e6)) == 0
    assert len(starts(Diurnal(0.0, 0.5), 1e6)) == 0


def test_a_modulated_process_is_far_more_dispersed_than_a_poisson_one_and_as_much_as_theory_says():
    found = dispersion(starts(BURSTY, 400_000.0), 400_000.0, 1000.0)
    assert found > 5.0
    assert found == pytest.approx(BURSTY.dispersion, rel=0.2)  # 400 windows: a standard error of 7 %


def test_equal_rates_in_all_states_are_a_poisson_process():
    even = Mmpp((2.0, 2.0, 2.0), (5.0, 10.0, 20.0))
    assert dispersion(starts(even, 50_000.0), 50_000.0, 50.0) == pytest.approx(1.0, abs=0.12)
    assert Mmpp((2.0, 2.0), (5.0, 9.0)).dispersion == 1.0


def test_three_states_share_the_time_by_their_stays():
    assert Mmpp((0.0, 1.0, 10.0), (60.0, 30.0, 10.0)).mean_hz == pytest.approx(1.3)
    found = starts(Mmpp((0.0, 1.0, 10.0), (60.0, 30.0, 10.0)), 300_000.0)
    assert len(found) / 300_000.0 == pytest.approx(1.3, rel=0.06)


def test_a_day_peaks_and_bottoms_out_when_it_says():
    at_s = starts(DAY, 200_000.0) % 1000.0
    counts, _ = np.histogram(at_s, bins=20, range=(0.0, 1000.0))
    rates = counts / (200 * 50.0)
    wanted = np.array([DAY.rate_hz(25.0 + 50.0 * slot) for slot in range(20)])
    assert np.abs(rates - wanted).max() < 0.12 * DAY.mean_hz
    assert rates.argmax() in (4, 5) and rates.argmin() in (14, 15)
    assert rates.max() / rates.min() == pytest.approx(1.8 / 0.2, rel=0.35)


def test_a_flash_crowd_comes_once_and_goes():
    many = [starts(CROWD, 600.0, seed) for seed in range(40)]
    at_s = np.concatenate(many)
    inside = ((at_s >= 300.0) & (at_s < 360.0)).sum() / (40 * 60.0)
    before, after = (at_s < 300.0).sum() / (40 * 300.0), (at_s >= 360.0).sum() / (40 * 240.0)
    assert inside == pytest.approx(5.0, rel=0.05)
    assert before == pytest.approx(1.0, rel=0.05) and after == pytest.approx(1.0, rel=0.05)


def test_a_flash_counts_from_the_beginning_of_its_phase():
    at_s = starts(CROWD, 1600.0, begin_s=1000.0)
    assert ((at_s >= 1300.0) & (at_s < 1360.0)).sum() > 200


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: Poisson(-1.0), "rate_hz must be 0 or more"),
        (lambda: Poisson(float("nan")), "rate_hz"),
        (lambda: Mmpp((1.0,), (1.0,)), "two or more states"),
        (lambda: Mmpp((1.0, 2.0), (1.0, 0.0)), "stays_s must be positive"),
        (lambda: Mmpp((1.0, -2.0), (1.0, 1.0)), "rates_hz"),
        (lambda: Diurnal(1.0, 1.5), "swing"),
        (lambda: Diurnal(1.0, 0.5, period_s=0.0), "period_s"),
        (lambda: FlashCrowd(1.0, 0.5), "factor"),
        (lambda: FlashCrowd(1.0, 2.0, lasting_s=0.0), "lasts a while"),
        (lambda: Mmpp((1.0, 2.0, 3.0), (1.0, 1.0, 1.0)).dispersion, "two states"),
    ],
)
def test_impossible_processes_are_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        wrong()
