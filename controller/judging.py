"""From counters to the alarms that are on: every SLO judged every ten seconds, by the alert policy.

    judging.take(now_s, counts, turns)      every tick: counters per SLO, and ended turns per model
    judging.due(now_s)                      whether it is time to judge again
    judging.evaluate(now_s, doing)          -> alarms that are on now, of all SLOs

Per SLO there are a breach machine over the last slice and its last fifth, and one that holds for each burn rule, for
no data, and for a budget that is gone:

    burn       long and short window both at the rule's factor, at least `min_bad_events` bad in the long one. With too
               few bad turns or one window below the factor it is not so; with nothing to say of a window, unknown
    no data    turns of the SLO's models ended for the whole of `no_data.after`, and none was judged by it although it
               should have been at least ten times, by the share of turns that it covered so far; or no router knows it.
               An idle service is no fault: without turns nothing is said
    budget     nothing is left; over again once 5 % are

`for: 1m` of the breach rule is four evaluations, 30 s from the first to the last: the first stands for the half minute
before. Right after the start counts are only watched for 15 s. What is kept over a restart is which machines were on.

Pure: time is an argument, seconds of any monotonic clock; moments come from the ledgers' calendar.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from estimators.binomial import tail
from slos.alerts import Alert, Evidence, Gate, Held, State
from slos.allowance import Method
from slos.budget import Burn, ErrorBudget, burn, error_budget, exhausted_in_s
from slos.counts import Count
from slos.history import History
from slos.incidents import Alarm, Family
from slos.ledger import CountWindow
from slos.notice import labels
from slos.objective import Slo
from slos.policy import DAY_S, AlertPolicy, Declaration, Severity
from slos.policy import Burn as Burning
from slos.revisions import revision
from slos.wording import breach, budget_left, burning, duration, exhausted, no_data, percent, recovery

from .ledgers import Ledgers

EVALUATE_S = 10.0
FIRST_STANDS_FOR_S = 30.0
SETTLE_S = 15.0
RECENT_PART = 5
"""The last fifth of a slice is tested too."""
EXPECTED_FOR_NO_DATA = 10.0
BUDGET_BACK = 0.05
BUDGET_FOR_S = 60.0
SHOWN_BURNS_S = (300.0, 3_600.0, 6 * 3_600.0, 3 * DAY_S)
FORECAST_S = (3_600.0, 6 * 3_600.0, DAY_S, 3 * DAY_S)
"""The first of these windows with enough bad turns says how fast the budget goes."""

Doing = Callable[[Slo], str]
"""What the controller does about an SLO, in a clause."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What the last evaluation found of one SLO."""

    slo: Slo
    window: Count
    """Of the last slice of time, up to now."""
    evidence: Evidence
    budget: ErrorBudget
    exhausted_in_s: float | None
    burns: Mapping[float, Burn]
    """By window in seconds: those that rules ask for, and those that are shown."""

    @property
    def verdict(self) -> str:
        """ok, breach, or unknown with too few turns: whether the last slice kept the objective."""
        if self.window.valid < self.slo.budget.min_samples:
            return "unknown"
        return "breach" if self.window.bad > self.slo.epsilon * self.window.valid else "ok"

    @property
    def p_value(self) -> float | None:
        """The chance of so many bad turns in the slice, were the promise just kept."""
        return tail(self.window.bad, self.window.valid, self.slo.epsilon) if self.window.valid else None


