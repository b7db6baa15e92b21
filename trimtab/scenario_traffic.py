"""The traffic of a scenario file: mixes of its own, arrival processes, recorded traces.

mixes:
  support:
    first: {median: 3000, sigma: 0.4, min: 500, max: 9000}      # tokens
    later: [{share: 0.9, median: 40, sigma: 1, min: 3, max: 6000}, {share: 0.1, ...}]
    output: 200
    think: {median: 9s, sigma: 0.8, min: 1s, max: 60s}
    turns: {mean: 4.2, min: 2, max: 16}
traffic:
  - {mix: support, rate: 2/s}                                    # Poisson
  - {mix: chat, arrivals: {process: mmpp, rates: [1/s, 6/s], stays: [60s, 10s]}}
  - {trace: data/mooncake.jsonl, limit: 1000}                    # as recorded, from the beginning of the phase
  - {trace: data/agents, rate: 0.1/s, scale: 0.5}                # drawn from, with replacement
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import yaml

from emulator.arrivals import Arrivals, Diurnal, FlashCrowd, Mmpp, Poisson
from emulator.workload import MAX_CONTEXT_TOKENS, ConversationPlan, LogNormal, Mix, Source
from slos.nodes import Spot, fields, items, scalar
from slos.problem import quoted

from . import scenario_values as values
from .traces import Cut, TraceError, load_traces, sample
from .workloads import mix_named

MIX_KEYS = ("first", "later", "output", "later_output", "think", "turns", "context")
LATER_KEYS = ("share", *values.LENGTH_KEYS)
CUT_KEYS = ("limit", "scale", "output_max", "think_max", "turns_max", "context_max", "spacing")
TRAFFIC_KEYS = ("mix", "trace", "rate", "arrivals", *CUT_KEYS)
PROCESS_KEYS: dict[str, tuple[str, ...]] = {
    "poisson": ("rate",),
    "mmpp": ("rates", "stays"),
    "diurnal": ("mean", "swing", "period", "peak"),
    "flash_crowd": ("base", "factor", "start", "lasting"),
}
"""Arrival processes and their keys."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What starts in a phase."""

    streams: tuple[tuple[Source, float | Arrivals], ...] = ()
    recorded: tuple[ConversationPlan, ...] = ()


