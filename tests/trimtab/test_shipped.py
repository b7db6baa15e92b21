"""The artefacts that ship: each loads, says truly what it is, and holds what its own constants give."""

from importlib.resources import files
from itertools import product

import pytest

from emulator.fleet import Role, parse_topology
from emulator.profiles import PROFILES
from router.artefact import Artefact, ArtefactError, dump, load
from router.paper_table import QPS_LEVELS, SUCCESS_FLOOR, TURN2_TYPES, ContextClass
from router.policy import Policy, TableKey, Weights
from router.table import LoadAwareTable
from trimtab.phase1 import measure
from trimtab.scenarios import SCENARIOS
from trimtab.shipped import as_tables, read, shipped
from trimtab.workloads import Workload

FOLDER = files("trimtab") / "tables"
NAMES = sorted(item.name for item in FOLDER.iterdir() if item.name.endswith(".json"))
ARTEFACTS = dict(zip(NAMES, shipped(), strict=True))
each = pytest.mark.parametrize(("name", "artefact"), ARTEFACTS.items(), ids=NAMES)


@each
def test_the_header_says_what_the_file_name_says(name: str, artefact: Artefact):
    profile_name, topology = name.removesuffix(".json").split("__")
    origin, profile = artefact.origin, PROFILES[profile_name]
    assert (origin.model, origin.hardware, origin.topology) == (profile.model, profile.hardware, topology)
    assert artefact.key == TableKey(profile.model, topology)
    assert origin.source == "emulated" and profile_name in origin.engine
    assert origin.command == f"trimtab calibrate --model {profile_name} --topology {topology} --seed {origin.seed}"
    roles = parse_topology(topology)
    assert roles[Role.PREFILL] and roles[Role.DECODE]


@each
def test_the_header_counts_the_samples_of_the_cells(name: str, artefact: Artefact):
    assert artefact.origin.samples == sum(cell.x0.n + cell.x1.n for cell in artefact.cells)


@each
def test_every_cell_of_the_grid_is_there_once(name: str, artefact: Artefact):
    keys = [cell.key for cell in artefact.cells]
    assert sorted(keys) == sorted(product(ContextClass, TURN2_TYPES, QPS_LEVELS))


@each
def test_a_usable_cell_has_both_latencies(name: str, artefact: Artefact):
    for cell in artefact.cells:
        for arm in (cell.x0, cell.x1):
            if arm.success >= SUCCESS_FLOOR and arm.n:
                assert arm.ttft_mean_ms is not None and arm.ttft_p99_ms is not None
                assert arm.ttft_mean_ms > 0 and arm.ttft_p99_ms > 0


@each
def test_the_table_is_what_its_latency_model_fills(name: str, artefact: Artefact):
    filled = LoadAwareTable.filled(artefact.table.model, artefact.table.axes)
    assert artefact.table.saved_ms == pytest.approx(filled.saved_ms, rel=1e-5, abs=0.011)
    assert artefact.table.cost == pytest.approx(filled.cost, rel=1e-5, abs=0.011)


@each
def test_the_fit_is_good_enough_to_decide_by(name: str, artefact: Artefact):
    assert artefact.fit["ttft_local"] < 0.10
    assert artefact.fit["ttft_transferred"] < 0.10
    assert artefact.fit["tpot"] < 0.10


@each
def test_writing_what_was_read_and_reading_it_again_changes_nothing(name: str, artefact: Artefact):
    again = load(dump(artefact.origin, artefact.table, artefact.fit, artefact.cells), name)
    assert (again.origin, again.table, again.fit, again.cells) == (
        artefact.origin,
        artefact.table,
        artefact.fit,
        artefact.cells,
    )


@each
def test_a_cell_measured_anew_is_the_cell_that_ships(name: str, artefact: Artefact):
    workload, qps = Workload((1024, 1024), "mid_paste"), 1.0
    shipped_cell = next(c for c in artefact.cells if c.key == (workload.context, workload.turn2, qps))
    profile = PROFILES[name.split("__")[0]]
    measured = measure(profile, artefact.origin.topology, workload, qps, artefact.origin.seed).cell
    assert measured == shipped_cell, "the emulator or the router has changed since: make tables"


def test_every_scenario_has_an_exact_table():
    policy = Policy(1, as_tables(ARTEFACTS.values()), Weights.from_price(0.4))
    for scenario in SCENARIOS.values():
        found = policy.table(PROFILES[scenario.profile].model, scenario.topology)
        assert found is not None and found[1]
        assert found[0].paper is not None


def test_h1_has_an_exact_table_while_one_prefill_node_is_out():
    policy = Policy(1, as_tables(ARTEFACTS.values()), Weights.from_price(0.4))
    found = policy.table("llama-3.1-70b", "1P_2D")
    assert found is not None and found[1]


def test_a_later_artefact_replaces_an_earlier_one_of_the_same_key():
    one, two = list(ARTEFACTS.values())[:2]
    tables = as_tables([one, two, one])
    assert tables[one.key].digest == one.digest and len(tables) == 2


def test_a_file_that_a_user_names_is_read_the_same_way(tmp_path):
    path = tmp_path / "table.json"
    path.write_text((FOLDER / NAMES[0]).read_text(encoding="utf-8"), encoding="utf-8")
    assert read(path) == ARTEFACTS[NAMES[0]]


def test_a_file_that_cannot_be_used_is_named_with_the_reason(tmp_path):
    with pytest.raises(ArtefactError, match=r"missing\.json: No such file"):
        read(tmp_path / "missing.json")
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"{\xff}")
    with pytest.raises(ArtefactError, match=r"binary\.json: byte 1 is not UTF-8"):
        read(binary)
    broken = tmp_path / "broken.json"
    broken.write_text('{"format": 1,', encoding="utf-8")
    with pytest.raises(ArtefactError, match=r"broken\.json:1:14 is no JSON"):
        read(broken)
