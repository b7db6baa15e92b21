"""The state of the loop as one JSON document, and in plain words: what `/api/v1/status` serves and the page shows.

Infinity is no JSON: a percentile that is infinite, because too many turns got no answer, is written "inf".
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from math import inf

from router.policy import Policy
from router.wire import SourceView
from slos.objective import Slo
from slos.promise import promise
from slos.reduce import SloReading, driving

from .feasibility import Relief
from .intake import MAX_MODELS, RouterView
from .laws.protocol import Action
from .loop import ControlLoop
from .pin import PinFile
from .rows import sides
from .safety import Safety, State, Why
from .table_words import drift_words, fit_document
from .tick import ModelOutput

WHY = {
    Why.STARTING: "no turn has been seen yet",
    Why.NO_ROUTERS: "no router reports, so the price stays",
    Why.NO_TABLE: "no table knows this model, so no price decides its turns",
    Why.NO_LAW: "no law moves the price",
    Why.OBSERVING: "the law is shown and not heeded",
    Why.RUNNING: "the law moves the price",
    Why.LIMIT_CYCLE: "the price went to and fro, so the law takes half steps for a while",
    Why.PINNED: "the route is pinned, so the price is held",
    Why.SET_BY_HAND: "an operator set the weights to stay",
    Why.SETTLING: "the price is held until the readings are fresh",
    Why.STALLED: "the loop stood still, so the price is held until the readings are fresh",
    Why.REVERTED: "an operator's change went far over the SLO and was taken back",
    Why.NO_SAMPLES: "turns are under way and none ends, so the price is held",
    Why.STALE: "no turn has ended for a minute, so the price goes to its start",
    Why.WRONG_SIGN: "the fleet answers to the price with the wrong sign, so it goes to its start",
}
"""Clauses."""
BEHIND_S = 10.0
"""A router that has not taken a publication after this time does not get through to us, or we not to it."""


def status(loop: ControlLoop, pin: PinFile, version: str) -> dict[str, object]:
    """Everything that is known now. `pin` is what the file says, `version` that of the program."""
    now_s = loop.monotonic()
    config = loop.config
    names = list(loop.intake.tallies)
    models = {name: _model(loop, name, now_s) for name in names}
    warnings = problems(loop, pin, now_s)
    reporter, nodes = loop.intake.nodes(now_s)
    publication = loop.publication
    return {
        "title": config.title,
        "source": config.source,
        "version": version,
        "law": config.law,
        "mode": config.mode,
        "signal": "router" if loop.engine is None else "engine",
        "tick_s": config.tick_s,
        "state": loop.safety.state.value,
        "reason": loop.safety.reason.value,
        "headline": headline(loop, now_s),
        "health": "degraded" if loop.late(now_s) else "ok",
        "warnings": warnings,
        "now": iso(loop.wall()),
        "now_s": round(loop.wall(), 3),
        "started_at": iso(loop.started_at_s),
        "uptime_s": round(now_s - loop.started_s, 1),
        "tick_age_s": round(now_s - loop.ticked_s, 2),
        "ticks": loop.ticks,
        "pin": pin_document(loop, pin, now_s),
        "publication": {
            "version": publication.version,
            "policy_version": loop.policy.version,
            "sha256": loop.policy.sha256,
            "provenance": loop.policy.provenance,
            "default_price": number(loop.policy.weights.price),
            "published_at": iso(loop.published_at_s),
        },
        "store": {"on_disk": loop.store.on_disk, "path": str(loop.store.path or ""), "problem": loop.store.problem},
        "models": models,
        "routers": [_router(loop, name, view, now_s) for name, view in loop.intake.routers(now_s).items()],
        "nodes_as_seen_by": reporter,
        "nodes": [asdict(node) for node in nodes],
        "sources": [asdict(source) for source in loop.intake.sources(now_s)],
        **{name: _section(section) for name, section in loop.sections.items()},
    }


def _section(section: Callable[[], object]) -> object:
    try:
        value = section()
        json.dumps(value, allow_nan=False)
        return value
    except Exception as error:  # another part's fault must not take the status with it
        return {"error": f"{type(error).__name__}: {error}"}


def _model(loop: ControlLoop, name: str, now_s: float) -> dict[str, object]:
    output = loop.outputs.get(name)
    weights = loop.policy.weights_for(name)
    drives = driving(loop.config.slos, name)
    ttft, tpot = sides(loop.config.slos, name, output)
    readings = (
        output.readings if output is not None else tuple(SloReading(slo, None) for slo in (*drives.ttft, *drives.tpot))
    )
    relief = None if output is None else output.feasibility.relief
    turns = loop.tick_turns.get(name)
    tally = loop.intake.tallies[name]
    guard = loop.guard(name)
    return {
        "headline": sentence(guard.safety, output, loop.policy, name),
        "state": guard.safety.state.value,
        "reason": guard.safety.reason.value,
        "why": WHY[guard.safety.reason],
        "since": iso(loop.since_s[name]) if name in loop.since_s else None,
        "bounds": asdict(guard.bounds),
        "held": guard.held,
        "price": number(weights.price),
        "weights": asdict(weights),
        "action": Action.NO_EVIDENCE.value if output is None else output.action.value,
        "feasible": relief is None,
        "relief": None if relief is None else relief.value,
        "readings": [_reading(reading) for reading in readings],
        "binding": {
            "ttft": None if ttft is None else _reading(ttft),
            "tpot": None if tpot is None else _reading(tpot),
        },
        "qps": round(loop.intake.qps(name, now_s), 3),
        "waiting": 0 if turns is None else turns.waiting,
        "local_share": number(tally.local_turns / tally.later_turns if tally.later_turns else None),
        "turns": tally.turns,
        "later_turns": tally.later_turns,
        "local_turns": tally.local_turns,
        "table": [
            fit_document(each, None if each.drifted is None else iso(each.drifted.at_s))
            for each in loop.table_drift.fits()
            if each.model == name
        ],
    }


def _reading(reading: SloReading) -> dict[str, object]:
    slo = reading.slo
    return {
        "slo": slo.name,
        "signal": slo.signal.value,
        "percentile": slo.objective,
        "threshold_s": slo.threshold_s,
        "value_s": number(reading.value_s),
        "severity": number(reading.severity),
    }


def _router(loop: ControlLoop, name: str, view: RouterView, now_s: float) -> dict[str, object]:
    report = view.report
    return {
        "router": name,
        "boot": report.boot,
        "age_s": round(view.age_s(now_s), 2),
        "silent": view.silent(now_s),
        "policy_version": report.policy_version,
        "behind": behind(loop, view, now_s),
        "pin_x": report.pin_x,
        "waiting": len(report.waiting),
        "dropped_records": report.dropped_records,
    }


def behind(loop: ControlLoop, view: RouterView, now_s: float) -> bool:
    """The router has not taken the publication although it had the time."""
    late = view.report.policy_version < loop.publication.version and now_s - loop.published_s > BEHIND_S
    return late and not view.silent(now_s)


def pin_document(loop: ControlLoop, pin: PinFile, now_s: float) -> dict[str, object]:
    """What the pin file asks for, and which routers obey."""
    return {
        "x": None if pin.pin is None else pin.pin.x,
        "by": "" if pin.pin is None else pin.pin.by,
        "at": "" if pin.pin is None else pin.pin.at,
        "warning": pin.warning,
        "routers": loop.intake.pins(now_s),
        "configured_x": loop.config.pin_x,
    }


def slo_rows(loop: ControlLoop) -> list[dict[str, object]]:
    """Per SLO what is promised and what was counted since counting began, over all restarts."""
    counts = loop.intake.counts()
    rows: list[dict[str, object]] = []
    for slo in loop.config.slos:
        count = counts[slo.name]
        share = (count.valid - count.bad) / count.valid if count.valid else None
        rows.append(
            {
                "slo": slo.name,
                "signal": slo.signal.value,
                "objective": slo.objective,
                "threshold_s": slo.threshold_s,
                "promise": promise(slo),
                "match": asdict(slo.match),
                "valid": count.valid,
                "bad": count.bad,
                "good": count.valid - count.bad,
                "excluded": count.excluded,
                "good_share": number(share),
                "kept": None if share is None else share >= slo.objective,
                **({} if loop.slo_details is None else loop.slo_details(slo)),
            }
        )
    return rows


# -- words -------------------------------------------------------------------------------------------------------------


def seconds(value_s: float | None) -> str:
    """A time for people."""
    if value_s is None:
        return "unknown"
    if value_s == inf:
        return "never answered"
    return f"{value_s * 1e3:.3g} ms" if value_s < 0.9995 else f"{value_s:.3g} s"


def headline(loop: ControlLoop, now_s: float) -> str:
    """The state of everything in one or two sentences."""
    routers = loop.intake.routers(now_s)
    if not routers:
        return "No router has reported yet."
    if not loop.intake.speaking(now_s):
        return "No router reports any more. Routers that run go on with the last publication."
    pins = loop.intake.pins(now_s)
    if loop.config.observe and not pins:
        return f"Observing: {_pinned(loop.config.pin_x or 0.0)}, and nothing that the law comes to is acted upon."
    if pins or loop.config.pin_x is not None:
        shares = sorted(set(pins.values())) or [loop.config.pin_x or 0.0]
        told = " and ".join(_pinned(x) for x in shares)
        some = f" on {len(pins)} of {len(routers)} routers" if 0 < len(pins) < len(routers) else ""
        return f"Pinned{some}: {told}. The price is held."
    names = list(loop.intake.tallies)
    if not names:
        return "Waiting for the first turns."
    worst = max(names, key=lambda name: _severity(loop.outputs.get(name)))
    told = sentence(loop.guard(worst).safety, loop.outputs.get(worst), loop.policy, worst)
    return told if len(names) == 1 else f"{worst}: {told}"


def _pinned(x: float) -> str:
    if x == 0:
        return "all later turns go through a prefill node (x=0)"
    if x == 1:
        return "all later turns are local (x=1)"
    return f"{x * 100:g} % of later turns go local (x={x:g})"


def sentence(safety: Safety, output: ModelOutput | None, policy: Policy, model: str) -> str:
    """One model's state in words."""
    at = f"price {policy.weights_for(model).price:.3g}"
    if safety.reason is Why.NO_TABLE:
        at = f"later turns go local if D lacks at most {policy.without_table_tokens:,} tokens"
    if output is None:
        return f"No tick has read this model yet; {at}."
    if output.feasibility.relief is not None:
        wanted = {
            Relief.PREFILL: "No price holds the TTFT SLO",
            Relief.DECODE: "No price holds the TPOT SLO",
            Relief.BOTH: "No price holds both SLOs",
        }[output.feasibility.relief]
        return f"{wanted}: {output.feasibility.relief.value}; {at}."
    known = [r for r in (output.binding.ttft, output.binding.tpot) if r is not None]
    over = [r for r in known if (r.severity or 0.0) > 1]
    if over:
        told = " and ".join(
            f"{_percentile(r.slo)} is over its SLO ({seconds(r.value_s)} > {seconds(r.slo.threshold_s)})" for r in over
        )
        return f"{told}; {_move(safety, output.action, at)}."
    if len(known) == 2:
        return f"Both SLOs hold; {at}."
    if known:
        other = "TPOT" if output.binding.tpot is None else "TTFT"
        return f"{_percentile(known[0].slo)} is inside its SLO, too few turns for {other}; {at}."
    return f"Too few turns in the last ticks to say; {at}."


