"""A declaration in plain words: per SLO what counts as good, bad and not at all, how much the budget allows, and what
each alert needs.

With an expected rate of turns the shares become numbers of turns a day; without one they stay shares. Arithmetic only:
a burn factor f needs a share f x epsilon of bad turns in both windows, and the breach rule needs the smallest number of
bad turns in a slice that has a chance below 1 - confidence while the promise is kept.
"""

from collections.abc import Iterator

from estimators.binomial import tail

from .alerts_spec import never_fires
from .allowance import Method
from .objective import ASKABLE, STREAMED, Condition, Signal, Slo
from .phrases import span
from .policy import DAY_S, Breach, Burn, Declaration
from .promise import promise, seconds
from .revisions import revision

_WHAT = {
    Signal.TTFT: "the first token came",
    Signal.TPOT: "on average a token came",
    Signal.ITL: "on average a token came",
    Signal.E2E: "the whole answer came",
}
_HEADERS = {Signal.TTFT: "x-slo-ttft-ms", Signal.TPOT: "x-slo-tpot-ms", Signal.ITL: "x-slo-tpot-ms"}


def explain(declaration: Declaration, rps: float | None = None) -> str:
    """All SLOs, a paragraph each. `rps`: turns a second that each of them covers, else the declaration's own."""
    rate = rps if rps is not None else declaration.rps
    paragraphs = ["\n".join(_about(slo, declaration, rate)) for slo in declaration.slos]
    if rate is None:
        paragraphs.append("Give --rps, or traffic: {rps: 2} in the file, for numbers of turns.")
    return "\n\n".join(paragraphs)


def _about(slo: Slo, declaration: Declaration, rps: float | None) -> Iterator[str]:
    yield f"{slo.name}: {promise(slo)}"
    if slo.description:
        yield _line("for", slo.description)
    yield _line("good", "; and ".join(_good(each) for each in slo.needed))
    yield _line("bad", "; ".join(_bad(slo)))
    yield _line("excluded", "; ".join(_excluded(slo)))
    yield _line("budget", _budget(slo, rps))
    yield _line("a slice", _slice(slo, rps))
    alerts = declaration.alerts
    yield _line("breach", _breach(slo, alerts.breach, rps))
    for burn in alerts.burns:
        yield _line("burn", _burn(slo, burn, alerts.min_bad_events, rps))
    yield _line(
        "no data",
        f"{alerts.no_data.severity}: nothing measured for {span(alerts.no_data.after_s)} although turns came in",
    )
    if alerts.runbook is not None:
        yield _line("runbook", alerts.runbook.replace("{slo}", slo.name))
    yield _line("revision", revision(slo))


def _line(head: str, text: str) -> str:
    return f"  {head:9s} {text}"


def _limit(condition: Condition) -> str:
    if condition.threshold_s is None:
        return f"the {_HEADERS[condition.signal]} that the request carried"
    return seconds(condition.threshold_s)


def _good(condition: Condition) -> str:
    if condition.signal is Signal.SUCCESS:
        return "the turn was answered"
    how = "every" if condition.signal in (Signal.TPOT, Signal.ITL) else "within"
    return f"{_WHAT[condition.signal]} {how} {_limit(condition)}" + (" or sooner" if how == "every" else "")


def _bad(slo: Slo) -> Iterator[str]:
    signals = [each.signal for each in slo.needed]
    if signals != [Signal.SUCCESS]:
        yield "a condition was missed" if slo.conditions else "later than that"
    yield "it failed or timed out, however fast it was"
    if Signal.SUCCESS in signals:
        yield "the router refused it"
    if Signal.TTFT in signals or Signal.E2E in signals:
        yield "its client left after waiting as long as promised"