@dataclass(frozen=True, slots=True)
class TrafficReader:
    """Reads traffic against a file's own mixes. `folder` is where paths of traces begin, `load` scales all rates
    (recorded starts stay)."""

    mixes: dict[str, Mix]
    folder: Path
    load: float

    def read(self, spot: Spot) -> Traffic:
        """A list of streams."""
        streams: list[tuple[Source, float | Arrivals]] = []
        recorded: list[ConversationPlan] = []
        for item in items(spot) or ():
            found = fields(item, TRAFFIC_KEYS)
            if found is None:
                continue
            arrivals = self._arrivals(found)
            if "trace" in found:
                if "mix" in found:
                    found["trace"].complain("E210", "stands beside mix", "give each a stream of its own")
                plans = self._trace(found)
                if "rate" in found or "arrivals" in found:
                    if plans and arrivals is not None:
                        streams.append((sample(Path(scalar(found["trace"], "") or "trace").stem, plans), arrivals))
                else:
                    recorded.extend(plans)
                continue
            for key in CUT_KEYS:
                if key in found:
                    found[key].complain("E101", "is of a trace, not of a mix", "remove it")
            mix = self._mix(item, found)
            if "rate" not in found and "arrivals" not in found:
                item.complain("E103", "rate is missing", "write rate: 0.9/s, or arrivals: {process: ...}")
            elif mix is not None and arrivals is not None:
                streams.append((mix, arrivals))
        return Traffic(tuple(streams), tuple(recorded))

    def _mix(self, item: Spot, found: dict[str, Spot]) -> Mix | None:
        if "mix" not in found:
            item.complain("E103", "mix is missing", "write mix: chat or the like, or trace: and a path")
            return None
        name = scalar(found["mix"], "chat")
        if name is None or name in self.mixes:
            return self.mixes.get(name or "")
        try:
            return mix_named(name)
        except ValueError as error:
            found["mix"].complain("E301", f"{quoted(name)} is no mix", str(error))
            return None

    def _arrivals(self, found: dict[str, Spot]) -> float | Arrivals | None:
        if "rate" in found and "arrivals" in found:
            found["arrivals"].complain("E210", "stands beside rate", "keep one of them")
        if "rate" in found:
            rate_hz = values.rate_hz(found["rate"])
            return None if rate_hz is None else rate_hz * self.load
        process = _process(found["arrivals"]) if "arrivals" in found else None
        return None if process is None else process.scaled(self.load)

    def _trace(self, found: dict[str, Spot]) -> list[ConversationPlan]:
        name = scalar(found["trace"], "traces/mooncake.jsonl")
        cut = Cut()
        if name is None:
            return []
        limit = values.whole(found["limit"], 1, "1000") if "limit" in found else None
        scale = values.number(found["scale"], 0.001, 1000, "0.5") if "scale" in found else None
        output = values.whole(found["output_max"], 1, "128") if "output_max" in found else None
        turns = values.whole(found["turns_max"], 1, "40") if "turns_max" in found else None
        context = values.whole(found["context_max"], 1, "65536") if "context_max" in found else None
        think = values.seconds(found["think_max"], "60s", zero=True) if "think_max" in found else None
        spacing = values.seconds(found["spacing"], "2s") if "spacing" in found else None
        cut = Cut(
            scale or cut.scale,
            output,
            cut.think_s if think is None else think,
            turns,
            context or cut.context_tokens,
        )
        try:
            plans = _loaded(self.folder / name, limit, cut, spacing or 2.0)
        except TraceError as error:
            found["trace"].complain("E305", str(error), "check the path; paths begin at the file, or at --data")
            return []
        if not plans:
            found["trace"].complain("E305", "has no conversation left after the cuts", "raise context_max")
        return list(plans)


@lru_cache(maxsize=16)
def _loaded(path: Path, limit: int | None, cut: Cut, spacing_s: float) -> tuple[ConversationPlan, ...]:
    """Every point of a sweep reads the same trace."""
    return tuple(load_traces(path, limit=limit, cut=cut, spacing_s=spacing_s))


def _process(spot: Spot) -> Arrivals | None:
    every = tuple(dict.fromkeys(key for keys in PROCESS_KEYS.values() for key in keys))
    found = fields(spot, ("process", *every))
    if found is None or not values.has_all(spot, found, ("process",)):
        return None
    name = values.one_of(found["process"], tuple(PROCESS_KEYS))
    if name is None:
        return None
    for key in found.keys() - {"process", *PROCESS_KEYS[name]}:
        found[key].complain("E101", f"is no key of {name}", f"use {', '.join(PROCESS_KEYS[name])}")
    if name == "poisson":
        rate_hz = values.rate_hz(found["rate"]) if values.has_all(spot, found, ("rate",)) else None
        return None if rate_hz is None else Poisson(rate_hz)
    if name == "mmpp":
        return _mmpp(spot, found)
    if name == "diurnal":
        return _diurnal(spot, found)
    return _flash_crowd(spot, found)


def _mmpp(spot: Spot, found: dict[str, Spot]) -> Arrivals | None:
    if not values.has_all(spot, found, ("rates", "stays")):
        return None
    rates = [values.rate_hz(item) for item in items(found["rates"]) or ()]
    stays = [values.seconds(item, "60s") for item in items(found["stays"]) or ()]
    if len(rates) != len(stays) or len(rates) < 2:
        found["stays"].complain("E302", "every state has a rate and a stay, and there are two or more", "write both")
        return None
    known = [(r, s) for r, s in zip(rates, stays, strict=True) if r is not None and s is not None]
    return Mmpp(tuple(r for r, _ in known), tuple(s for _, s in known)) if len(known) == len(rates) else None


