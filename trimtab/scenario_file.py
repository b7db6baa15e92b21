"""A scenario as a file (YAML, version 1): traffic, fleet, faults, promises, and which policies run on which seeds.

    version: 1
    name: H1
    profile: llama-3.1-70b-h100-tp4
    topology: 2P_2D
    link: {kind: nixl, bandwidth: 50GB/s}
    slos: [{name: later-ttft, objective: p99(ttft) <= 2s, match: {turn: ">=2"}}, ...]    # or slo_file: slo.yaml
    settle: 60s
    phases:
      - {label: agents, duration: 240s, traffic: [{mix: agent, rate: 0.9/s}]}
      - {label: one P out, duration: 240s, traffic: [{mix: agent, rate: 0.6/s}], out: [P1]}
    faults: [{kind: bandwidth, bandwidth: 10GB/s, at: 300s, for: 60s}, {kind: slow, node: D0, factor: 2, at: 500s}]
    client: {max_in_flight: 50, timeout: 30s}
    policies: [controller, price_0.4, dynamo, x1]
    seeds: 3
    sweep: {load: [0.7, 0.85, 1], topology: [1P_3D, 2P_2D]}                              # trimtab/sweep.py

All problems of a file are reported at once, by place, with the fix. Every key is in
docs/reference/scenario-file.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from emulator.faults import Fault, FaultKind, check
from emulator.fleet import parse_topology
from emulator.profiles import LINKS, PROFILES
from emulator.workload import Phase
from router.artefact import ArtefactError
from slos.files import load_slo_file
from slos.nodes import Spot, fields, items, scalar
from slos.objective import Slo
from slos.problem import SpecError, did_you_mean, quoted
from slos.spec import read_slos

from . import scenario_values as values
from .contenders import contender
from .scenario_traffic import TrafficReader, read_mixes
from .scenarios import Scenario, with_slos
from .shipped import read as read_table
from .simulate import EAGER, Client
from .wrong_tables import TableState

VERSION = 1
FILE_KEYS = (
    "version",
    "name",
    "title",
    "profile",
    "topology",
    "profiles",
    "append_x",
    "link",
    "kv",
    "tables",
    "table",
    "routers",
    "told",
    "slos",
    "slo_file",
    "settle",
    "first_settle",
    "load",
    "mixes",
    "phases",
    "faults",
    "client",
    "policies",
    "seeds",
    "sweep",
)
PHASE_KEYS = ("label", "duration", "traffic", "out", "slos")
LINK_KEYS = ("kind", "bandwidth")
FAULT_KEYS = ("kind", "at", "for", "node", "factor", "bandwidth")
CLIENT_KEYS = ("max_in_flight", "timeout")
DEFAULT_SETTLE_S = 60.0
DEFAULT_POLICIES = ("controller", "price_0.4", "dynamo", "threshold_1536", "x0", "x1")
DEFAULT_SEEDS = 3
MAX_SEEDS = 1000
MAX_ROUTERS = 100


@dataclass(frozen=True, slots=True)
class Experiment:
    """A scenario, and what is to run in it. The first policy is the one that the others are compared with."""

    scenario: Scenario
    policies: tuple[str, ...]
    seeds: tuple[int, ...]


def read_experiment(root: Spot, folder: Path, data: Path | None) -> Experiment | None:
    """What the document says; problems go to the spot's, and None comes back. Paths begin at `folder`, those of
    traces at `data` if it is given. `sweep` is left to trimtab/sweep.py.
    """
    top = fields(root, FILE_KEYS)
    if top is None:
        return None
    if "version" not in top:
        root.complain("E103", "version is missing", f"write version: {VERSION} on the first line")
    elif (text := scalar(top["version"], str(VERSION))) not in (None, str(VERSION)):
        top["version"].complain("E112", f"{quoted(text or '')} is not known", f"write {VERSION}")
    values.has_all(root, top, ("profile", "topology", "phases"))
    profile = values.one_of(top["profile"], tuple(PROFILES)) if "profile" in top else None
    topology, nodes = _topology(top["topology"]) if "topology" in top else ("", None)
    load = values.number(top["load"], 0, 1000, "0.85") if "load" in top else 1.0
    traffic = TrafficReader(read_mixes(top["mixes"]) if "mixes" in top else {}, data or folder, load or 0.0)
    phases, own_slos = _phases(top["phases"], traffic, nodes) if "phases" in top else ((), ())
    slos = _slos(root, top, folder)
    settle = values.seconds(top["settle"], "60s", zero=True) if "settle" in top else DEFAULT_SETTLE_S
    first = values.seconds(top["first_settle"], "60s", zero=True) if "first_settle" in top else None
    policies = _policies(top["policies"]) if "policies" in top else DEFAULT_POLICIES
    seeds = _seeds(top["seeds"]) if "seeds" in top else tuple(range(DEFAULT_SEEDS))
    link, bandwidth = _link(top["link"]) if "link" in top else (None, None)
    profiles = _profiles(top["profiles"], topology, nodes) if "profiles" in top else ()
    kv_tokens = _kv(top["kv"], topology, nodes) if "kv" in top else ()
    table = values.one_of(top["table"], tuple(TableState)) if "table" in top else TableState.SHIPPED
    routers = values.whole(top["routers"], 1, "3", MAX_ROUTERS) if "routers" in top else 1
    told = values.number(top["told"], 0.001, 1, "0.1") if "told" in top else 1.0
    append_x = values.number(top["append_x"], 0, 1, "0.83") if "append_x" in top else 1.0
    faults = _faults(top["faults"], nodes) if "faults" in top else ()
    client = _client(top["client"]) if "client" in top else EAGER
    tables = _tables(top["tables"], folder) if "tables" in top else ()
    name = scalar(top["name"], "H1") if "name" in top else "scenario"
    title = scalar(top["title"], "H1: agents, one prefill node out and back") if "title" in top else name
    if profile is None or not phases or slos is None or settle is None or name is None or title is None:
        return None
    scenario = Scenario(
        name,
        title,
        profile,
        topology,
        phases,
        slos,
        settle,
        first,
        link,
        bandwidth,
        profiles,
        append_x if append_x is not None else 1.0,
        faults,
        client,
        tables,
        TableState(table or TableState.SHIPPED),
        tuple(own or slos for own in own_slos) if any(own_slos) else (),
        kv_tokens,
        routers or 1,
        told or 1.0,
    )
    _judged(top, scenario)
    return Experiment(scenario, policies, seeds)


def _topology(spot: Spot) -> tuple[str, tuple[str, ...] | None]:
    """The notation and the names of its nodes; None where there are none to check against."""
    text = scalar(spot, "2P_2D")
    if text is None:
        return "", None
    try:
        roles = parse_topology(text)
    except ValueError as error:
        message, _, fix = str(error).partition("; ")
        spot.complain("E301", message, fix)
        return "", None
    return text, tuple(f"{role}{at}" for role, count in roles.items() for at in range(count))


def _phases(
    spot: Spot, traffic: TrafficReader, nodes: tuple[str, ...] | None
) -> tuple[tuple[Phase, ...], tuple[tuple[Slo, ...], ...]]:
    """The phases, and the SLOs of each; none where it has none of its own."""
    phases: list[Phase] = []
    own_slos: list[tuple[Slo, ...]] = []
    for number, item in enumerate(items(spot) or (), start=1):
        found = fields(item, PHASE_KEYS)
        if found is None or not values.has_all(item, found, ("duration", "traffic")):
            continue
        label = scalar(found["label"], "agents 0.9/s") if "label" in found else f"phase {number}"
        duration_s = values.seconds(found["duration"], "240s")
        starts = traffic.read(found["traffic"])
        out = _out(found["out"], nodes) if "out" in found else ()
        if label is not None and duration_s is not None:
            phases.append(Phase(label, duration_s, starts.streams, out, starts.recorded))
            own_slos.append(read_slos(found["slos"]) or () if "slos" in found else ())
    return tuple(phases), tuple(own_slos)


def _out(spot: Spot, nodes: tuple[str, ...] | None) -> tuple[str, ...]:
    names: list[str] = []
    for item in items(spot) or ():
        name = scalar(item, "P1")
        if name is not None and nodes is not None and name not in nodes:
            item.complain("E301", f"{quoted(name)} is no node of the topology", f"use one of {', '.join(nodes)}")
        elif name is not None:
            names.append(name)
    return tuple(names)


def _slos(root: Spot, top: dict[str, Spot], folder: Path) -> tuple[Slo, ...] | None:
    if "slos" in top and "slo_file" in top:
        top["slo_file"].complain("E210", "stands beside slos", "keep one of them")
    if "slos" in top:
        return read_slos(top["slos"])
    if "slo_file" not in top:
        root.complain("E103", "slos is missing", "write slos: and a list, or slo_file: and a path")
        return None
    name = scalar(top["slo_file"], "slo.yaml")
    if name is None:
        return None
    try:
        return load_slo_file(folder / name).slos
    except SpecError as error:
        for problem in error.problems:
            at = f"{problem.source}:{problem.line}: {problem.message}"
            top["slo_file"].complain(problem.code, at, problem.fix)
        return None


def _judged(top: dict[str, Spot], scenario: Scenario) -> None:
    """A run is judged by one P99 of TTFT and one of TPOT, and outside of what is left to settle."""
    for slos in dict.fromkeys((scenario.slos, *scenario.phase_slos)):
        try:
            with_slos(scenario, slos)
        except ValueError as error:
            message, _, fix = str(error).partition("; ")
            place = "phases" if slos is not scenario.slos else "slos" if "slos" in top else "slo_file"
            top[place].complain("E307", message, fix)
    for at, phase in enumerate(scenario.phases):
        if scenario.settle_of(at) >= phase.duration_s:
            message = f"nothing of phase {quoted(phase.label)} is judged: it settles as long as it lasts"
            top["phases"].complain("E307", message, "write a shorter settle or a longer duration")


def _policies(spot: Spot) -> tuple[str, ...]:
    names: list[str] = []
    for item in items(spot) or ():
        name = scalar(item, "controller")
        if name is None:
            continue
        try:
            contender(name, {})
        except ValueError as error:
            item.complain("E301", str(error), did_you_mean(name, DEFAULT_POLICIES))
            continue
        if name in names:
            item.complain("E106", f"{quoted(name)} is listed twice", "keep one of them")
        names.append(name)
    return tuple(names)


def _seeds(spot: Spot) -> tuple[int, ...]:
    if isinstance(spot.node.value, str):
        count = values.whole(spot, 1, "3", MAX_SEEDS)
        return tuple(range(count or 0))
    found = [values.whole(item, 0, "0", 2**31) for item in items(spot) or ()]
    seeds = tuple(seed for seed in found if seed is not None)
    if len(set(seeds)) < len(seeds):
        spot.complain("E106", "a seed is listed twice", "keep one of them")
    return seeds


def _link(spot: Spot) -> tuple[str | None, float | None]:
    found = fields(spot, LINK_KEYS) or {}
    kind = values.one_of(found["kind"], tuple(LINKS)) if "kind" in found else None
    return kind, values.bandwidth_gb_s(found["bandwidth"]) if "bandwidth" in found else None


def _profiles(spot: Spot, topology: str, nodes: tuple[str, ...] | None) -> tuple[tuple[str, str], ...]:
    """Profile by node or role."""
    roles = tuple(role.value for role in parse_topology(topology)) if topology else ()
    found = fields(spot, (*roles, *(nodes or ()))) or {}
    named = [(where, values.one_of(inside, tuple(PROFILES))) for where, inside in found.items()]
    return tuple((where, name) for where, name in named if name is not None)


def _kv(spot: Spot, topology: str, nodes: tuple[str, ...] | None) -> tuple[tuple[str, int], ...]:
    """KV memory by node or role."""
    roles = tuple(role.value for role in parse_topology(topology)) if topology else ()
    found = fields(spot, (*roles, *(nodes or ()))) or {}
    read = [(where, values.whole(inside, 1, "300000")) for where, inside in found.items()]
    return tuple((where, tokens) for where, tokens in read if tokens is not None)


def _faults(spot: Spot, nodes: tuple[str, ...] | None) -> tuple[Fault, ...]:
    """Faults in order of time; what `emulator.faults` refuses is refused here, at the fault or the list."""
    faults: list[Fault] = []
    for item in items(spot) or ():
        found = fields(item, FAULT_KEYS)
        if found is None or not values.has_all(item, found, ("kind", "at")):
            continue
        kind = values.one_of(found["kind"], tuple(FaultKind))
        at_s = values.seconds(found["at"], "240s", zero=True)
        for_s = values.seconds(found["for"], "60s", zero=True) if "for" in found else inf
        node = scalar(found["node"], "P1") if "node" in found else None
        value = values.number(found["factor"], 0, 1000, "2") if "factor" in found else None
        if "bandwidth" in found:
            if "factor" in found:
                found["bandwidth"].complain("E210", "stands beside factor", "keep the one that the kind takes")
            value = values.bandwidth_gb_s(found["bandwidth"])
        wanted = {FaultKind.SLOW: "factor", FaultKind.BANDWIDTH: "bandwidth"}.get(FaultKind(kind)) if kind else None
        if wanted is not None and not values.has_all(item, found, (wanted,)):
            continue
        if kind is None or at_s is None or for_s is None:
            continue
        try:
            faults.append(Fault(FaultKind(kind), at_s, for_s, node, value))
        except ValueError as error:
            item.complain("E302", str(error), "see docs/reference/scenario-file.md")
    try:
        return check(faults, nodes) if nodes is not None else tuple(faults)
    except ValueError as error:
        spot.complain("E302", str(error), "see docs/reference/scenario-file.md")
        return ()


def _client(spot: Spot) -> Client:
    found = fields(spot, CLIENT_KEYS) or {}
    limit = values.whole(found["max_in_flight"], 1, "50") if "max_in_flight" in found else None
    timeout_s = values.seconds(found["timeout"], "30s") if "timeout" in found else None
    return Client(limit, timeout_s or inf)


def _tables(spot: Spot, folder: Path) -> tuple[str, ...]:
    paths: list[str] = []
    for item in items(spot) or ():
        name = scalar(item, "tables/mine.json")
        if name is None:
            continue
        try:
            read_table(folder / name)
        except ArtefactError as error:
            item.complain("E301", str(error), "write the path of an artefact of trimtab calibrate")
            continue
        paths.append(str(folder / name))
    return tuple(paths)


def with_choice(experiment: Experiment, policies: tuple[str, ...], seeds: int | None) -> Experiment:
    """Other policies or another number of seeds than the file says. Raises ValueError for an unknown policy."""
    for name in policies:
        contender(name, {})
    return replace(
        experiment,
        policies=tuple(dict.fromkeys(policies)) or experiment.policies,
        seeds=experiment.seeds if seeds is None else tuple(range(seeds)),
    )
