"""What routers report, folded on arrival: tallies per model, counts per SLO, and who reported when.

A report is told apart by router, boot and sequence number. One seen before is acknowledged and not folded; a new boot
of a router starts over at any number. Counters are cumulative per boot, so only their increase is added, and a lost
report costs nothing but its records. Pure: the time is an argument, seconds of any monotonic clock.

What a router said last holds for `SILENT_S`. After that its waiting turns, its pin and its metrics no longer count, for
nobody knows whether they still do; after `FORGET_S` it leaves the list. Everything here is bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from estimators.rate import EventRate
from router.core import Waiting
from router.wire import NodeView, Report, SourceView
from slos.counts import Count, SloCounts
from slos.objective import Slo
from slos.revisions import revisions

from .cells import Tallies

SILENT_S = 15.0
"""Reports come every second."""
FORGET_S = 600.0
DOUBLED_S = 60.0
MAX_AGEING_S = 1.5
"""A waiting turn is aged by the time since its report, up to about one report: with none since, nobody knows whether it
still waits, and the turns of a router that died must not look slower and slower."""
MAX_MODELS = 32
MAX_ROUTERS = 64
MAX_BOOTS = 256
MAX_ASIDE = 64
"""Revisions of SLOs that are declared no longer, per boot."""
MAX_NAME = 256
"""Characters of a router's, boot's or model's name."""


class IntakeFull(Exception):
    """More routers report at once than are followed."""


@dataclass(frozen=True, slots=True)
class RouterView:
    """One router's newest report and when it came."""

    report: Report
    reported_s: float
    doubled_s: float | None = None
    """When a boot that another had followed reported again: two processes use one name."""

    def age_s(self, now_s: float) -> float:
        """Seconds since its newest report."""
        return max(0.0, now_s - self.reported_s)

    def silent(self, now_s: float) -> bool:
        """It has not reported for too long to be believed."""
        return self.age_s(now_s) > SILENT_S

    def doubled(self, now_s: float) -> bool:
        """Two processes have used this name of late."""
        return self.doubled_s is not None and now_s - self.doubled_s <= DOUBLED_S


@dataclass(slots=True)
class BootState:
    """What is already counted of one boot of one router."""

    seq: int = -1
    counts: dict[str, Count] = field(default_factory=dict)
    aside: dict[tuple[str, str], Count] = field(default_factory=dict)
    """The same of revisions that are declared no longer, by SLO and revision; bounded by `MAX_ASIDE`."""
    dropped_records: int = 0

    def redeclare(self, before: Mapping[str, str], now: Mapping[str, str]) -> None:
        """The revisions of the SLOs changed."""
        known = {**self.aside, **{(name, before.get(name, "")): count for name, count in self.counts.items()}}
        self.counts = {name: known.pop((name, rev)) for name, rev in now.items() if (name, rev) in known}
        self.aside = dict(list(known.items())[-MAX_ASIDE:])


@dataclass(slots=True)
class Totals:
    """Plain counters since this process began, for metrics."""

    reports: int = 0
    repeated: int = 0
    gaps: int = 0
    """Sequence numbers that never came."""
    records: int = 0
    records_of_refused_models: int = 0
    dropped_records: int = 0
    """Records that routers had to drop."""


