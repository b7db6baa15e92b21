"""The headline scenarios: traffic that stresses D in one phase and P in another, on an emulated fleet.

H1 agents, one P out and back (H2: its short form, for live runs); H3 retrieval chat with an ingest tenant in
the middle; H4 a day in five phases. Loads and SLOs are fixed: never tune them to a result. Source:
docs/explanation/scenarios.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from emulator.faults import Fault
from emulator.profiles import PROFILES
from emulator.workload import AGENT, CHAT, INGEST, PASTE, RAG, ConversationPlan, Phase, conversations
from slos.objective import Match, Signal, Slo

from .simulate import EAGER, Client
from .wrong_tables import TableState


@dataclass(frozen=True, slots=True)
class Scenario:
    """What runs, on what, and what is promised. The first `settle_s` of each phase are not judged."""

    name: str
    title: str
    profile: str
    topology: str
    phases: tuple[Phase, ...]
    slos: tuple[Slo, ...]
    settle_s: float = 60.0
    first_settle_s: float | None = None
    """Of the first phase, which starts empty; default: as the others."""
    link: str | None = None
    """Kind of every KV link; default: the profile's own."""
    bandwidth_gb_s: float | None = None
    """Of every KV link; default: the kind's own."""
    profiles: tuple[tuple[str, str], ...] = ()
    """Profiles of single nodes, or of a role, that differ from `profile`."""
    append_x: float = 1.0
    """Share of later turns that pD nodes take themselves."""
    faults: tuple[Fault, ...] = ()
    """On the timeline of the whole scenario, beside the nodes that are out for a phase."""
    client: Client = EAGER
    tables: tuple[str, ...] = ()
    """Files of table artefacts beside those that ship with Trimtab."""
    table: TableState = TableState.SHIPPED
    """What of them the router has."""
    phase_slos: tuple[tuple[Slo, ...], ...] = ()
    """By phase, where promises change in the course; else `slos` holds for all."""
    kv_tokens: tuple[tuple[str, int], ...] = ()
    """KV memory of single nodes, or of a role, that differs from the profile's."""
    routers: int = 1
    """Side by side, each with its own counts (router_group.py)."""
    told_share: float = 1.0
    """Share of the turns that the controller is told of (told.py)."""
    misfit: bool = False
    """The engines are not what the router's table was made from (misfit.py)."""

    def __post_init__(self) -> None:
        if self.phase_slos and len(self.phase_slos) != len(self.phases):
            raise ValueError(
                f"{self.name}: promises for {len(self.phase_slos)} phases of {len(self.phases)}; write one set for each"
            )

    @property
    def duration_s(self) -> float:
        """Virtual seconds from first to last."""
        return sum(phase.duration_s for phase in self.phases)

    def settle_of(self, phase: int) -> float:
        """How much of a phase is not judged."""
        return self.first_settle_s if phase == 0 and self.first_settle_s is not None else self.settle_s

    def slos_of(self, phase: int) -> tuple[Slo, ...]:
        """What is promised in a phase."""
        return self.phase_slos[phase] if self.phase_slos else self.slos

    def begins_s(self) -> tuple[float, ...]:
        """When each phase begins."""
        return tuple(accumulate((phase.duration_s for phase in self.phases[:-1]), initial=0.0))

    def conversations(self, seed: int) -> list[ConversationPlan]:
        """The traffic of a seed; recorded conversations with starts of their own are the same for all."""
        return conversations(self.phases, np.random.default_rng([seed, 0]))

    def lasting(self, seconds: float) -> Scenario:
        """The same phases in another time, settling included."""
        factor = seconds / self.duration_s
        first = None if self.first_settle_s is None else self.first_settle_s * factor
        phases = tuple(replace(phase, duration_s=phase.duration_s * factor) for phase in self.phases)
        return replace(self, phases=phases, settle_s=self.settle_s * factor, first_settle_s=first)


def promises(ttft_s: float, tpot_s: float) -> tuple[Slo, ...]:
    """P99 TTFT of later turns and P99 TPOT of all turns."""
    return (
        Slo("later-ttft", Signal.TTFT, 0.99, ttft_s, Match(turn_min=2)),
        Slo("tpot", Signal.TPOT, 0.99, tpot_s),
    )


def with_slos(scenario: Scenario, slos: Sequence[Slo]) -> Scenario:
    """The scenario under other promises. Raises ValueError without exactly one P99 of TTFT and one of TPOT."""
    for signal in (Signal.TTFT, Signal.TPOT):
        count = sum(slo.signal is signal for slo in slos)
        if count != 1:
            raise ValueError(
                f"a scenario is judged by one {signal.value} SLO and the file has {count}; "
                f"write e.g. p99({signal.value}) <= 2s"
            )
    model = PROFILES[scenario.profile].model
    for slo in slos:
        if slo.signal not in (Signal.TTFT, Signal.TPOT):
            continue
        if slo.by_request:
            raise ValueError(f"{slo.name}: the turns of a scenario set no deadline; write a limit such as 2s")
        if slo.objective != 0.99:
            raise ValueError(f"{slo.name}: a scenario is judged by P99, not P{slo.objective * 100:g}; write p99(...)")
        if not slo.match.covers(model, 2, True):
            raise ValueError(f"{slo.name}: match covers no second turn of {model}; a scenario runs nothing else")
    return replace(scenario, slos=tuple(slos), phase_slos=())


H1 = Scenario(
    "H1",
    "H1: agents, one prefill node out and back",
    "llama-3.1-70b-h100-tp4",
    "2P_2D",
    (
        Phase("agents 0.9/s", 240, ((AGENT, 0.9),)),
        Phase("agents 0.6/s, one P out", 240, ((AGENT, 0.6),), out=("P1",)),
        Phase("agents 0.9/s", 240, ((AGENT, 0.9),)),
    ),
    promises(2.0, 0.038),
)
H2 = Scenario(
    "H2",
    "H2: agents, one prefill node out and back, in six minutes",
    "llama-3.1-70b-h100-tp4",
    "2P_2D",
    (
        Phase("agents 0.9/s", 140, ((AGENT, 0.9),)),
        Phase("agents 0.58/s, one P out", 100, ((AGENT, 0.58),), out=("P1",)),
        Phase("agents 0.9/s", 100, ((AGENT, 0.9),)),
    ),
    promises(2.0, 0.040),
    settle_s=30.0,
    first_settle_s=40.0,
)
H3 = Scenario(
    "H3",
    "H3: retrieval chat, an ingest tenant in the middle",
    "llama-3.1-70b-h100-tp4",
    "2P_2D",
    (
        Phase("retrieval chat 0.55/s", 240, ((RAG, 0.55),)),
        Phase("retrieval chat 0.32/s + ingest 1.28/s", 240, ((RAG, 0.32), (INGEST, 1.28))),
        Phase("retrieval chat 0.55/s", 240, ((RAG, 0.55),)),
    ),
    promises(2.5, 0.040),
)
H4 = Scenario(
    "H4",
    "H4: a day in five phases",
    "llama-3.1-70b-h100-tp4",
    "2P_2D",
    (
        Phase("chat 3.8/s", 200, ((CHAT, 3.8),)),
        Phase("agents 0.9/s", 200, ((AGENT, 0.9),)),
        Phase("agents 0.6/s, one P out", 200, ((AGENT, 0.6),), out=("P1",)),
        Phase("paste 1.05/s", 200, ((PASTE, 1.05),)),
        Phase("agents 0.9/s", 200, ((AGENT, 0.9),)),
    ),
    promises(2.5, 0.038),
)
SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for scenario in (H1, H2, H3, H4)}
