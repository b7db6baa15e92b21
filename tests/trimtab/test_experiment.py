"""Experiments: the same file gives the same bytes, wherever and on however many cores it runs."""

import json
import threading
from math import inf
from pathlib import Path

import pytest

from tests.trimtab.test_scenario_file import HEAD, PHASES
from trimtab import experiment, runs
from trimtab.experiment import Result, Stopped, as_json, play
from trimtab.report import MAX_TABLES, stopped_text, tables
from trimtab.runs import BACKENDS, SLICE, BackendMissing, Job, Outcome, Run, played, run_one
from trimtab.score import PhaseScore, RunScore
from trimtab.spread import Spread
from trimtab.sweep import Point, load_points

MORE = "policies: [controller, x1]\nseeds: 2\n"


@pytest.fixture(scope="module")
def points(tmp_path_factory) -> tuple[Point, ...]:
    path = tmp_path_factory.mktemp("scenario") / "s.yaml"
    path.write_text(HEAD + PHASES + MORE)
    return load_points(path, sweeps=["load=0.7,1"])


@pytest.fixture(scope="module")
def results(points) -> tuple[Result, ...]:
    return play(points, 1, lambda done, total: None, ticks=True)


def test_every_policy_runs_on_every_seed_at_every_point(results):
    assert [result.at for result in results] == [(("load", "0.7"),), (("load", "1"),)]
    for result in results:
        assert {name: [run.seed for run in runs] for name, runs in result.outcome.runs.items()} == {
            "controller": [0, 1],
            "x1": [0, 1],
        }


def test_a_run_of_an_experiment_is_the_run_of_its_job(results):
    outcome = results[1].outcome
    assert outcome.runs["x1"][1] == run_one(Job(outcome.scenario, "x1", 1))
    assert outcome.runs["x1"][0] == run_one(Job(outcome.scenario, "x1", 0, keep_ticks=True))


def test_the_same_file_gives_the_same_bytes_on_one_core_and_on_two(points, results):
    again = play(points, 2, lambda done, total: None)
    assert as_json(again, "c", "commit x") == as_json(results, "c", "commit x")


def test_the_json_says_where_it_comes_from_and_what_ran(results):
    document = json.loads(as_json(results, "the command", "commit abc"))
    provenance = document["provenance"]
    assert document["format"] == 1 and provenance["source"] == "emulated"
    assert (provenance["command"], provenance["commit"], provenance["seeds"]) == ("the command", "abc", [0, 1])
    assert set(provenance["versions"]) == {"trimtab", "python", "numpy", "scipy", "joblib"}
    point = document["points"][1]
    assert point["at"] == {"load": "1"} and point["scenario"]["topology"] == "2P_2D"
    assert point["scenario"]["slos"][1]["threshold_s"] == 0.038
    assert point["scenario"]["phases"][0]["traffic"] == [["agent", 0.9]]


def test_the_json_holds_the_scores(results):
    outcome = results[1].outcome
    x1 = json.loads(as_json(results, "", ""))["points"][1]["policies"]["x1"]
    by_seed = outcome.attainments("x1")
    assert x1["attainment_by_seed"] == [round(value, 6) for value in by_seed]
    spread = Spread.of(by_seed)
    assert spread is not None
    assert x1["attainment"] == spread.as_json(6)
    scores = [run.score.phases[0] for run in outcome.runs["x1"]]
    assert x1["phases"][0]["later_turns"] == sum(score.later_turns for score in scores)
    assert x1["phases"][0]["local_share"]["mean"] == 1.0
    assert x1["goodput_hz"]["mean"] == pytest.approx(sum(score.goodput_hz for score in scores) / 2, abs=1e-6)


def scored(policy: str, seed: int, p99_ttft_ms: float | None) -> Run:
    score = PhaseScore(p99_ttft_ms, 30.0, True, 0.9, 100, 0.5, 2.0, 3)
    return Run(policy, seed, RunScore((score,)), (), ())