class Intake:
    """Everything that routers have told this process."""

    def __init__(self, slos: Iterable[Slo], models: Iterable[str] = ()) -> None:
        """`models` are those that have tables: they are followed however many others turn up."""
        self._slos = tuple(slos)
        self._known_models = frozenset(models)
        self._counts = SloCounts(revisions(self._slos))
        self._carried = SloCounts(revisions(self._slos))
        """What boots had counted, nobody knows when, before a process without a memory met them."""
        self._continued = False
        self._routers: dict[str, RouterView] = {}
        self._boots: OrderedDict[tuple[str, str], BootState] = OrderedDict()
        self._rates: dict[str, EventRate] = {}
        self.tallies: dict[str, Tallies] = {}
        self.totals = Totals()
        self.unknown_slos: frozenset[str] = frozenset()
        """SLOs that a router counts and this process does not know: they run on different files."""

    def accept(self, report: Report, now_s: float) -> int:
        """Fold one report; returns the sequence number up to which this boot is acknowledged. Raises IntakeFull."""
        boot, known = self._boot(report, now_s)
        if report.seq <= boot.seq:
            self.totals.repeated += 1
            return boot.seq
        self.totals.reports += 1
        if boot.seq >= 0:
            self.totals.gaps += report.seq - boot.seq - 1
        boot.seq = report.seq
        before = self._routers.get(report.router)
        doubled_s = None if before is None else before.doubled_s
        if known and before is not None and before.report.boot != report.boot:
            doubled_s = now_s
        self._routers[report.router] = RouterView(report, now_s, doubled_s)
        self._count(report, boot, met=not known)
        for turn in report.waiting:
            self._tally(turn.model, now_s)
        for record in report.records:
            tally = self._tally(record.model, now_s)
            if tally is None:
                self.totals.records_of_refused_models += 1
                continue
            self.totals.records += 1
            tally.fold(record)
            self._rates[record.model].update(1, now_s)
        return boot.seq

    def is_first(self, report: Report) -> bool:
        """Whether this process has had no report of that boot yet."""
        boot = self._boots.get((report.router, report.boot))
        return boot is None or boot.seq < 0

    def redeclare(self, slos: Iterable[Slo]) -> None:
        """Count these from now on. What still means the same goes on; a report that counts another revision of an SLO
        than this process is not added, and loses nothing: counters are cumulative, and it is read again once both
        follow the same declaration."""
        self._slos = tuple(slos)
        before, now = dict(self._counts.revisions), revisions(self._slos)
        for boot in self._boots.values():
            boot.redeclare(before, now)
        self._counts.redeclare(now)
        self._carried.redeclare(now)
        for tally in self.tallies.values():
            tally.redeclare(self._slos)

    # -- reading -------------------------------------------------------------------------------------------------------

    def counts(self) -> dict[str, Count]:
        """Counts per SLO, over all routers and boots."""
        return self._counts.snapshot()

    def measured(self) -> dict[str, Count]:
        """The same, without what was counted before anybody was there to note when: what a ledger is fed with."""
        carried = self._carried.snapshot()
        return {name: count.since(carried[name]) for name, count in self._counts.snapshot().items()}

    def routers(self, now_s: float) -> dict[str, RouterView]:
        """Routers by name, the forgotten ones left out."""
        for name in [name for name, view in self._routers.items() if view.age_s(now_s) > FORGET_S]:
            del self._routers[name]
        return dict(sorted(self._routers.items()))

    def speaking(self, now_s: float) -> dict[str, RouterView]:
        """Routers whose newest report still counts."""
        return {name: view for name, view in self.routers(now_s).items() if not view.silent(now_s)}

    def differing(self, now_s: float) -> dict[str, tuple[str, ...]]:
        """Per router that still speaks, the SLOs of which it counts another revision than this process."""
        found = {name: tuple(sorted(self._differing(view.report))) for name, view in self.speaking(now_s).items()}
        return {name: slos for name, slos in found.items() if slos}

    def waiting(self, now_s: float) -> list[Waiting]:
        """Turns without a first token, with their age now."""
        return [
            Waiting(
                turn.model, turn.turn, turn.streaming, turn.age_s + min(view.age_s(now_s), MAX_AGEING_S), turn.terms
            )
            for view in self.speaking(now_s).values()
            for turn in view.report.waiting
        ]

    def busy(self, now_s: float) -> frozenset[str]:
        """Models that have turns in flight: waiting for a first token, or running on a node. Where nodes are not named
        by model, what runs may be any one's."""
        nodes = [node.id.rpartition("/")[0] for node in self.nodes(now_s)[1] if node.sequences]
        running = self.tallies.keys() if "" in nodes else set(nodes)
        return frozenset({turn.model for turn in self.waiting(now_s)} | running)

    def pins(self, now_s: float) -> dict[str, float]:
        """Pins in force, by router."""
        return {name: view.report.pin_x for name, view in self.speaking(now_s).items() if view.report.pin_x is not None}

    def nodes(self, now_s: float) -> tuple[str, tuple[NodeView, ...]]:
        """(routers, nodes): the nodes of each model as the newest report on them that still counts has them."""
        found = self._newest(now_s)
        return ", ".join(name for name, _, _ in found), tuple(node for _, _, nodes in found for node in nodes)

    def sources(self, now_s: float) -> tuple[SourceView, ...]:
        """Who told of these nodes."""
        return tuple(source for _, view, _ in self._newest(now_s) for source in view.report.sources)

    def _newest(self, now_s: float) -> list[tuple[str, RouterView, tuple[NodeView, ...]]]:
        """What each router is believed of the nodes, newest first. Nodes of several models have names that begin with
        the model's, and each model is a router of its own."""
        newest = sorted(self.speaking(now_s).items(), key=lambda item: item[1].reported_s, reverse=True)
        seen: set[str] = set()
        found: list[tuple[str, RouterView, tuple[NodeView, ...]]] = []
        for name, view in newest:
            fresh = tuple(node for node in view.report.nodes if node.id.rpartition("/")[0] not in seen)
            seen.update(node.id.rpartition("/")[0] for node in fresh)
            if fresh or not found:
                found.append((name, view, fresh))
        return found

    def qps(self, model: str, now_s: float) -> float:
        """Ended turns per second of one model."""
        rate = self._rates.get(model)
        return 0.0 if rate is None else rate.rate_hz(now_s)

    # -- a restart of this process -------------------------------------------------------------------------------------

    def boots(self) -> dict[tuple[str, str], dict[str, Count]]:
        """What is counted already, by (router, boot): to be stored with `counts` and given to `restore`."""
        return {key: dict(boot.counts) for key, boot in self._boots.items()}

    def restore(self, counts: Mapping[str, Count], boots: Mapping[tuple[str, str], Mapping[str, Count]]) -> None:
        """Go on from what an earlier process had counted."""
        self._counts.merge(counts)
        self._continued = bool(counts or boots)
        for key, earlier in list(boots.items())[-MAX_BOOTS:]:
            self._boots[key] = BootState(counts=dict(earlier))

    # -- inside --------------------------------------------------------------------------------------------------------

    def _boot(self, report: Report, now_s: float) -> tuple[BootState, bool]:
        """The state of the report's boot, and whether it was known before."""
        if max(len(report.router), len(report.boot)) > MAX_NAME:
            raise IntakeFull(f"names of routers and boots have at most {MAX_NAME} characters")
        if report.router not in self._routers and len(self._routers) >= MAX_ROUTERS:
            oldest = min(self._routers, key=lambda name: self._routers[name].reported_s)
            if not self._routers[oldest].silent(now_s):
                raise IntakeFull(f"{MAX_ROUTERS} routers report already")
            del self._routers[oldest]
        key = (report.router, report.boot)
        boot = self._boots.get(key)
        known = boot is not None
        if boot is None:
            boot = self._boots[key] = BootState()
            if len(self._boots) > MAX_BOOTS:
                self._boots.popitem(last=False)
        self._boots.move_to_end(key)
        return boot, known

    def _count(self, report: Report, boot: BootState, met: bool) -> None:
        other = self._differing(report)
        counted = {name: count for name, count in report.counts.items() if name not in other}
        rise = {name: count.since(boot.counts.get(name, Count())) for name, count in counted.items()}
        self.unknown_slos = self._counts.merge(rise)
        if met and not self._continued:
            # More turns than the report itself brings: the boot is older than this process and its store.
            brought = len(report.records) + report.dropped_records
            self._carried.merge({name: gain for name, gain in rise.items() if gain.valid + gain.excluded > brought})
        kept = {name: boot.counts[name] for name in other if name in boot.counts}
        boot.counts = kept | {name: count for name, count in counted.items() if name not in self.unknown_slos}
        self.totals.dropped_records += max(0, report.dropped_records - boot.dropped_records)
        boot.dropped_records = report.dropped_records

    def _differing(self, report: Report) -> frozenset[str]:
        ours = self._counts.revisions
        return frozenset(
            name for name in report.counts if name in ours and report.revisions.get(name, ours[name]) != ours[name]
        )

    def _tally(self, model: str, now_s: float) -> Tallies | None:
        tally = self.tallies.get(model)
        if tally is None:
            others = len(self.tallies.keys() - self._known_models)
            if (model not in self._known_models and others >= MAX_MODELS) or len(model) > MAX_NAME:
                return None
            tally = self.tallies[model] = Tallies(model, self._slos)
            self._rates[model] = EventRate(now_s)
        return tally