def _percentile(slo: Slo) -> str:
    return f"P{slo.objective * 100:g} {slo.signal.value.upper()}"


def _move(safety: Safety, action: Action, at: str) -> str:
    if safety.state is not State.ACTIVE:
        return f"{WHY[safety.reason]}; {at}"
    if action is Action.PROTECT_TPOT:
        return f"the price rises and less goes local; {at}"
    if action is Action.PROTECT_TTFT:
        return f"the price falls and more goes local; {at}"
    if action is Action.RETURN:
        return f"the price goes back towards the one that was right before; {at}"
    return at


def _severity(output: ModelOutput | None) -> float:
    if output is None:
        return -1.0
    found = [r.severity or 0.0 for r in (output.binding.ttft, output.binding.tpot) if r is not None]
    return max(found, default=0.0)


def problems(loop: ControlLoop, pin: PinFile, now_s: float) -> list[str]:
    """What an operator should know and may have to mend, worst first."""
    found: list[str] = []
    intake, totals = loop.intake, loop.intake.totals
    if loop.late(now_s):
        found.append(f"No tick for {now_s - loop.ticked_s:.0f} s: the price does not follow the SLOs.")
    if loop.store.problem:
        found.append(loop.store.problem + ".")
    if loop.store.damage:
        found.append(loop.store.damage + ".")
    for name, view in intake.routers(now_s).items():
        if view.silent(now_s):
            found.append(f"Router {name} has not reported for {view.age_s(now_s):.0f} s.")
        elif view.doubled(now_s):
            found.append(f"Two processes report as router {name}: give each a name of its own.")
        elif behind(loop, view, now_s):
            version = view.report.policy_version
            found.append(f"Router {name} still acts on version {version}, not on {loop.publication.version}.")
        found += [_source_words(source, name, view.age_s(now_s)) for source in view.report.sources if source.problem]
    if pin.warning:
        found.append(pin.warning + ".")
    obeying = intake.pins(now_s)
    for name in sorted(intake.speaking(now_s)):
        if pin.pin is not None and obeying.get(name) != pin.pin.x:
            found.append(f"The pin asks for x={pin.pin.x:g}, which router {name} does not report (yet).")
    for name, output in loop.outputs.items():
        safety = loop.guard(name).safety
        if safety.state is State.FALLBACK_HOME:
            found.append(f"{name}: {WHY[safety.reason]}.")
        if output.feasibility.relief is not None and safety.state is not State.PINNED:  # under a pin nobody judges it
            found.append(f"{name}: the SLOs cannot be held by routing: {output.feasibility.relief.value}.")
    for fit in loop.table_drift.fits():
        if fit.drifted is not None:
            found.append(f"{fit.model}: since {iso(fit.drifted.at_s)} {drift_words(fit)}.")
    if loop.config.mode == "paper" and loop.config.law is not None:
        found.append("mode paper: the weights stay as configured, for no law moves them in this version.")
    for name, tally in intake.tallies.items():
        drives = driving(loop.config.slos, name)
        missing = [side for side, rows in (("TTFT", drives.ttft), ("TPOT", drives.tpot)) if not rows]
        if missing and tally.turns and loop.config.moves:
            found.append(f"{name}: no {' and no '.join(missing)} SLO is declared, so nothing drives that side.")
    if intake.unknown_slos:
        found.append(f"Routers count SLOs that are not declared here: {_listed(intake.unknown_slos)}.")
    if loop.reload_failed:
        found.append(loop.reload_failed)
    for name, slos in intake.differing(now_s).items():
        found.append(f"Router {name} follows another version of {_listed(slos)}; what it counts of it is left out.")
    if totals.records_of_refused_models:
        found.append(
            f"{totals.records_of_refused_models} turns of models beyond the first {MAX_MODELS} were not followed."
        )
    if totals.dropped_records:
        found.append(f"Routers had to drop {totals.dropped_records} turns that this process did not take in time.")
    if loop.store.dropped_rows:
        found.append(f"{loop.store.dropped_rows} rows of history were dropped, for they could not be written.")
    return found


def _source_words(source: SourceView, router: str, since_s: float) -> str:
    """What is wrong with a source of nodes, and how old what counts of it is."""
    age = "" if source.age_s is None else f", read {source.age_s + since_s:.0f} s ago"
    return f"Nodes from {source.name}, router {router}: {source.problem}{age}."


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)[:5])


# -- values ------------------------------------------------------------------------------------------------------------


def number(value: float | None) -> float | str | None:
    """A number for JSON: six digits, "inf" for infinity."""
    if value is None:
        return None
    return "inf" if value == inf else float(f"{value:.6g}")


def iso(at_s: float) -> str:
    """Wall time in UTC, to the second."""
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC).isoformat(timespec="seconds")
