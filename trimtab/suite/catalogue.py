"""The scenarios of the suite, each with what it is about.

Two-sided: one phase loads D and another loads P, so that one setting for all phases does not do. One-sided: some fixed
rule holds all phases, and the controller must not be worse than that. The rest is trouble of another kind: demands
that nothing can hold, signals that are few, late or wrong, and nodes that come and go.

Rates, lengths and objectives were chosen with constant prices and fixed rules on seeds 100 to 102, before the
controller ran on any of them (docs/reference/suite.md), and are never tuned to a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from emulator.arrivals import Diurnal, FlashCrowd, Mmpp
from emulator.faults import Fault, FaultKind
from emulator.workload import AGENT, CHAT, PASTE, RAG, LogNormal, Mix, Phase
from slos.objective import Slo
from slos.problem import did_you_mean

from ..scenarios import H1, H3, H4, Scenario, promises
from ..wrong_tables import TableState


class Sided(StrEnum):
    """Which pools the trouble is on."""

    TWO = "two"
    ONE = "one"
    NONE = "none"
    """Neither: another kind of trouble."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A scenario of the suite."""

    scenario: Scenario
    sided: Sided
    about: str
    impossible: int | None = None
    """The phase whose promise nothing can hold."""
    flagged_within_s: float | None = None
    """How soon that is to be said."""
    feasible: bool = False
    """Loads leave a part of every budget: to call a promise impossible is wrong wherever anybody kept it."""

    @property
    def name(self) -> str:
        """As the command line says it."""
        return self.scenario.name


NEWCOMER = Mix(
    "newcomer",
    first=LogNormal(4500, 0.6, 300, 16000),
    later=((1.0, LogNormal(60, 0.8, 4, 400)),),
    output=LogNormal(120, 0.7, 8, 600),
    think_s=LogNormal(3, 0.7, 0.5, 15),
    turns_mean=1.6,
    turns_low=1,
    turns_high=5,
)
"""People who come with a document, ask once or twice, and go."""
AGENT_50K = Mix(
    "agent-50k",
    first=LogNormal(40000, 0.25, 20000, 70000),
    later=AGENT.later,
    output=AGENT.output,
    think_s=AGENT.think_s,
    turns_mean=14,
    turns_low=3,
    turns_high=40,
)
"""Agents that begin with a code base in their prompt."""

_70B, _8B = H1.profile, "llama-3.1-8b-h100"


def _agents(rate_hz: float, seconds: float, *, out: tuple[str, ...] = (), label: str = "") -> Phase:
    return Phase(label or f"agents {rate_hz:g}/s", seconds, ((AGENT, rate_hz),), out)


def _made(name: str, title: str, phases: tuple[Phase, ...], slos: tuple[Slo, ...]) -> Scenario:
    return Scenario(name, title, _70B, "2P_2D", phases, slos)


def _two_sided() -> list[tuple[Scenario, str]]:
    strict_ttft, strict_tpot = promises(1.3, 0.040), promises(1.9, 0.029)
    return [
        (replace(H1, name="h1"), "agents, one P out and back"),
        (replace(H3, name="h3"), "retrieval chat, an ingest tenant in the middle"),
        (replace(H4, name="h4"), "a day in five phases"),
        (
            replace(
                _made(
                    "slo_switch",
                    "SLO switch: 1300/40, then 1900/29, then back, at constant load",
                    (
                        _agents(0.95, 240, label="1300 ms / 40 ms"),
                        _agents(0.95, 240, label="1900 ms / 29 ms"),
                        _agents(0.95, 240, label="1300 ms / 40 ms"),
                    ),
                    strict_ttft,
                ),
                phase_slos=(strict_ttft, strict_tpot, strict_ttft),
            ),
            "the promise changes, the traffic does not",
        ),
        (
            Scenario(
                "chat_paste_chat",
                "Chat, then pasted text, then chat",
                _8B,
                "2P_2D",
                (
                    Phase("chat 4.8/s", 240, ((CHAT, 4.8),)),
                    Phase("paste 2.2/s", 240, ((PASTE, 2.2),)),
                    Phase("chat 4.8/s", 240, ((CHAT, 4.8),)),
                ),
                promises(2.5, 0.030),
            ),
            "short appends, then long ones",
        ),
        (
            _made(
                "rush",
                "A rush of new chats, then pastes, then the rush again",
                (
                    Phase("newcomers 3/s, agents 0.25/s", 240, ((NEWCOMER, 3.0), (AGENT, 0.25))),
                    Phase("paste 0.9/s, agents 0.2/s", 240, ((PASTE, 0.9), (AGENT, 0.2))),
                    Phase("newcomers 3/s, agents 0.25/s", 240, ((NEWCOMER, 3.0), (AGENT, 0.25))),
                ),
                promises(2.5, 0.038),
            ),
            "first turns load P, then appends load D",
        ),
    ]


