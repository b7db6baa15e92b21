"""The alerting rules.

    SLOBurn               the budget is spent too fast over a long and a short window, and enough turns were bad
    SLOBreach             the last slice breaks the promise beyond doubt (`recording.py` says what that is worth)
    SLONoTraffic          no turn was judged, and at this time of yesterday there were some
    SLOEvaluationStale    the counters stand still: no ticks, or no router reports
    SLOControllerAbsent   nobody exports them
    TrimtabTableDrift     latencies have left what the table predicts, by the controller's own alarm

A burn factor that cannot be reached (all bad is 1 / the share that may be bad) is left out; one below 1 was raised to 1
by `Burn.factor`, for inside its budget nobody need be told. With a budget by slices the same windows count slices, each
at least two of them long. Having no traffic and being blind are told apart, by tickets unless the file says otherwise,
and a controller that is restarted is not absent.
"""

import math

from ..alerts import Gate
from ..allowance import Method
from ..objective import Signal, Slo
from ..policy import Burn, Declaration, Severity
from ..wording import percent
from . import recording
from .layout import Alert, Group, LeftOut
from .options import RuleOptions
from .promql import (
    BAD_LEFT,
    BUDGET_LEFT,
    CONTROLLER,
    DRIFTED,
    EVALUATED,
    EVIDENCE,
    SLICE_BAD,
    SLICE_MEASURED,
    VALID,
    also,
    bad_events,
    duration,
    error_ratio,
    increase,
    number,
    one_of,
    valid_events,
)

STALE_S = 180.0
ABSENT_S = 300.0
"""A restart takes seconds, a deployment a minute or two."""
EXPECTED_TURNS = 10
"""Where so many were usual, none at all is a chance of one in 20,000."""
BLIND = "Routers serve on; only nobody counts what they do. See the alerts of the operator's guide."


def group(declaration: Declaration, options: RuleOptions) -> tuple[Group, tuple[LeftOut, ...]]:
    """The alerts of every SLO, and those that could not be made."""
    rules: list[Alert] = []
    left_out: list[LeftOut] = []
    for slo in declaration.slos:
        for burn in declaration.alerts.burns:
            made = _burn(slo, burn, declaration, options)
            if isinstance(made, LeftOut):
                left_out.append(made)
            else:
                rules.append(made)
        rules.append(_breach(slo, declaration, options))
    return Group("slo-alerts", options.interval_s, tuple(rules)), tuple(left_out)


def health(declaration: Declaration, options: RuleOptions) -> Group:
    """What says that the other alerts are blind."""
    selected = recording.counters(options)
    policy = declaration.alerts.no_data
    labels = _labels(declaration, options, "health", policy.severity.value)
    every = also(selected, one_of("slo", (slo.name for slo in declaration.slos)))
    after = duration(policy.after_s)
    now = increase(VALID, every, policy.after_s)
    yesterday = f"sum by (slo) (increase({VALID}{every}[{after}] offset 1d)) >= {EXPECTED_TURNS}"
    traffic = Alert(
        "SLONoTraffic",
        f"{now} == 0\nand\n{yesterday}",
        options.interval_s * 2,
        0.0,
        labels,
        {
            "summary": f"{{{{ $labels.slo }}}}: no turn in the last {after}, and some at this time of yesterday",
            "description": "Nothing was judged, so nothing is known of the promise. Look at what sends the traffic.",
            **_urls(declaration, options, "{{ $labels.slo }}"),
        },
    )
    stale = Alert(
        "SLOEvaluationStale",
        f"time() - max({EVALUATED}{selected}) > {number(STALE_S)}",
        60.0,
        0.0,
        labels,
        {
            "summary": "SLOs were not evaluated for {{ $value | humanizeDuration }}: no ticks, or no router reports",
            "description": BLIND,
            **_urls(declaration, options, None),
        },
    )
    absent = Alert(
        "SLOControllerAbsent",
        f"absent({CONTROLLER}{selected})",
        min(ABSENT_S, policy.after_s),
        0.0,
        labels,
        {
            "summary": f"nobody exports the SLOs' counters as job {_plain(options.job)}",
            "description": BLIND,
            **_urls(declaration, options, None),
        },
    )
    return Group("slo-health", options.interval_s, (traffic, stale, absent))


def system(declaration: Declaration, options: RuleOptions) -> Group:
    """What is wrong with what decides, and not with a promise."""
    drift = Alert(
        "TrimtabTableDrift",
        f"max by (model, route, direction) ({DRIFTED}{recording.counters(options)}) == 1",
        0.0,
        0.0,
        _labels(declaration, options, "system", Severity.TICKET.value),
        {
            "summary": "{{ $labels.model }}: latencies of {{ $labels.route }} have become {{ $labels.direction }} than "
            "the table predicts",
            "description": "Find out what has changed, mend it, or measure again: trimtab calibrate.",
            **_urls(declaration, options, None),
        },
    )
    return Group("trimtab-system", options.interval_s, (drift,))