class Judging:
    """All SLOs of a declaration."""

    def __init__(
        self,
        declaration: Declaration,
        ledgers: Ledgers,
        *,
        service: str | None = None,
        page_url: str = "",
        kept: Mapping[str, object] | None = None,
        evaluate_s: float = EVALUATE_S,
        settle_s: float = SETTLE_S,
    ) -> None:
        """`kept`: what `export` gave in an earlier process."""
        self._ledgers = ledgers
        self._service, self._page_url = service, page_url
        self._evaluate_s, self._settle_s = evaluate_s, settle_s
        self._first_s: float | None = None
        self._evaluated_s: float | None = None
        self._judges: dict[str, _Judge] = {}
        self.declaration = Declaration()
        self.redeclare(declaration, kept or {})

    def redeclare(self, declaration: Declaration, kept: Mapping[str, object] | None = None) -> None:
        """Take another declaration; SLOs that promise the same under the same policy go on. The ledgers are told by
        whoever owns them, and before."""
        same = declaration.alerts == self.declaration.alerts
        before = self._judges
        self.declaration = declaration
        self._judges = {}
        for slo in declaration.slos:
            judge = before.get(slo.name)
            if judge is None or not same or judge.revision != revision(slo) or judge.slo.budget != slo.budget:
                judge = _Judge(slo, declaration.alerts, self._evaluate_s, (kept or {}).get(slo.name))
            judge.slo = slo
            self._judges[slo.name] = judge

    def take(self, now_s: float, counts: Mapping[str, Count], turns: Mapping[str, int]) -> None:
        """Take the counters of one tick. Names that were not declared are ignored."""
        if self._first_s is None:
            self._first_s = now_s
        settled = now_s - self._first_s >= self._settle_s
        for name, judge in self._judges.items():
            if name in counts:
                judge.take(now_s, counts[name], turns, settled)

    def due(self, now_s: float) -> bool:
        """A tick that comes a little early must not shift its evaluation to the next one."""
        return self._evaluated_s is None or now_s - self._evaluated_s >= self._evaluate_s * 0.95

    def evaluate(self, now_s: float, doing: Doing) -> list[Alarm]:
        """Judge every SLO; the alarms that are on, pages of an SLO before its tickets."""
        self._evaluated_s = now_s
        found: list[Alarm] = []
        for name, judge in self._judges.items():
            history = self._ledgers.history(name)
            judge.evaluate(now_s, history, history.number(self._ledgers.now_s))
            found += judge.alarms(self._words(doing))
        return found

    def standing(self, name: str) -> Standing | None:
        """Of the last evaluation, None before it. Raises KeyError."""
        return self._judges[name].standing

    def alert(self, name: str) -> Alert:
        """The breach machine of an SLO. Raises KeyError."""
        return self._judges[name].alert

    def recovered(self, name: str, lasted_s: float, doing: Doing) -> str:
        """The sentence for an incident about an SLO that is over."""
        judge = self._judges.get(name)
        if judge is None or judge.standing is None:
            return f"{name} is not declared any more"
        return judge.recovered(lasted_s, self._words(doing))

    def annotations(self, name: str) -> dict[str, str]:
        """What stands beside a sentence about an SLO."""
        judge = self._judges.get(name)
        return {} if judge is None else judge.annotations(self._words(lambda _: ""))

    def export(self) -> dict[str, object]:
        """Which machines are on, as JSON."""
        return {name: judge.export() for name, judge in self._judges.items()}

    def _words(self, doing: Doing) -> _Words:
        own = dict(self.declaration.labels)
        return _Words(doing, self._page_url, self._service or self.declaration.service, own)


@dataclass(frozen=True, slots=True)
class _Words:
    doing: Doing
    page_url: str
    service: str | None
    labels: Mapping[str, str] = field(default_factory=dict)