def _diurnal(spot: Spot, found: dict[str, Spot]) -> Arrivals | None:
    if not values.has_all(spot, found, ("mean", "swing")):
        return None
    mean_hz, swing = values.rate_hz(found["mean"]), values.number(found["swing"], 0, 1, "0.8")
    period = values.seconds(found["period"], "24h") if "period" in found else 86_400.0
    peak = values.seconds(found["peak"], "14h", zero=True) if "peak" in found else 0.0
    if mean_hz is None or swing is None or period is None or peak is None:
        return None
    return Diurnal(mean_hz, swing, period, peak)


def _flash_crowd(spot: Spot, found: dict[str, Spot]) -> Arrivals | None:
    if not values.has_all(spot, found, ("base",)):
        return None
    base_hz = values.rate_hz(found["base"])
    factor = values.number(found["factor"], 1, 1000, "5") if "factor" in found else 5.0
    start = values.seconds(found["start"], "60s", zero=True) if "start" in found else 60.0
    lasting = values.seconds(found["lasting"], "60s") if "lasting" in found else 60.0
    if base_hz is None or factor is None or start is None or lasting is None:
        return None
    return FlashCrowd(base_hz, factor, start, lasting)


def read_mixes(spot: Spot) -> dict[str, Mix]:
    """The file's own mixes by name."""
    if not isinstance(spot.node, yaml.MappingNode):
        spot.complain("E104", f"must map names to mixes, not {spot.kind}", "write NAME: {first: ..., output: ...}")
        return {}
    names = tuple(str(key.value) for key, _ in spot.node.value if isinstance(key, yaml.ScalarNode))
    mixes = {name: _own_mix(name, inside) for name, inside in (fields(spot, names) or {}).items()}
    return {name: mix for name, mix in mixes.items() if mix is not None}


def _own_mix(name: str, spot: Spot) -> Mix | None:
    found = fields(spot, MIX_KEYS)
    if found is None or not values.has_all(spot, found, ("first", "output", "turns")):
        return None
    first, output, turns = values.tokens(found["first"]), values.tokens(found["output"]), values.turns(found["turns"])
    later = _later(found["later"]) if "later" in found else ()
    think = values.think_s(found["think"]) if "think" in found else LogNormal(0, 0, 0, 0)
    later_output = values.tokens(found["later_output"]) if "later_output" in found else None
    context = values.whole(found["context"], 1, "120000") if "context" in found else MAX_CONTEXT_TOKENS
    if first is None or output is None or turns is None or think is None or context is None or later is None:
        return None
    if not later and turns.high > 1:
        spot.complain("E103", "later is missing, and conversations have later turns", "write later: 40, or turns: 1")
        return None
    return Mix(name, first, later, output, think, turns.mean, turns.low, turns.high, later_output, context)


def _later(spot: Spot) -> tuple[tuple[float, LogNormal], ...] | None:
    """New tokens of a later turn: one law, or a list of them with shares that add up to 1."""
    if not isinstance(spot.node, yaml.SequenceNode):
        lengths = values.tokens(spot)
        return None if lengths is None else ((1.0, lengths),)
    alternatives: list[tuple[float, LogNormal]] = []
    listed = items(spot) or []
    for item in listed:
        found = fields(item, LATER_KEYS)
        if found is None or not values.has_all(item, found, ("share",)):
            continue
        share = values.number(found["share"], 0, 1, "0.5")
        median = values.tokens(Spot(item.path, _without(item.node, "share"), item.mark, item.problems))
        if share is not None and median is not None:
            alternatives.append((share, median))
    if len(alternatives) < len(listed):
        return None
    if abs(sum(share for share, _ in alternatives) - 1) > 1e-6:
        spot.complain("E302", "shares do not add up to 1", "write shares such as 0.9 and 0.1")
        return None
    return tuple(alternatives)


def _without(node: yaml.Node, key: str) -> yaml.Node:
    rest = [(k, v) for k, v in node.value if k.value != key]
    return yaml.MappingNode(node.tag, rest, node.start_mark, node.end_mark)