def _one_sided() -> list[tuple[Scenario, str]]:
    return [
        (
            _made(
                "load_step",
                "Load step: agents 0.6, then 1.0, then 0.6/s",
                (_agents(0.6, 240), _agents(1.0, 240), _agents(0.6, 240)),
                promises(2.0, 0.040),
            ),
            "more of the same",
        ),
        (
            _made(
                "diurnal",
                "A day in sixteen minutes",
                (Phase("agents 0.3 to 0.85/s and back", 960, ((AGENT, Diurnal(0.575, 0.48, 960, 480)),)),),
                promises(2.0, 0.040),
            ),
            "load that rises and falls slowly",
        ),
        (
            _made(
                "p_failure",
                "One prefill node out and back, at constant load",
                (_agents(0.65, 240), _agents(0.65, 240, out=("P1",), label="one P out"), _agents(0.65, 240)),
                promises(2.0, 0.038),
            ),
            "half of the prefill capacity is gone",
        ),
        (
            _made(
                "d_failure",
                "One decode node out and back, at constant load",
                (_agents(0.45, 240), _agents(0.45, 240, out=("D1",), label="one D out"), _agents(0.45, 240)),
                promises(2.0, 0.040),
            ),
            "half of the decode capacity and of the KV is gone",
        ),
        (
            replace(
                _made(
                    "bandwidth",
                    "Links at 150, then 10 GB/s",
                    (
                        Phase("rag 0.7/s, 150 GB/s", 240, ((RAG, 0.7),)),
                        Phase("rag 0.7/s, 10 GB/s", 240, ((RAG, 0.7),)),
                        Phase("rag 0.7/s, 150 GB/s", 240, ((RAG, 0.7),)),
                    ),
                    promises(2.5, 0.030),
                ),
                profile=_8B,
                bandwidth_gb_s=150.0,
                faults=(Fault(FaultKind.BANDWIDTH, 240, 240, None, 10.0),),
            ),
            "transfers become dear",
        ),
    ]