def test_the_json_is_json_also_for_turns_that_never_ended(points):
    scenario = points[0].experiment.scenario
    runs = {"x0": (scored("x0", 0, inf), scored("x0", 1, 100.0)), "x1": (scored("x1", 0, None), scored("x1", 1, None))}
    found = [Result((), Outcome(scenario, (0, 1), runs))]
    text = as_json(found, "", "")
    assert "Infinity" not in text and "NaN" not in text
    policies = json.loads(text)["points"][0]["policies"]
    assert policies["x0"]["phases"][0]["p99_ttft_ms"] is policies["x1"]["phases"][0]["p99_ttft_ms"] is None
    assert policies["x0"]["failures_by_seed"] == [3, 3] and policies["x0"]["phases"][0]["failures"] == 6
    assert policies["x1"]["margin_of_first"] == {"mean": 0.0, "half_width_95": 0.0}


def test_a_few_points_are_a_table_each_and_many_are_one(results):
    assert [len(tables(results * times, "c", "commit x")) for times in (1, 2, 3)] == [2, MAX_TABLES, 1]
    (table,) = tables(results * 3, "c", "commit x")
    assert [column.header for column in table.columns][:2] == ["load", "policy"]
    assert table.row_count == 12


def test_whoever_stops_it_is_told_what_was_done(points, monkeypatch):
    def stopping(jobs, workers, backend):
        yield run_one(jobs[0])
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment, "played", stopping)
    with pytest.raises(Stopped) as stopped:
        play(points, 2, lambda done, total: None)
    assert stopped.value.total == 8 and len(stopped.value.done) == 1
    text = stopped_text(stopped.value)
    assert text == "stopped: 1 of 8 runs were done (controller 1); nothing was written"


def test_progress_is_told_after_each_run(points):
    seen: list[tuple[int, int]] = []
    play(points[:1], 1, lambda done, total: seen.append((done, total)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "ray"])
def test_every_backend_gives_the_same_runs_in_the_order_of_the_jobs(points, backend):
    jobs = [Job(points[0].experiment.scenario, "x1", seed) for seed in (1, 0)]
    assert list(played(jobs, 2, backend)) == list(played(jobs, 1))


def test_the_backend_asked_for_is_the_one_that_runs(points, monkeypatch):
    seen = []

    def here(job):
        seen.append(threading.current_thread())
        return job.seed

    monkeypatch.setattr(runs, "run_one", here)
    jobs = [Job(points[0].experiment.scenario, "x1", seed) for seed in range(3)]
    assert [*map(str, played(jobs, 2, "threading"))] == ["0", "1", "2"]
    assert len(seen) == 3 and threading.main_thread() not in seen, "in this process, and not one after the other"


def test_ray_gives_the_same_runs(points):
    ray = pytest.importorskip("ray", reason="Ray is not installed (260 MB): pip install 'trimtab[ray]'")
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    try:
        jobs = [Job(points[0].experiment.scenario, "x1", seed) for seed in range(SLICE + 1)]
        assert list(played(jobs, 1, "ray")) == list(played(jobs, 1))
    finally:
        ray.shutdown()


def test_ray_that_is_not_installed_is_asked_for_by_name(points, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray.util.joblib", None)
    with pytest.raises(BackendMissing, match=r"pip install 'trimtab\[ray\]'"):
        next(played([Job(points[0].experiment.scenario, "x1", 0)], 1, "ray"))


def test_a_spread_is_students_and_says_when_it_cannot_say():
    spread = Spread.of([1.0, 2.0, None, 3.0])
    assert spread is not None and spread.mean == 2.0
    assert spread.half_width == pytest.approx(4.302653 / 3**0.5, rel=1e-5)
    assert Spread.of([]) is Spread.of([None]) is Spread.of([1.0, inf]) is None
    lone = Spread.of([5.0])
    assert lone is not None and lone.as_json(2) == {"mean": 5.0, "half_width_95": None}


def test_tables_of_the_users_own_are_read(tmp_path, points):
    shipped = next((Path(experiment.__file__).parent / "tables").glob("*70b*2P_2D*.json"))
    path = tmp_path / "s.yaml"
    path.write_text(HEAD + PHASES + f"tables: [{shipped}]\n" + MORE)
    (point,) = load_points(path)
    scenario = points[1].experiment.scenario
    assert run_one(Job(point.experiment.scenario, "controller", 0)) == run_one(Job(scenario, "controller", 0))
