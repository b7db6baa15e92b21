"""Sweeps: the same file for every combination of values, each read as strictly as the file itself."""

from pathlib import Path

import pytest

from slos.problem import SpecError
from tests.trimtab.test_scenario_file import HEAD, PHASES
from trimtab.sweep import MAX_POINTS, load_points


def written(folder: Path, more: str = "") -> Path:
    path = folder / "s.yaml"
    path.write_text(HEAD + PHASES + more)
    return path


def refused(path: Path, *sweeps: str) -> list[str]:
    with pytest.raises(SpecError) as found:
        load_points(path, sweeps=sweeps)
    return [str(problem).removeprefix(f"{path}:") for problem in found.value.problems]


def test_a_file_without_a_sweep_is_one_point_without_values(tmp_path):
    (point,) = load_points(written(tmp_path))
    assert point.at == ()


def test_every_combination_is_a_point_the_last_path_running_fastest(tmp_path):
    points = load_points(written(tmp_path, "sweep: {topology: [2P_2D, 1P_3D], load: [0.5, 1]}\n"))
    assert [point.at for point in points] == [
        (("topology", "2P_2D"), ("load", "0.5")),
        (("topology", "2P_2D"), ("load", "1")),
        (("topology", "1P_3D"), ("load", "0.5")),
        (("topology", "1P_3D"), ("load", "1")),
    ]
    scenarios = [point.experiment.scenario for point in points]
    assert [scenario.topology for scenario in scenarios] == ["2P_2D", "2P_2D", "1P_3D", "1P_3D"]
    assert [scenario.phases[0].traffic[0][1] for scenario in scenarios] == [0.45, 0.9, 0.45, 0.9]


@pytest.mark.parametrize(
    ("sweep", "read"),
    [
        ("phases[0].traffic[0].rate=2/s,3/s", lambda e: e.scenario.phases[0].traffic[0][1]),
        ("slos[1].objective=p99(tpot) <= 2s,p99(tpot) <= 3s", lambda e: e.scenario.slos[1].threshold_s),
        ("phases[0].duration=2m,3m", lambda e: e.scenario.phases[0].duration_s / 60),
        ("seeds=2,3", lambda e: len(e.seeds)),
        ("first_settle=2s,3s", lambda e: e.scenario.settle_of(0)),
        ("link.bandwidth=2GB/s,3GB/s", lambda e: e.scenario.bandwidth_gb_s),
    ],
)
def test_any_scalar_can_be_swept_also_a_key_that_the_file_leaves_out(tmp_path, sweep, read):
    path = written(tmp_path, "seeds: 1\n")
    assert [read(point.experiment) for point in load_points(path, sweeps=[sweep])] == [2, 3]


def test_the_command_line_adds_to_the_files_sweep_and_replaces_the_same_path(tmp_path):
    path = written(tmp_path, "sweep: {load: [0.5, 1]}\n")
    assert len(load_points(path, sweeps=["seeds=1,2,3"])) == 6
    assert [point.at for point in load_points(path, sweeps=["load=0.7"])] == [(("load", "0.7"),)]


def test_a_value_that_the_file_could_not_hold_is_a_problem_at_its_place_in_the_sweep(tmp_path):
    path = written(tmp_path, "sweep:\n  load: [0.5, loud]\n  topology: [2P_2D, 9X]\n")
    load, topology = refused(path)
    assert load.startswith('11:15 E302 load: "loud" is not a number') and "(with load=loud, topology=2P_2D)" in load
    assert topology.startswith("12:21 E301 topology: topology '9X'")


def test_a_wrong_value_of_the_command_line_is_a_problem_where_the_file_has_it(tmp_path):
    (found,) = refused(written(tmp_path), "phases[0].duration=90")
    assert found.startswith('9:16 E203 phases[0].duration: "90" has no unit (with phases[0].duration=90)')


def test_a_point_is_checked_as_a_whole(tmp_path):
    path = written(tmp_path)
    path.write_text(path.read_text().replace("rate: 0.9/s}]}", "rate: 0.9/s}], out: [P1]}"))
    (found,) = refused(path, "topology=1P_3D,2P_2D")
    assert 'phases[0].out[0]: "P1" is no node of the topology (with topology=1P_3D)' in found


@pytest.mark.parametrize(
    ("sweep", "words"),
    [
        ("load", "names no values"),
        ("load=", "names no values"),
        ("phases[3].duration=1s", "the file has no place for"),
        ("phases[0]=1s", "the file has no place for"),
        ("phases[0].traffic[7]=x", "the file has no place for"),
        ("nothing.here=1", "unknown key"),
        ("topology.here=1", "the file has no place for"),
        ("a b=1", "is no path of a value"),
        ("sweep.load=1", "is no path of a value"),
        ("version=1,2", "is no path of a value"),
        ("nothing=1", "unknown key"),
    ],
)
def test_a_sweep_of_nothing_is_refused(tmp_path, sweep, words):
    assert any(words in problem for problem in refused(written(tmp_path), sweep))


def test_sweeps_in_a_file_are_lists_of_single_values_by_path(tmp_path):
    assert "must map paths to values" in refused(written(tmp_path, "sweep: [load]\n"))[0]
    assert "must be a list of one or more" in refused(written(tmp_path, "sweep: {load: 1}\n"))[0]
    assert "E306 sweep.load: a value is not a scalar" in refused(written(tmp_path, "sweep: {load: [[1], 2]}\n"))[0]


def test_a_sweep_is_bounded(tmp_path):
    many = ",".join(str(at + 1) for at in range(40))
    (found,) = refused(written(tmp_path), f"load={many}", f"seeds={many}")
    assert f"E109 the file: the sweep has more than {MAX_POINTS} points" in found