def _other() -> list[tuple[Scenario, str]]:
    usual = promises(2.0, 0.038)
    rolling = tuple(Fault(FaultKind.OUT, 120 + 120 * at, 20, node) for at, node in enumerate(("P0", "P1", "D0", "D1")))
    return [
        (
            replace(
                _made(
                    "infeasible",
                    "A promise that nothing can hold, 1.7 times over its budget",
                    (_agents(0.9, 240), _agents(0.9, 360, label="stricter"), _agents(0.9, 240)),
                    usual,
                ),
                phase_slos=(usual, promises(0.95, 0.026), usual),
            ),
            "a little too strict for a while",
        ),
        (
            replace(
                _made(
                    "infeasible_3x",
                    "A promise that nothing can hold, 3 times over its budget",
                    (_agents(0.9, 240), _agents(0.9, 360, label="much stricter"), _agents(0.9, 240)),
                    usual,
                ),
                phase_slos=(usual, promises(0.8, 0.025), usual),
            ),
            "far too strict for a while",
        ),
        (
            _made(
                "day",
                "The phases of H4 at nine tenths of its load, twelve minutes each",
                (
                    Phase("chat 3.4/s", 720, ((CHAT, 3.4),)),
                    _agents(0.82, 720),
                    _agents(0.55, 720, out=("P1",), label="agents 0.55/s, one P out"),
                    Phase("paste 0.95/s", 720, ((PASTE, 0.95),)),
                    _agents(0.82, 720),
                    Phase("chat 3.4/s", 720, ((CHAT, 3.4),)),
                ),
                H4.slos,
            ),
            "feasible traffic: twenty seeds are 24 hours",
        ),
        (replace(H1, name="sampling", title="H1, a tenth of the turns is seen", told_share=0.1), "a tenth is seen"),
        (
            _made(
                "mmpp",
                "Bursts: agents at 0.5 or 1.5/s by turns",
                (Phase("agents in bursts", 720, ((AGENT, Mmpp((0.5, 1.5), (60.0, 30.0))),)),),
                promises(2.0, 0.040),
            ),
            "a modulated Poisson process",
        ),
        (
            _made(
                "flash_crowd",
                "Five times the load for a minute",
                (
                    Phase(
                        "agents 0.3/s, five times that for a minute",
                        600,
                        ((AGENT, FlashCrowd(0.3, 5.0, 180.0, 60.0)),),
                    ),
                ),
                promises(2.0, 0.040),
            ),
            "a burst of arrivals",
        ),
        (replace(H1, name="cold_start", title="H1 without a table", table=TableState.NONE), "no table for the model"),
        (
            replace(H1, name="wrong_table", title="H1 with a wrong table", table=TableState.WRONG),
            "cells off by up to three times, one in five of the wrong sign",
        ),
        (
            replace(
                H1,
                name="metric_outage",
                title="H1, the controller sees nothing for two and a half minutes",
                faults=(Fault(FaultKind.METRICS, 210, 150),),
            ),
            "no signal while one P goes out",
        ),
        (
            replace(
                _made("rolling_restart", "Every node restarted in turn", (_agents(0.45, 720),), promises(2.0, 0.040)),
                faults=rolling,
            ),
            "each node is out for twenty seconds",
        ),
        (
            replace(
                _made(
                    "heterogeneous_d",
                    "One of two decode nodes is slower",
                    (_agents(0.5, 240), _agents(0.7, 240), _agents(0.5, 240)),
                    promises(2.0, 0.050),
                ),
                profiles=(("D1", "llama-3.1-70b-a100-tp4"),),
            ),
            "an A100 among H100s",
        ),
        (
            _made(
                "agents_50k",
                "Agents with contexts of 50k tokens",
                (Phase("agents with 50k, 0.13/s", 900, ((AGENT_50K, 0.13),)),),
                promises(4.0, 0.045),
            ),
            "few sequences, much KV, long prefills after eviction",
        ),
        (
            replace(
                _made(
                    "d_kv_shortage",
                    "A busier day with five eighths of the KV on D",
                    (
                        Phase("chat 4/s", 200, ((CHAT, 4.0),)),
                        _agents(0.95, 200),
                        _agents(0.65, 200, out=("P1",), label="agents 0.65/s, one P out"),
                        Phase("paste 1.1/s", 200, ((PASTE, 1.1),)),
                        _agents(0.95, 200),
                    ),
                    H4.slos,
                ),
                kv_tokens=(("D", 250_000),),
            ),
            "evicted conversations come back as whole prefills, and that evicts others",
        ),
        (
            replace(H4, name="h4_misfit", title="H4 on engines that the table does not fit", misfit=True),
            "constants off by 30 %, stalls convex in what is appended",
        ),
        (
            replace(H1, name="several_routers", title="H1 through three routers", routers=3),
            "each router counts only its own turns",
        ),
    ]


IMPOSSIBLE = {"infeasible": (1, 300.0), "infeasible_3x": (1, 100.0)}
"""Scenarios with a phase that nothing can hold: which, and how soon that is to be said."""

FEASIBLE = ("day",)
"""Scenarios of which a constant price holds every phase with budget to spare, but for the dice of single seeds."""


def _entry(scenario: Scenario, sided: Sided, about: str) -> Entry:
    impossible, within_s = IMPOSSIBLE.get(scenario.name, (None, None))
    return Entry(scenario, sided, about, impossible, within_s, scenario.name in FEASIBLE)


CATALOGUE: dict[str, Entry] = {
    scenario.name: _entry(scenario, sided, about)
    for sided, found in ((Sided.TWO, _two_sided()), (Sided.ONE, _one_sided()), (Sided.NONE, _other()))
    for scenario, about in found
}


def entries_named(names: Sequence[str]) -> tuple[Entry, ...]:
    """Those of that name, or all without any. Raises ValueError with what is near."""
    for name in names:
        if name not in CATALOGUE:
            raise ValueError(f"unknown scenario {name!r}; {did_you_mean(name, tuple(CATALOGUE))}")
    return tuple(CATALOGUE[name] for name in dict.fromkeys(names)) if names else tuple(CATALOGUE.values())
