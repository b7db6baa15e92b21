"""SLOs judged on traffic that a test makes: which alarms are on."""

from dataclasses import dataclass, field, replace

import pytest

from controller.judging import Judging, span
from controller.ledgers import Ledgers
from slos.allowance import Budget, Method
from slos.counts import Count
from slos.epoch import Epoch
from slos.incidents import Alarm, Family
from slos.objective import Match, Signal, Slo
from slos.policy import AlertPolicy, Breach, Burn, Declaration, Severity
from slos.revisions import revision

LATER = Slo("later-ttft", Signal.TTFT, 0.99, 2.0, Match(turn_min=2))
TPOT = Slo("tpot", Signal.TPOT, 0.99, 0.040, Match(("m",)))
BEGIN_S = 1.8e9


@dataclass
class Fleet:
    """Counters that grow, on a clock that a test turns."""

    declared: Declaration = field(default_factory=lambda: Declaration((LATER, TPOT)))
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.counts = {slo.name: Count() for slo in self.declared.slos}
        self.turns = {"m": 0, "other": 0}
        self.ledgers = Ledgers(self.declared.slos, Epoch(BEGIN_S, 0.0), start=self.counts)
        self.judging = Judging(self.declared, self.ledgers, settle_s=0.0)
        self.alarms: list[Alarm] = []

    def run(self, minutes: float, model: str = "m", turns: int = 20, **added: Count) -> list[str]:
        """So many minutes with as many turns and counts every ten seconds; the families of the alarms at the end."""
        for _ in range(round(minutes * 6)):
            self.now_s += 10.0
            self.turns[model] += turns
            for name, count in added.items():
                self.counts[name.replace("_", "-")] += count
            self.ledgers.take(self.counts, self.now_s, BEGIN_S + self.now_s)
            self.judging.take(self.now_s, self.counts, self.turns)
            assert self.judging.due(self.now_s)
            self.alarms = self.judging.evaluate(self.now_s, lambda slo: f"does what it can for {slo.name}")
        return [f"{alarm.about} {alarm.family.value}" for alarm in self.alarms]


GOOD, BAD, OTHER = Count(20, 0), Count(20, 5), Count(0, 0, 1)


def test_a_service_that_keeps_its_promise_has_no_alarm():
    fleet = Fleet()
    assert fleet.run(120, later_ttft=GOOD, tpot=GOOD) == []
    standing = fleet.judging.standing("tpot")
    assert standing is not None and standing.verdict == "ok" and standing.burns[3600.0].rate == 0.0


def test_a_breach_is_an_alarm_of_that_slo_with_the_policys_severity():
    fleet = Fleet(Declaration((LATER, TPOT), alerts=AlertPolicy(breach=Breach(Severity.TICKET), burns=())))
    fleet.run(10, later_ttft=GOOD, tpot=GOOD)
    assert fleet.run(3, later_ttft=BAD, tpot=GOOD) == ["later-ttft breach"]
    (alarm,) = fleet.alarms
    assert alarm.severity is Severity.TICKET and alarm.labels["severity"] == "ticket"
    assert alarm.labels["alertname"] == "SLOBreach"


def test_labels_are_the_operators_and_ours_and_hold_no_number():
    declared = Declaration((TPOT,), "chat", (("team", "assist"), ("slo", "forged"), ("my-tier", "gold")))
    fleet = Fleet(declared)
    fleet.run(5, tpot=BAD)
    first, *_ = fleet.alarms
    assert first.labels == {
        "alertname": "SLOBreach",
        "family": "breach",
        "severity": "page",
        "slo": "tpot",
        "service": "chat",
        "team": "assist",
        "my_tier": "gold",
    }


def test_a_burn_needs_both_windows_and_enough_bad_turns():
    rule = Burn(Severity.PAGE, 0.02, 3600.0, 300.0, 60.0)
    fleet = Fleet(Declaration((TPOT,), alerts=AlertPolicy(burns=(rule,))))
    fleet.run(180, tpot=GOOD)
    fleet.run(20, tpot=BAD)
    assert "tpot burn" not in fleet.run(10, tpot=GOOD), "25 % for 20 min is 8 % of the hour, and it is over"
    assert "tpot burn" in fleet.run(40, tpot=BAD)
    assert "tpot burn" not in fleet.run(15, tpot=GOOD), "the short window resets it"


def test_few_bad_turns_are_no_burn_however_few_turns_there_are():
    fleet = Fleet(Declaration((TPOT,), alerts=AlertPolicy(min_bad_events=10)))
    assert fleet.run(3, turns=1, tpot=Count(1, 1)) == [], "18 turns, all bad: fewer than 50"
    fleet = Fleet(Declaration((TPOT,)))
    fleet.run(600, turns=1, tpot=OTHER)
    fleet.run(1.5, turns=1, tpot=Count(1, 1))
    assert fleet.run(60, turns=1, tpot=OTHER) == []


def test_what_users_suffer_what_is_left_and_what_is_done_is_in_a_burns_sentence():
    fleet = Fleet(Declaration((TPOT,), alerts=AlertPolicy(runbook="https://r.example/{slo}")))
    fleet.run(120, tpot=GOOD)
    fleet.run(40, tpot=BAD)
    burn = next(alarm for alarm in fleet.alarms if alarm.family is Family.BURN)
    assert burn.said.startswith("tpot: answers came slower than 40 ms a token in ")
    left = "of the budget for 28 days is left ("
    for part in ("in the last 60 min, 1", " times what is allowed; ", left, "bad turns)"):
        assert part in burn.said
    assert burn.said.endswith("; does what it can for tpot; see https://r.example/tpot")
    assert burn.annotations["runbook_url"] == "https://r.example/tpot" and "bad_left" in burn.annotations