def _burn(slo: Slo, burn: Burn, declaration: Declaration, options: RuleOptions) -> Alert | LeftOut:
    budget, one = slo.budget, recording.of(slo, declaration, options)
    factor = burn.factor(budget.over_s)
    by_slices = budget.method is Method.SLICES
    allowed = round(1.0 - budget.good_slices, 12) if by_slices else slo.epsilon
    long_s, short_s = burn.long_s, burn.short_s
    if by_slices:
        long_s, short_s = max(long_s, 2 * budget.slice_s), max(short_s, 2 * budget.slice_s)
    limit, long, short = number(factor * allowed), duration(long_s), duration(short_s)
    if factor * allowed >= 1.0:
        why = f"{number(factor)} times the allowed {percent(allowed)} is all there is or more, so it could never fire"
        return LeftOut(slo.name, f"burn alert over {duration(burn.long_s)}", why)
    windows = (long_s, short_s)
    shares = [
        f"sum_over_time({SLICE_BAD}{one}[{duration(w)}]) / (sum_over_time({SLICE_MEASURED}{one}[{duration(w)}]) > 0)"
        if by_slices
        else f"{error_ratio(w)}{one}"
        for w in windows
    ]
    enough = f"{bad_events(burn.long_s)}{one} >= {declaration.alerts.min_bad_events}"
    unit = f"slices of {duration(budget.slice_s)}" if by_slices else "turns"
    left, left_turns = (recording.lately(name, slo, declaration, options) for name in (BUDGET_LEFT, BAD_LEFT))
    gone_in = f"({left} > 0) * {number(budget.over_s * allowed)} / ({shares[0]})"
    known = f"Left of the budget of {duration(budget.over_s)}: "
    above = f"More than {number(factor)} times the allowed share" if factor > 1.0 else "More than the allowed share"
    description = (
        f"Promised: {promise(slo)}. {above}, over {long} and over {short}. "
        + _asked(left, "humanizePercentage", known, ".", "How much of the budget is left is not known yet.")
        + ("" if by_slices else _asked(left_turns, "printf `%.0f`", " ", " more turns may be bad.", ""))
        + _asked(gone_in, "humanizeDuration", " At this pace it is gone in ", ".", "")
    )
    return Alert(
        "SLOBurn",
        "\nand\n".join([*(f"({share}) > {limit}" if by_slices else f"{share} > {limit}" for share in shares), enough]),
        burn.for_s,
        options.keep_firing_s,
        {
            **_labels(declaration, options, "burn", burn.severity.value),
            "slo": slo.name,
            "long_window": long,
            "short_window": short,
            "burn_factor": number(factor),
        },
        {
            "summary": f"{slo.name}: {{{{ $value | humanizePercentage }}}} of the {unit} were bad in the last {long}, "
            f"where {percent(allowed)} may be",
            "description": description,
            **_urls(declaration, options, slo.name),
        },
    )


def _breach(slo: Slo, declaration: Declaration, options: RuleOptions) -> Alert:
    breach, gate = declaration.alerts.breach, Gate(confidence=declaration.alerts.breach.confidence)
    window_s, one = slo.budget.slice_s, recording.of(slo, declaration, options)
    window = duration(window_s)
    conditions = (
        f"{error_ratio(window_s)}{one} > {number(slo.epsilon)}",
        f"{EVIDENCE}{one} > {number(nats(gate.confidence))}",
        f"{valid_events(window_s)}{one} >= {gate.min_valid}",
        f"{bad_events(window_s)}{one} >= {gate.min_bad}",
    )
    turns = _asked(f"{valid_events(window_s)}{one}", "printf `%.0f`", " of ", " turns", " of the turns")
    return Alert(
        "SLOBreach",
        "\nand\n".join(conditions),
        breach.for_s,
        breach.clear_s,
        {**_labels(declaration, options, "breach", breach.severity.value), "slo": slo.name},
        {
            "summary": f"{slo.name}: {{{{ $value | humanizePercentage }}}}{turns} were bad in the last {window}, "
            f"where {percent(slo.epsilon)} may be",
            "description": f"Promised: {promise(slo)}. If it were kept, so many bad turns had a chance below "
            f"{number(1.0 - gate.confidence)}.",
            **_urls(declaration, options, slo.name),
        },
    )


def nats(confidence: float) -> float:
    """How much evidence that confidence asks for: -ln(1 - confidence)."""
    return -math.log(1.0 - confidence)


def promise(slo: Slo) -> str:
    """As a file has it: p99(ttft) <= 500ms."""
    share = f"{100.0 * slo.objective:.10g}"
    if slo.signal is Signal.SUCCESS or slo.threshold_s is None:
        return f"{slo.signal.value} >= {share}%"
    return f"p{share}({slo.signal.value}) <= {duration(slo.threshold_s)}"


def _asked(expr: str, shown_by: str, before: str, after: str, otherwise: str) -> str:
    """A template that asks Prometheus when the alert fires, and says `otherwise` where it does not know."""
    asked = f"{{{{ with query {_go(expr)} }}}}{before}{{{{ . | first | value | {shown_by} }}}}{after}"
    return asked + (f"{{{{ else }}}}{otherwise}" if otherwise else "") + "{{ end }}"


def _go(expr: str) -> str:
    """A string of Go's templates; values of labels may hold a backquote."""
    if "`" not in expr:
        return f"`{expr}`"
    escaped = expr.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _plain(text: str) -> str:
    """Text that stands for itself in a template, which Prometheus takes labels and annotations for."""
    return text.replace("{{", '{{ "{{" }}')


def _labels(declaration: Declaration, options: RuleOptions, family: str, severity: str) -> dict[str, str]:
    given = {**dict(declaration.labels), **recording.result_labels(declaration, options)}
    own = {"severity": severity, "family": family, "evaluator": "prometheus"}
    return {**{name: _plain(value) for name, value in given.items()}, **own}


def _urls(declaration: Declaration, options: RuleOptions, name: str | None) -> dict[str, str]:
    """Of an SLO, or of the whole where there is no `name`: then without pages of one SLO."""
    urls = {"runbook_url": declaration.alerts.runbook, "dashboard_url": options.dashboard}
    return {
        key: _plain(url).replace("{slo}", name or "")
        for key, url in urls.items()
        if url and (name is not None or "{slo}" not in url)
    }