def _excluded(slo: Slo) -> Iterator[str]:
    signals = [each.signal for each in slo.needed]
    yield "what the client did wrong (4xx)"
    if Signal.SUCCESS not in signals:
        yield "turns that the router refused, which spend the budget of a success SLO"
    if Signal.TTFT in signals or Signal.E2E in signals:
        yield "a client that left sooner"
    elif Signal.SUCCESS in signals:
        yield "a client that left"
    if any(signal in STREAMED for signal in signals) and slo.match.streaming is None:
        yield "turns that do not stream"
    if Signal.TPOT in signals or Signal.ITL in signals:
        yield "answers of one token"
    asked = sorted({_HEADERS[signal] for signal in signals if signal in ASKABLE})
    if asked and slo.match.asked is None:
        yield f"turns that carry {' or '.join(asked)}"


def _budget(slo: Slo, rps: float | None) -> str:
    budget, share = slo.budget, slo.spendable
    over = span(budget.over_s)
    if budget.method is Method.SLICES:
        slices = budget.over_s / budget.slice_s
        bad = slices * share
        told = f"by slices over {over}: {_percent(share)} of the measured ones may be bad"
        return f"{told}, {bad:,.1f} of {slices:,.0f} or {_time(bad * budget.slice_s)} if all are measured"
    told = f"by requests over {over}: {_percent(share)} of the turns may be bad"
    whole = f"{_time(budget.over_s * share)} of nothing but bad turns"
    if rps is None:
        return f"{told}, as many as in {whole}"
    day = f"{rps * DAY_S * share:,.0f} of {rps * DAY_S:,.0f} a day"
    return f"{told}; at {rps:g} a second {day}, {rps * budget.over_s * share:,.0f} in {over}, as many as in {whole}"


def _slice(slo: Slo, rps: float | None) -> str:
    budget = slo.budget
    told = f"{span(budget.slice_s)}, unknown below {budget.min_samples} turns"
    if rps is None:
        return told
    turns = rps * budget.slice_s
    known = "" if turns >= budget.min_samples else ", which is always"
    return f"{told}{known}; at {rps:g} a second it holds {turns:,.0f}"


def _breach(slo: Slo, breach: Breach, rps: float | None) -> str:
    lasting = span(breach.for_s) if breach.for_s else "one evaluation"
    told = f"{breach.severity}: more bad turns in a slice than chance allows (confidence {breach.confidence:g})"
    told = f"{told} for {lasting}"
    turns = None if rps is None else round(rps * slo.budget.slice_s)
    if turns is None:
        return told
    if turns < slo.budget.min_samples:
        return f"{told}; at {rps:g} a second never, for a slice holds too few"
    bad = _provable(turns, slo.epsilon, 1.0 - breach.confidence)
    if bad is None:
        return f"{told}; at {rps:g} a second never"
    return f"{told}; at {rps:g} a second from {bad} bad ones of {turns:,} on ({_percent(bad / turns)})"


def _burn(slo: Slo, burn: Burn, min_bad: int, rps: float | None) -> str:
    factor = burn.factor(slo.budget.over_s)
    windows = f"{span(burn.long_s)} and {span(burn.short_s)}"
    told = f"{burn.severity}: {factor:.4g} times too fast over {windows}"
    if never_fires(burn, slo):
        return f"{told}; never, for with all bad it is {1.0 / slo.spendable:.4g} times"
    share = factor * slo.spendable
    what = "slices" if slo.budget.method is Method.SLICES else "turns"
    told += f": {_percent(share)} bad {what} in both, and at least {min_bad} bad turns"
    if rps is None or slo.budget.method is Method.SLICES:
        return told
    return f"{told}; at {rps:g} a second {max(float(min_bad), share * rps * burn.long_s):,.0f} in {span(burn.long_s)}"


def _provable(turns: int, epsilon: float, chance: float) -> int | None:
    """The least number of bad turns that has a chance below that."""
    low, high = 0, turns
    if tail(turns, turns, epsilon) >= chance:
        return None
    while low < high:
        middle = (low + high) // 2
        if tail(middle, turns, epsilon) < chance:
            high = middle
        else:
            low = middle + 1
    return low


def _percent(share: float) -> str:
    return f"{100.0 * share:.3g} %"


def _time(of_s: float) -> str:
    if of_s < 7200.0:
        return f"{of_s / 60.0:,.1f} minutes"
    return f"{of_s / 3600.0:,.1f} hours ({of_s / 60.0:,.0f} minutes)"
