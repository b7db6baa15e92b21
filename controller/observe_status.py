"""What observe mode shows: a section of the status document, one sentence per model, and metrics for a registry.

    join(loop, collect=registry.register)

Every number of the other policy is an estimate and says so. Names and help are in `SPECS`; label values come from
configuration and enums only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from math import inf

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from estimators.protocol import Estimate
from router.record import TurnRecord
from slos.counts import Count

from .laws.protocol import Action
from .loop import ControlLoop
from .metrics import Kind, Spec
from .observe import MAX_TURNS, PERCENTILE, WINDOW_S, Caution, Misses, Observed, Pair, Shadow
from .status import number, seconds
from .tick import Outputs

LABEL = (
    "estimate: served turns replayed on virtual queues; left out are turns that would have come sooner, larger or "
    "smaller decode batches, and KV memory"
)
CAUTIONS: Mapping[Caution, str] = {
    Caution.FEW_TURNS: "too few turns yet for an upper bound of a P99",
    Caution.NO_TABLE: "turns without a table for their model are taken as they were",
    Caution.MODEL_OFF: "the table predicts other times than are measured: calibrate this fleet first",
    Caution.OVERLOADED: "the fleet is overloaded as it is run: take the direction, not the figures",
}
ACTED, SHADOW = "acted", "shadow"

PRICE = Spec("trimtab_observe_price", Kind.GAUGE, "", ("model",), "The price at which the law in shadow stands.")
TURNS = Spec("trimtab_observe_turns", Kind.GAUGE, "", ("model",), "Turns in the window that is compared.")
DIFFERING = Spec(
    "trimtab_observe_differing_ratio",
    Kind.GAUGE,
    "ratio",
    ("model",),
    "Share of the turns that could go either way that would have gone the other way.",
)
P99 = Spec(
    "trimtab_observe_p99_seconds",
    Kind.GAUGE,
    "seconds",
    ("model", "signal", "policy", "bound"),
    "P99 TTFT of later turns and P99 TPOT as they were (acted) and, estimated, as they would have been (shadow).",
)
EXCEEDANCE = Spec(
    "trimtab_observe_exceedance_ratio",
    Kind.GAUGE,
    "ratio",
    ("model", "slo", "policy"),
    "Share of the window's turns that miss the SLO, as it was (acted) and, estimated, as it would have been (shadow).",
)
CAUTION = Spec("trimtab_observe_caution", Kind.GAUGE, "", ("model", "caution"), "1 while the estimate is worth less.")
REFUSED = Spec(
    "trimtab_observe_refused_turns", Kind.COUNTER, "", (), "Turns not compared: of models beyond those followed."
)
SPECS = (PRICE, TURNS, DIFFERING, P99, EXCEEDANCE, CAUTION, REFUSED)


def join(loop: ControlLoop, collect: Callable[[Collector], object]) -> Shadow:
    """Let a law in shadow see what `loop` sees. What it comes to is shown, and goes nowhere else."""
    shadow = Shadow(replace(loop.policy, provenance="shadow"), loop.law, loop.config.slos)

    def take(records: tuple[TurnRecord, ...], now_s: float) -> None:
        shadow.take(records, now_s)

    def ticked(now_s: float, outputs: Outputs, counts: Mapping[str, Count]) -> None:
        shadow.tick(now_s)

    loop.listeners.append(take)
    loop.observers.append(ticked)
    loop.redeclared.append(lambda declaration: shadow.redeclare(declaration.slos))
    loop.sections["observe"] = lambda: observe_status(shadow, loop.config.pin_x, loop.monotonic())
    collect(ObserveCollector(shadow, loop.monotonic))
    return shadow


def observe_status(shadow: Shadow, pin_x: float | None, now_s: float) -> dict[str, object]:
    """The section `observe` of the status document."""
    return {
        "label": LABEL,
        "acts_as": {"pin_x": pin_x},
        "window_s": WINDOW_S,
        "window_turns": MAX_TURNS,
        "percentile": PERCENTILE,
        "models": {name: _model(shadow, name, now_s) for name in shadow.models},
    }


def sentence(shadow: Shadow, model: str, now_s: float) -> str:
    """What the law in shadow would have done to one model, in words."""
    seen, price = shadow.observed(model, now_s), shadow.policy.weights_for(model).price
    at = f"price {price:.3g}"
    if seen.differing_share is None:
        return f"Nothing to compare yet: turns are compared some 20 s after they end; {at}."
    parts = [f"At {at}, {seen.differing_share * 100:.0f} % of the turns that could would have gone another way"]
    for name, pair in (("TTFT", seen.ttft), ("TPOT", seen.tpot)):
        if pair.acted.value is not None:
            parts.append(f"P99 {name} {seconds(pair.acted.value)} → {seconds(pair.shadow.value)}")
    return ", ".join(parts) + " (estimate)."


class ObserveCollector(Collector):
    """The metrics of observe mode, read off when asked."""

    def __init__(self, shadow: Shadow, clock: Callable[[], float]) -> None:
        self._shadow = shadow
        self._clock = clock

    def describe(self) -> list[Metric]:
        """Names only, so that registering needs no values."""
        return [_family(spec, ()) for spec in SPECS]

    def collect(self) -> Iterator[Metric]:
        """Every metric of SPECS, with its values now."""
        shadow, now_s = self._shadow, self._clock()
        seen = {name: shadow.observed(name, now_s) for name in shadow.models}
        yield _family(PRICE, [((name,), shadow.policy.weights_for(name).price) for name in seen])
        yield _family(TURNS, [((name,), one.turns) for name, one in seen.items()])
        shares = [(name, one.differing_share) for name, one in seen.items()]
        yield _family(DIFFERING, [((name,), share) for name, share in shares if share is not None])
        yield _family(P99, [(labels, value) for name, one in seen.items() for labels, value in _p99s(name, one)])
        yield _family(
            EXCEEDANCE,
            [
                ((name, misses.slo.name, policy), share)
                for name, one in seen.items()
                for misses in one.misses
                for policy, share in ((ACTED, misses.share.acted.value), (SHADOW, misses.share.shadow.value))
                if share is not None
            ],
        )
        yield _family(
            CAUTION,
            [((name, each.value), each in one.cautions) for name, one in seen.items() for each in Caution],
        )
        yield _family(REFUSED, [((), shadow.refused)])


def _p99s(model: str, seen: Observed) -> Iterator[tuple[tuple[str, ...], float]]:
    for signal, pair in (("ttft", seen.ttft), ("tpot", seen.tpot)):
        for policy, estimate in ((ACTED, pair.acted), (SHADOW, pair.shadow)):
            if estimate.value is None:
                continue
            high = inf if estimate.high is None else estimate.high
            bounds = {"low": estimate.low, "point": estimate.value, "high": high}
            for bound, value in bounds.items():
                if value is not None:
                    yield (model, signal, policy, bound), value


def _model(shadow: Shadow, name: str, now_s: float) -> dict[str, object]:
    seen, output = shadow.observed(name, now_s), shadow.outputs.get(name)
    relief = None if output is None else output.feasibility.relief
    return {
        "headline": sentence(shadow, name, now_s),
        "price": number(shadow.policy.weights_for(name).price),
        "action": Action.NO_EVIDENCE.value if output is None else output.action.value,
        "relief": None if relief is None else relief.value,
        "turns": seen.turns,
        "waiting_turns": shadow.waiting(name),
        "span_s": round(seen.span_s, 1),
        "decided": seen.decided,
        "differing": seen.differing,
        "differing_share": number(seen.differing_share),
        "ttft": _sides(seen.ttft, "_s"),
        "tpot": _sides(seen.tpot, "_s"),
        "slos": [_misses(misses) for misses in seen.misses],
        "measured_over_predicted_ttft": number(seen.off),
        "cautions": [{"caution": each.value, "what": CAUTIONS[each]} for each in seen.cautions],
    }


def _misses(misses: Misses) -> dict[str, object]:
    slo = misses.slo
    return {
        "slo": slo.name,
        "signal": slo.signal.value,
        "threshold_s": slo.threshold_s,
        "allowed_share": number(slo.epsilon),
        "turns": misses.valid,
        "missed": {ACTED: misses.acted, SHADOW: misses.shadow},
        "share": _sides(misses.share, ""),
    }


def _sides(pair: Pair, unit: str) -> dict[str, object]:
    return {ACTED: _plain(pair.acted, unit), SHADOW: _plain(pair.shadow, unit)}


def _plain(estimate: Estimate, unit: str) -> dict[str, object]:
    values = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
    return {**{name + unit: number(value) for name, value in values.items()}, "n": int(estimate.n)}


def _family(spec: Spec, values: Iterable[tuple[tuple[str, ...], float]]) -> GaugeMetricFamily | CounterMetricFamily:
    kind = CounterMetricFamily if spec.kind is Kind.COUNTER else GaugeMetricFamily
    family = kind(spec.name, spec.help, labels=spec.labels)
    for labels, value in values:
        family.add_metric(labels, float(value))
    return family