class _Judge:
    """The machines of one SLO."""

    def __init__(self, slo: Slo, policy: AlertPolicy, evaluate_s: float, kept: object) -> None:
        self.slo = slo
        self.revision = revision(slo)
        self.standing: Standing | None = None
        self._policy = policy
        budget = slo.budget
        self._span_s, self._recent_s = budget.slice_s, budget.slice_s / RECENT_PART
        short = {s for rule in policy.burns for s in (rule.long_s, rule.short_s) if s < 2.0 * budget.slice_s}
        self._windows = {s: CountWindow(s) for s in {self._span_s, self._recent_s, min(SHOWN_BURNS_S), *short}}
        wait_s = max(0.0, policy.breach.for_s - FIRST_STANDS_FOR_S)
        self._gate = Gate(
            confidence=policy.breach.confidence,
            evaluations=1 + round(wait_s / evaluate_s),
            clear_s=policy.breach.clear_s,
        )
        self.alert = Alert()
        self._burns: dict[Burning, Held] = {rule: Held() for rule in policy.burns}
        self._no_data = self._exhausted = Held()
        self._turns, self._judged = CountWindow(policy.no_data.after_s), CountWindow(policy.no_data.after_s)
        self._watched_s: float | None = None
        self._spans = {*SHOWN_BURNS_S, *FORECAST_S, *(s for rule in policy.burns for s in (rule.long_s, rule.short_s))}
        self._said = ""
        """What the breach was when it was last one: while it clears, nothing new is to be told of it."""
        self._restore(kept)

    # -- counters ------------------------------------------------------------------------------------------------------

    def take(self, now_s: float, count: Count, turns: Mapping[str, int], settled: bool) -> None:
        ended = sum(n for model, n in turns.items() if self.slo.match.covers_model(model))
        if not settled:
            for window in self._windows.values():
                window.restart()
            self._turns.restart()
            self._judged.restart()
            self._watched_s = now_s
        if self._watched_s is None:
            self._watched_s = now_s
        for window in self._windows.values():
            window.add(count, now_s)
        self._turns.add(Count(ended), now_s)
        self._judged.add(count, now_s)

    # -- judging -------------------------------------------------------------------------------------------------------

    def evaluate(self, now_s: float, history: History, at: int) -> None:
        slo, policy = self.slo, self._policy
        window = self._windows[self._span_s].total()
        evidence = self._gate.judge(window, slo.epsilon, self._windows[self._recent_s].total())
        self.alert = self.alert.after(evidence, now_s, self._gate)
        if not self.alert.firing:
            self._said = ""
        clear_s = policy.breach.clear_s
        burns = {s: burn(slo, history, at, s, self._recent(s)) for s in self._spans}
        for rule, held in self._burns.items():
            self._burns[rule] = held.after(self._burning(rule, burns), now_s, rule.for_s, clear_s)
        self._no_data = self._no_data.after(self._unmeasured(now_s, history, at), now_s, 0.0, 0.0)
        budget = error_budget(slo, history, at)
        enough = budget.spent >= (1 if budget.method is Method.SLICES else policy.min_bad_events)
        gone = True if budget.left <= 0.0 and enough else False if budget.left > BUDGET_BACK else None
        self._exhausted = self._exhausted.after(gone, now_s, BUDGET_FOR_S, BUDGET_FOR_S)
        rate = next((burns[s].rate for s in FORECAST_S if burns[s].count.bad >= policy.min_bad_events), None)
        self.standing = Standing(slo, window, evidence, budget, exhausted_in_s(slo, budget, rate), burns)

    def _recent(self, window_s: float) -> Count | None:
        window = self._windows.get(window_s)
        return None if window is None else window.total()

    def _burning(self, rule: Burning, burns: Mapping[float, Burn]) -> bool | None:
        if burns[rule.long_s].count.bad < self._policy.min_bad_events:
            return False
        factor = rule.factor(self.slo.budget.over_s)
        rates = [burns[s].spent for s in (rule.long_s, rule.short_s)]
        if any(rate is not None and rate < factor for rate in rates):
            return False
        return None if None in rates else True

    def _unmeasured(self, now_s: float, history: History, at: int) -> bool | None:
        judged, ended = self._judged.total(), self._turns.total().valid
        if judged.valid:
            return False
        if self._watched_s is None or now_s - self._watched_s < self._policy.no_data.after_s:
            return None
        if ended >= self._gate.min_valid and not judged.excluded:
            return True  # no router counts it
        before = history.window(self.slo.budget.over_s, at)
        seen = before.valid + before.excluded
        return True if seen and ended * before.valid / seen >= EXPECTED_FOR_NO_DATA else None

    # -- alarms --------------------------------------------------------------------------------------------------------

    def alarms(self, words: _Words) -> list[Alarm]:
        standing, policy = self.standing, self._policy
        if standing is None:
            return []
        found: list[Alarm] = []
        if self.alert.firing:
            if standing.evidence in (Evidence.BREACH, Evidence.OUTSIDE) or not self._said:
                left, where = self._left(), self._where(words)
                self._said = breach(self.slo, standing.window, self._span_s, words.doing(self.slo), left, where)
            found.append(self._alarm(Family.BREACH, policy.breach.severity, self._said, words))
        for rule, held in self._burns.items():
            if held.firing:
                long = standing.burns[rule.long_s]
                left, where = self._left(), self._where(words)
                rate = long.spent or 0.0
                said = burning(self.slo, long.count, rule.long_s, rate, words.doing(self.slo), left, where)
                windows = {"long_window": span(rule.long_s), "short_window": span(rule.short_s)}
                mute_s = rule.short_s + policy.breach.clear_s + self._span_s
                found.append(self._alarm(Family.BURN, rule.severity, said, words, windows, mute_s))
        if self._no_data.firing:
            said = no_data(self.slo, self._turns.total().valid, policy.no_data.after_s, self._where(words))
            found.append(self._alarm(Family.NO_DATA, policy.no_data.severity, said, words))
        if self._exhausted.firing:
            said = exhausted(self.slo, standing.budget, words.doing(self.slo), self._where(words))
            found.append(replace(self._alarm(Family.BUDGET, Severity.TICKET, said, words), once=True))
        return sorted(found, key=lambda alarm: alarm.severity is not Severity.PAGE)

    def recovered(self, lasted_s: float, words: _Words) -> str:
        assert self.standing is not None
        doing = words.doing(self.slo)
        return recovery(self.slo, self.standing.window, self._span_s, lasted_s, doing, self._left(), self._where(words))

    def annotations(self, words: _Words) -> dict[str, str]:
        standing = self.standing
        found = {"dashboard_url": f"{words.page_url}#slo-{self.slo.name}" if words.page_url else ""}
        found["runbook_url"] = (self._policy.runbook or "").replace("{slo}", self.slo.name)
        if standing is not None:
            found["allowed"] = percent(self.slo.epsilon)
            if standing.budget.known:
                found["budget_left"] = percent(standing.budget.left)
                found["bad_left"] = f"{standing.budget.bad_left:,}"
            if standing.exhausted_in_s is not None:
                found["exhausted_in"] = duration(standing.exhausted_in_s)
        return {name: text for name, text in found.items() if text}

    def _alarm(
        self,
        family: Family,
        severity: Severity,
        said: str,
        words: _Words,
        more: Mapping[str, str] | None = None,
        mute_s: float = 0.0,
    ) -> Alarm:
        own = {**labels(self.slo, words.service, words.labels, family, severity), **(more or {})}
        beside = self.annotations(words)
        return Alarm(self.slo.name, family, severity, own, said, beside, self.revision, mute_s=mute_s)

    def _left(self) -> str:
        standing = self.standing
        return "" if standing is None else budget_left(self.slo, standing.budget, standing.exhausted_in_s)

    def _where(self, words: _Words) -> str:
        found = self.annotations(words)
        return " and ".join(found[name] for name in ("runbook_url", "dashboard_url") if name in found)

    # -- a restart -----------------------------------------------------------------------------------------------------

    def export(self) -> dict[str, object]:
        return {"revision": self.revision, "on": sorted(self._on())}

    def _on(self) -> Iterable[str]:
        if self.alert.firing:
            yield Family.BREACH.value
        yield from (_rule(rule) for rule, held in self._burns.items() if held.firing)
        if self._no_data.firing:
            yield Family.NO_DATA.value
        if self._exhausted.firing:
            yield Family.BUDGET.value

    def _restore(self, kept: object) -> None:
        if not isinstance(kept, dict) or kept.get("revision") != self.revision:
            return
        on = kept.get("on")
        on = set(on) if isinstance(on, list) else set()
        if Family.BREACH.value in on:
            self.alert = Alert(State.FIRING)
        self._burns = {rule: Held(_rule(rule) in on) for rule in self._burns}
        self._no_data, self._exhausted = Held(Family.NO_DATA.value in on), Held(Family.BUDGET.value in on)


def span(seconds: float) -> str:
    """A window as a label: 5m, 1h, 3d."""
    for unit, length in (("d", DAY_S), ("h", 3_600.0), ("m", 60.0)):
        if seconds >= length and seconds % length == 0.0:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:g}s"


def _rule(rule: Burning) -> str:
    return f"{Family.BURN.value} {span(rule.long_s)} {span(rule.short_s)} {rule.severity.value}"
