"""The recording rules.

    slo-sli        the share of bad turns over every window that an alert looks at, and the counts behind it
    slo-period     what is left of budgets by requests: increases of some minutes, and their sums over the period
    slo-slices-W   slices of W judged good or bad, and what is left of budgets by slices

Sums and not averages of ratios: 20 healthy hours and a quiet bad one are .05 % bad, where the average of the ratios of
every five minutes would be 4.6 %. A window without turns has no ratio, rather than NaN: `> 0` in the denominator.

The evidence of a breach is Chernoff's bound: if a share e may be bad, k bad of n have a chance of at most
exp(-n D(k/n, e)), with D(p, e) = p ln(p/e) + (1 - p) ln((1 - p)/(1 - e)). `slo:breach_evidence:nats` is n D, 0 inside
the objective. It is never more than what the exact binomial test of `slos/alerts.py` finds, so a threshold on it alarms
no oftener than that test does; PromQL has no binomial.
"""

from ..allowance import Method
from ..objective import Slo
from ..policy import Declaration
from .layout import Group, Record
from .options import RuleOptions
from .promql import (
    BAD,
    BAD_LEFT,
    BUDGET_LEFT,
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
    over,
    selector,
    valid_events,
)

ALMOST_ALL = 0.999999
"""Where every turn was bad: the logarithm of none good would be infinite."""


def groups(declaration: Declaration, options: RuleOptions) -> tuple[Group, ...]:
    """Those above; a group without rules has none in the file either."""
    by_slices = [slo for slo in declaration.slos if slo.budget.method is Method.SLICES]
    lengths = sorted({slo.budget.slice_s for slo in by_slices})
    return (
        Group("slo-sli", options.interval_s, _indicators(declaration, options)),
        Group("slo-period", options.period_interval_s, _period(declaration, options)),
        *(
            Group(
                f"slo-slices-{duration(s)}",
                s,
                _slices([x for x in by_slices if x.budget.slice_s == s], declaration, options),
            )
            for s in lengths
        ),
    )


def result_labels(declaration: Declaration, options: RuleOptions) -> dict[str, str]:
    """What tells the results of one installation from another's."""
    service = {"service": declaration.service} if declaration.service else {}
    return {**service, **dict(options.match)}


def of(slo: Slo, declaration: Declaration, options: RuleOptions) -> str:
    """The selector of one SLO's results."""
    return selector(("slo", slo.name), *result_labels(declaration, options).items())


def lately(name: str, slo: Slo, declaration: Declaration, options: RuleOptions) -> str:
    """The newest value of what is recorded less often than alerts are evaluated, none after three times without."""
    by_slices = slo.budget.method is Method.SLICES
    every_s = slo.budget.slice_s if by_slices else options.period_interval_s
    return f"last_over_time({name}{of(slo, declaration, options)}[{duration(3 * every_s)}])"


def counters(options: RuleOptions) -> str:
    """The selector of the counters, of all SLOs."""
    return selector(("job", options.job), *options.match)


def windows(declaration: Declaration) -> tuple[float, ...]:
    """Every window of an alert, the shortest first."""
    burns = declaration.alerts.burns
    found = {w for burn in burns for w in (burn.long_s, burn.short_s)} | {
        slo.budget.slice_s for slo in declaration.slos
    }
    return tuple(sorted(found))


def _indicators(declaration: Declaration, options: RuleOptions) -> tuple[Record, ...]:
    labels = result_labels(declaration, options)
    selected = also(counters(options), one_of("slo", (slo.name for slo in declaration.slos)))
    long = {burn.long_s for burn in declaration.alerts.burns}
    slices = {slo.budget.slice_s for slo in declaration.slos}
    rules = []
    for window_s in windows(declaration):
        w = duration(window_s)
        bad, valid = (f"sum by (slo) (rate({counter}{selected}[{w}]))" for counter in (BAD, VALID))
        rules.append(Record(error_ratio(window_s), f"{bad}\n/\n({valid} > 0)", labels))
        if window_s in long | slices:
            rules.append(Record(bad_events(window_s), increase(BAD, selected, window_s), labels))
        if window_s in slices:
            rules.append(Record(valid_events(window_s), increase(VALID, selected, window_s), labels))
    return (*rules, *(_evidence(slo, declaration, options) for slo in declaration.slos))