def test_a_budget_that_is_gone_is_an_alarm_that_is_told_once():
    short = replace(TPOT, budget=Budget(over_s=86_400.0))
    fleet = Fleet(Declaration((short,), alerts=AlertPolicy(burns=())))
    fleet.run(1500, tpot=GOOD)
    found = fleet.run(90, tpot=BAD)
    assert found == ["tpot breach", "tpot budget"] and fleet.alarms[-1].once
    assert "the error budget is gone" in fleet.alarms[-1].said


def test_by_slices_the_budget_counts_slices():
    by_slices = replace(TPOT, budget=Budget(86_400.0, Method.SLICES, 0.95))
    fleet = Fleet(Declaration((by_slices,), alerts=AlertPolicy(burns=())))
    fleet.run(600, tpot=GOOD)
    fleet.run(30, tpot=BAD)
    standing = fleet.judging.standing("tpot")
    assert standing is not None and standing.budget.spent == 6 and standing.budget.measured == 1.0


# -- no data ----------------------------------------------------------------------------------------------------------


def test_an_idle_service_is_no_fault():
    fleet = Fleet()
    fleet.run(60, later_ttft=GOOD, tpot=GOOD)
    assert fleet.run(600, turns=0) == []


def test_turns_that_nobody_judges_are_a_ticket_after_a_quarter_of_an_hour():
    fleet = Fleet()
    fleet.run(60, later_ttft=GOOD, tpot=GOOD)
    assert fleet.run(14, later_ttft=GOOD) == []
    assert fleet.run(2, later_ttft=GOOD) == ["tpot no_data"]
    assert fleet.alarms[0].severity is Severity.TICKET and "nobody knows" in fleet.alarms[0].said
    assert fleet.run(1, later_ttft=GOOD, tpot=GOOD) == []


def test_turns_of_models_that_it_does_not_cover_are_not_missed():
    fleet = Fleet()
    fleet.run(60, later_ttft=GOOD, tpot=GOOD)
    assert fleet.run(60, model="other", later_ttft=GOOD) == []


def test_an_slo_that_covers_few_turns_is_not_missed_for_a_while():
    fleet = Fleet()
    fleet.run(600, later_ttft=GOOD, tpot=Count(0, 0, 20))  # its turns are rare
    fleet.run(1, later_ttft=GOOD, tpot=Count(1, 0, 19))
    assert fleet.run(30, later_ttft=GOOD, tpot=Count(0, 0, 20)) == []


def test_an_alarm_that_is_on_stays_so_while_nothing_can_be_said():
    fleet = Fleet()
    fleet.run(30, later_ttft=GOOD, tpot=GOOD)
    fleet.run(5, later_ttft=BAD, tpot=GOOD)
    assert "later-ttft breach" in fleet.run(60, turns=0)


# -- reload and restart -----------------------------------------------------------------------------------------------


def test_a_reload_goes_on_with_what_promises_the_same_and_begins_anew_with_what_does_not():
    fleet = Fleet()
    fleet.run(30, later_ttft=GOOD, tpot=GOOD)
    fleet.run(5, later_ttft=BAD, tpot=BAD)
    stricter = replace(TPOT, threshold_s=0.03)
    declared = Declaration((LATER, stricter))
    fleet.ledgers.redeclare(declared.slos)
    fleet.judging.redeclare(declared)
    assert fleet.run(0.2, later_ttft=BAD, tpot=BAD)[:1] == ["later-ttft breach"]
    assert not any(alarm.about == "tpot" for alarm in fleet.alarms)
    fresh = fleet.judging.standing("tpot")
    assert fresh is not None and fresh.budget.spent <= 10


def test_a_restart_goes_on_with_the_machines_that_were_on_unless_the_promise_has_changed():
    before = Fleet()
    before.run(30, later_ttft=GOOD, tpot=GOOD)
    before.run(20, later_ttft=BAD, tpot=GOOD)
    kept = before.judging.export()
    ledgers = Ledgers((LATER, TPOT), Epoch(BEGIN_S + 4000.0, 0.0), before.ledgers.all(), before.counts)
    after = Judging(Declaration((LATER, TPOT)), ledgers, kept=kept)
    on = {f"{alarm.about} {alarm.family.value}" for alarm in after.evaluate(0.0, lambda _: "")}
    assert on == {f"{alarm.about} {alarm.family.value}" for alarm in before.alarms} and "later-ttft breach" in on
    other = Judging(Declaration((replace(LATER, threshold_s=3.0),)), ledgers, kept=kept)
    assert other.export() == {"later-ttft": {"revision": revision(replace(LATER, threshold_s=3.0)), "on": []}}


@pytest.mark.parametrize("kept", [{"tpot": None}, {"tpot": {"revision": 1}}, {"tpot": {"on": "breach"}}, {"gone": {}}])
def test_what_was_kept_may_be_anything(kept: dict):
    ledgers = Ledgers((TPOT,), Epoch(BEGIN_S, 0.0))
    assert Judging(Declaration((TPOT,)), ledgers, kept=kept).evaluate(0.0, lambda _: "") == []


@pytest.mark.parametrize(
    ("seconds", "text"), [(300.0, "5m"), (3600.0, "1h"), (21_600.0, "6h"), (259_200.0, "3d"), (90.0, "90s")]
)
def test_windows_have_short_names(seconds: float, text: str):
    assert span(seconds) == text
