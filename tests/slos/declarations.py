"""Declarations made by Hypothesis: whatever a file can say."""

from dataclasses import replace

from hypothesis import strategies as st

from slos.allowance import Budget, Method
from slos.objective import ASKABLE, LATENCIES, STREAMED, Condition, Match, Signal, Slo
from slos.policy import AlertPolicy, Breach, Burn, Declaration, NoData, Severity

names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
words = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True)
texts = (
    st.text(st.characters(categories=("L", "N", "P", "Zs", "S")), min_size=1, max_size=40)
    .map(lambda text: " ".join(text.split()))
    .filter(bool)
)
limits = st.integers(1, 86_400_000).map(lambda ms: ms / 1000)
percentiles = st.integers(500, 999).map(lambda tenths: round(tenths / 1000, 12))
shares = st.integers(1, 9999).map(lambda hundredths: round(hundredths / 10_000, 12)).filter(lambda share: share >= 0.01)
slices = st.sampled_from([30.0, 60.0, 300.0, 450.0, 1800.0, 86_400.0])
label_names = st.from_regex(r"[a-z][a-z0-9_]{2,8}", fullmatch=True).filter(
    lambda name: name not in ("slo", "family", "service", "severity", "alertname")
)
labels = st.dictionaries(label_names, texts, max_size=3).map(lambda pairs: tuple(pairs.items()))
severities = st.sampled_from(Severity)
spans = st.integers(1, 1440).map(lambda minutes: minutes * 60.0)


@st.composite
def budgets(draw) -> Budget:
    slice_s = draw(slices)
    over_s = slice_s * draw(st.integers(int(86_400 // slice_s), int(90 * 86_400 // slice_s)))
    budget = Budget(over_s, slice_s=slice_s, min_samples=draw(st.integers(1, 10_000)))
    if draw(st.booleans()):
        budget = replace(budget, method=Method.SLICES, good_slices=draw(shares))
    return budget


@st.composite
def matches(draw) -> Match:
    low = draw(st.integers(1, 50))
    return Match(
        tuple(draw(st.lists(st.one_of(words, st.just("llama-*"), st.just("*")), min_size=1, max_size=3))),
        low,
        draw(st.one_of(st.none(), st.integers(low, 60))),
        draw(st.sampled_from([None, True, False])),
        tuple(draw(st.lists(words, max_size=2))),
        tuple(draw(st.lists(words, max_size=2))),
        draw(st.sampled_from([None, True, False])),
    )


@st.composite
def slos(draw, name: str) -> Slo:
    match, budget = draw(matches()), draw(budgets())
    signal = draw(st.sampled_from(Signal))
    signals = [signal]
    if signal is Signal.GOODPUT:
        signals = draw(st.lists(st.sampled_from([*LATENCIES, Signal.SUCCESS]), min_size=1, max_size=4, unique=True))
    if any(each in STREAMED for each in signals) and match.streaming is False:
        match = replace(match, streaming=None)
    own = match.asked is True
    needed = tuple(
        Condition(each, None if each is Signal.SUCCESS or (own and each in ASKABLE) else draw(limits))
        for each in signals
    )
    more = {"description": draw(st.one_of(st.just(""), texts)), "labels": draw(labels)}
    if signal is Signal.GOODPUT:
        return Slo(name, signal, draw(shares), None, match, 0, budget, needed, **more)
    objective = draw(shares if signal is Signal.SUCCESS else percentiles)
    return Slo(name, signal, objective, needed[0].threshold_s, match, 0, budget, **more)


@st.composite
def policies(draw, declared: tuple[Slo, ...]) -> AlertPolicy:
    policy = AlertPolicy(
        draw(st.sampled_from([None, "https://runbooks.example/slo/{slo}", "http://h/#x"])),
        Breach(draw(severities), draw(st.sampled_from([0.9, 0.99, 0.999, 0.5])), draw(spans), draw(spans)),
        min_bad_events=draw(st.integers(1, 1000)),
        no_data=NoData(draw(spans), draw(severities)),
    )
    shortest_s = min(slo.budget.over_s for slo in declared)
    if shortest_s <= 7200.0 or draw(st.booleans()):
        return policy
    long_s = draw(st.integers(10, int(shortest_s // 60) - 1)) * 60.0
    burns = []
    for short_s in draw(st.lists(st.integers(1, 9).map(lambda m: m * 60.0), max_size=3)):
        most = min(1.0 / slo.spendable * long_s / slo.budget.over_s for slo in declared)
        percent = min(100.0, 90.0 * most)
        spend = round(int(percent * 100) / 10_000, 12)
        if spend > 0:
            burns.append(Burn(draw(severities), spend, long_s, short_s, draw(spans)))
    return replace(policy, burns=tuple(burns)) if burns else policy


@st.composite
def declarations(draw) -> Declaration:
    chosen = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    declared = tuple(draw(slos(name)) for name in chosen)
    return Declaration(
        declared,
        draw(st.one_of(st.none(), names)),
        draw(labels),
        draw(policies(declared)),
        rps=draw(st.one_of(st.none(), st.sampled_from([0.2, 2.0, 1234.5]))),
    )


def meaning(declaration: Declaration) -> tuple[object, ...]:
    """All of it but the file's name and lines, what equality leaves out included."""
    words = [(slo.name, slo.description, slo.labels) for slo in declaration.slos]
    return replace(declaration, source=""), words