def _evidence(slo: Slo, declaration: Declaration, options: RuleOptions) -> Record:
    selected, window_s = of(slo, declaration, options), slo.budget.slice_s
    share = f"clamp({error_ratio(window_s)}{selected}, {number(slo.epsilon)}, {number(ALMOST_ALL)})"
    expr = (
        f"{valid_events(window_s)}{selected} * (\n"
        f"  {share} * ln({share} / {number(slo.epsilon)})\n"
        f"  + (1 - {share}) * ln((1 - {share}) / {number(slo.objective)})\n"
        ")"
    )
    return Record(EVIDENCE, expr, {**result_labels(declaration, options), "slo": slo.name})


def _period(declaration: Declaration, options: RuleOptions) -> tuple[Record, ...]:
    slos = [slo for slo in declaration.slos if slo.budget.method is Method.REQUESTS]
    if not slos:
        return ()
    labels = result_labels(declaration, options)
    selected = also(counters(options), one_of("slo", (slo.name for slo in slos)))
    step_s = options.period_interval_s
    bad, valid = (f"slo:{part}_events:every{duration(step_s)}" for part in ("bad", "valid"))
    rules = [
        Record(bad, increase(BAD, selected, step_s), labels),
        Record(valid, increase(VALID, selected, step_s), labels),
    ]
    for over_s in sorted({slo.budget.over_s for slo in slos}):
        alike = [slo for slo in slos if slo.budget.over_s == over_s]
        some = selector(*labels.items()) if labels else "{}"
        matcher = one_of("slo", (slo.name for slo in alike))
        some = also(some, matcher) if labels else f"{{{matcher}}}"
        w = duration(over_s)
        expr = f"sum_over_time({bad}{some}[{w}])\n/\n(sum_over_time({valid}{some}[{w}]) > 0)"
        rules.append(Record(over(over_s), expr, labels))
        for slo in alike:
            one = of(slo, declaration, options)
            left = f"1 - {over(over_s)}{one} / {number(slo.epsilon)}"
            count = f"{number(slo.epsilon)} * sum_over_time({valid}{one}[{w}]) - sum_over_time({bad}{one}[{w}])"
            named = {**labels, "slo": slo.name}
            rules += [Record(BUDGET_LEFT, left, named), Record(BAD_LEFT, count, named)]
    return tuple(rules)


def _slices(slos: list[Slo], declaration: Declaration, options: RuleOptions) -> tuple[Record, ...]:
    rules = []
    for slo in slos:
        labels = {**result_labels(declaration, options), "slo": slo.name}
        budget, one = slo.budget, of(slo, declaration, options)
        selected = also(counters(options), one_of("slo", [slo.name]))
        valid, bad = (increase(counter, selected, budget.slice_s) for counter in (VALID, BAD))
        w = duration(budget.over_s)
        rules += [
            Record(SLICE_MEASURED, f"{valid} >= bool {number(budget.min_samples)}", labels),
            Record(
                SLICE_BAD, f"{SLICE_MEASURED}{one}\n* on (slo) ({bad} > bool ({number(slo.epsilon)} * {valid}))", labels
            ),
            Record(
                over(budget.over_s),
                f"sum_over_time({SLICE_BAD}{one}[{w}])\n/\n(sum_over_time({SLICE_MEASURED}{one}[{w}]) > 0)",
                labels,
            ),
            Record(BUDGET_LEFT, f"1 - {over(budget.over_s)}{one} / {number(1.0 - budget.good_slices)}", labels),
        ]
    return tuple(rules)
