"""Runs of scenarios in virtual time: one policy on one seed each, one after the other or on many cores.

`demo --headless`, `simulate` and sweeps all come through here. A run is a function of its job, so where it runs
does not matter. Cores and clusters are joblib's business: its backends by name, `ray` if Ray is installed.
"""

from __future__ import annotations

import gc
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import joblib
import numpy as np

from controller.laws.protocol import Law
from emulator.engine import Engine
from emulator.fleet import EngineMaker
from emulator.profiles import LINKS, PROFILES, EngineProfile
from router.policy import TableKey, Tables
from slos.objective import Outcome as Ended

from .contenders import contender
from .misfit import misfit
from .scenarios import Scenario
from .score import RunScore, score
from .shipped import as_tables, read, shipped
from .simulate import Simulation, TickView
from .spread import Spread
from .wrong_tables import tables_in

BACKENDS = ("loky", "threading", "ray")
"""Names that joblib knows, the first by default: processes, threads, a cluster."""
SLICE = 4
"""Runs a worker before a cluster reports."""
TABLE_STREAM = 2
MISFIT_STREAM = 3
"""Of a seed's streams of random numbers: after those of traffic (0) and coins (1)."""


class BackendMissing(RuntimeError):
    """The backend asked for is not installed; the message says how to get it."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run."""

    scenario: Scenario
    policy: str
    seed: int
    keep_ticks: bool = False
    """For a picture; they are large."""
    law: Law | None = None
    """In place of the policy's own, where that has one."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one run leaves behind."""

    policy: str
    seed: int
    score: RunScore
    ticks: tuple[TickView, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """All runs of a scenario, in the order of policies and seeds. The first policy is the one that the others are
    compared with."""

    scenario: Scenario
    seeds: tuple[int, ...]
    runs: Mapping[str, tuple[Run, ...]]

    @property
    def hero(self) -> str:
        """The first policy."""
        return next(iter(self.runs))

    def attainments(self, policy: str) -> list[float]:
        """Attainment by seed."""
        return [run.score.attainment for run in self.runs[policy]]

    def attainment(self, policy: str) -> float:
        """Mean over seeds, 0..1."""
        return fmean(self.attainments(policy))

    def holds_all(self, policy: str) -> float:
        """Share of seeds in which every phase holds."""
        return fmean(run.score.holds_all for run in self.runs[policy])

    def margin(self, policy: str) -> Spread:
        """Paired difference first policy − this one in attainment."""
        pairs = zip(self.attainments(self.hero), self.attainments(policy), strict=True)
        margin = Spread.of(hero - other for hero, other in pairs)
        assert margin is not None  # attainments are finite, and there is a seed
        return margin


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """A run makes much and few cycles: looking for them as often as usual takes a twentieth of its time."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def run_one(job: Job) -> Run:
    """One policy on one seed."""
    return judged(job, simulated(job))


@_seldom_collected()
def simulated(job: Job, make: EngineMaker = Engine) -> Simulation:
    """One policy on one seed, run to its end on engines that `make` makes."""
    scenario = job.scenario
    engine = engine_of(scenario)
    tables = tables_in(
        scenario.table, _tables(scenario.tables), engine.model, np.random.default_rng([job.seed, TABLE_STREAM])
    )
    if scenario.misfit:
        engine = misfit(engine, np.random.default_rng([job.seed, MISFIT_STREAM]))
    entry = contender(job.policy, tables)
    simulation = Simulation(
        engine,
        scenario.topology,
        entry.policy,
        scenario.slos_of(0),
        seed=job.seed,
        law=entry.law and (job.law or entry.law),
        decider=entry.decider,
        client=scenario.client,
        profiles=_profiles(scenario),
        append_x=scenario.append_x,
        routers=scenario.routers,
        told_share=scenario.told_share,
        make=make,
    )
    end_s = simulation.start(scenario.conversations(job.seed), scenario.phases, scenario.faults)
    for before, (at_s, slos) in pairwise(zip(scenario.begins_s(), scenario.phase_slos, strict=False)):
        if slos != before[1]:
            simulation.events.at(at_s, simulation.redeclare, slos)
    simulation.advance(end_s)
    return simulation


def judged(job: Job, simulation: Simulation) -> Run:
    """What a run that is over leaves behind."""
    scenario = job.scenario
    refused_s = [*simulation.refused_s, *_never_sent(simulation, scenario)]
    model = simulation.profile.model
    reliefs = {view.output.feasibility.relief for view in simulation.ticks}
    return Run(
        job.policy,
        job.seed,
        score(scenario, simulation.records, simulation.unfinished, refused_s),
        tuple(simulation.ticks) if job.keep_ticks else (),
        tuple(sorted(f"{model}: {relief.value}" for relief in reliefs if relief is not None)),
    )


def engine_of(scenario: Scenario) -> EngineProfile:
    """The profile that the scenario names, behind the link that it names."""
    return _linked(PROFILES[scenario.profile], scenario)


def _profiles(scenario: Scenario) -> dict[str, EngineProfile]:
    """Engines of single nodes or roles that are not as the others."""
    named = {where: _linked(PROFILES[name], scenario) for where, name in scenario.profiles}
    for where, tokens in scenario.kv_tokens:
        own = named.get(where, named.get(where.rstrip("0123456789"), engine_of(scenario)))
        named[where] = replace(own, kv_capacity_tokens=tokens)
    return named


def _linked(profile: EngineProfile, scenario: Scenario) -> EngineProfile:
    if scenario.link is not None:
        profile = profile.with_link(LINKS[scenario.link])
    return profile if scenario.bandwidth_gb_s is None else profile.with_bandwidth(scenario.bandwidth_gb_s)


def _never_sent(simulation: Simulation, scenario: Scenario) -> Iterator[tuple[float, int]]:
    """(time, turn) of turns that were given up while they waited for a place in the client, when they got ready. Those
    that were under way have a record."""
    recorded = Counter((r.ended_s, r.turn) for r in simulation.records if r.outcome is Ended.TIMED_OUT)
    for at_s, turn in simulation.gave_up_s:
        if recorded[at_s, turn]:
            recorded[at_s, turn] -= 1
        else:
            yield at_s - scenario.client.timeout_s, turn


@cache
def _tables(more: tuple[str, ...]) -> dict[TableKey, Tables]:
    return as_tables([*shipped(), *(read(Path(path)) for path in more)])


def played(
    jobs: Sequence[Job], workers: int, backend: str | None = None, run: Callable[[Job], Run] | None = None
) -> Iterator[Run]:
    """The runs, in the order of the jobs, each as soon as it and those before it are done. Closing the iterator
    stops the rest. `run`: what runs a job in the place of `run_one`. Raises BackendMissing.
    """
    run = run or run_one
    if backend is None and min(workers, len(jobs)) <= 1:
        yield from map(run, jobs)
        return
    call = joblib.delayed(run)
    if backend == "ray":  # returns nothing before all is done: so a slice at a time
        _register_ray()
        pool = joblib.Parallel(n_jobs=workers, backend=backend, batch_size=1)
        for begin in range(0, len(jobs), SLICE * workers):
            yield from pool(call(job) for job in jobs[begin : begin + SLICE * workers])
        return
    # A run takes seconds, so that one at a time is fine and the bar moves evenly.
    pool = joblib.Parallel(
        n_jobs=min(workers, len(jobs)), backend=backend or BACKENDS[0], return_as="generator", batch_size=1
    )
    with _uninterrupted():
        started = pool(call(job) for job in jobs)
    with closing(started) as runs:
        yield from runs


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Processes that start in here never see a Ctrl-C, which a terminal sends to all: this one ends them. It is deaf
    itself for that moment."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _register_ray() -> None:
    try:
        from ray.util.joblib import register_ray
    except ImportError:
        raise BackendMissing("--backend ray needs Ray here and on the cluster: pip install 'trimtab[ray]'") from None
    register_ray()
