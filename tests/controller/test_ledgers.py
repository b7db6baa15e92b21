"""From counters to slices."""

from dataclasses import replace

from controller.ledgers import Ledgers, SliceRow, ledger_key
from slos.allowance import Budget
from slos.counts import Count
from slos.epoch import Epoch
from slos.objective import Signal, Slo

TTFT, TPOT = Slo("ttft", Signal.TTFT, 0.99, 2.0), Slo("tpot", Signal.TPOT, 0.99, 0.04)
BEGIN_S = 6_000_000 * 300.0
AT = 6_000_000


def ledgers(slos=(TTFT, TPOT), rows=(), start=None) -> Ledgers:
    return Ledgers(slos, Epoch(BEGIN_S, 0.0), rows, start)


def take(made: Ledgers, now_s: float, ttft: Count, tpot: Count | None = None) -> None:
    made.take({"ttft": ttft, "tpot": tpot or Count(), "strange": Count(9, 9)}, now_s, BEGIN_S + now_s)


def test_what_counters_gain_goes_into_the_open_slice():
    made = ledgers(start={"ttft": Count(), "tpot": Count()})
    take(made, 5.0, Count(10, 1))
    take(made, 295.0, Count(30, 2, 4))
    take(made, 305.0, Count(31, 3, 4))
    assert list(made.history("ttft").rows()) == [(AT, Count(30, 2, 4)), (AT + 1, Count(1, 1))]
    assert list(made.history("tpot").rows()) == []


def test_without_a_start_the_first_counters_say_where_counting_begins():
    made = ledgers()
    take(made, 5.0, Count(50_000, 900))
    take(made, 10.0, Count(50_010, 901))
    assert list(made.history("ttft").rows()) == [(AT, Count(10, 1))]


def test_slices_are_handed_out_as_what_they_have_and_only_once():
    made = ledgers(start={"ttft": Count(), "tpot": Count()})
    take(made, 5.0, Count(10, 1))
    assert made.changed() == [SliceRow(ledger_key(TTFT), AT, Count(10, 1))]
    assert made.changed() == []
    take(made, 10.0, Count(12, 1))
    take(made, 15.0, Count(12, 1))
    assert made.changed() == [SliceRow(ledger_key(TTFT), AT, Count(12, 1))]
    assert made.all() == [SliceRow(ledger_key(TTFT), AT, Count(12, 1))]


def test_a_restart_goes_on_in_the_same_slice():
    before = ledgers(start={"ttft": Count(), "tpot": Count()})
    take(before, 5.0, Count(10, 1))
    after = ledgers(rows=before.all(), start={"ttft": Count(10, 1)})
    take(after, 20.0, Count(25, 4))
    assert list(after.history("ttft").rows()) == [(AT, Count(25, 4))]


def test_a_changed_promise_begins_another_history_and_the_same_one_goes_on():
    made = ledgers(start={"ttft": Count(), "tpot": Count()})
    take(made, 5.0, Count(10, 1), Count(10, 2))
    stricter = replace(TPOT, threshold_s=0.03)
    made.redeclare((stricter, TTFT))
    assert made.history("ttft").get(AT) == Count(10, 1) and made.history("tpot").get(AT) == Count()
    take(made, 10.0, Count(11, 1), Count(11, 2))
    assert made.history("tpot").get(AT) == Count(1, 0)
    back = [SliceRow(ledger_key(TPOT), AT, Count(10, 2)), SliceRow(ledger_key(stricter), AT, Count(99, 9))]
    made.redeclare((TPOT, TTFT), back)
    assert made.history("tpot").get(AT) == Count(10, 2), "what was stored of it is taken up again"
    assert made.key("tpot") == ledger_key(TPOT)


def test_a_longer_budget_keeps_its_slices_and_shorter_slices_are_another_history():
    made = ledgers((TTFT,), start={"ttft": Count()})
    take(made, 5.0, Count(10, 1))
    made.redeclare((replace(TTFT, budget=Budget(over_s=90 * 86_400.0)),))
    assert made.history("ttft").get(AT) == Count(10, 1) and made.history("ttft").over_s == 90 * 86_400.0
    made.redeclare((replace(TTFT, budget=Budget(slice_s=60.0)),))
    assert list(made.history("ttft").rows()) == []


def test_a_clock_that_is_set_does_not_make_or_lose_slices():
    made = ledgers((TTFT,), start={"ttft": Count()})
    for at in range(1, 241):  # an hour and more, and after ten minutes the clock is set half an hour back
        made.take({"ttft": Count(at)}, at * 20.0, BEGIN_S + at * 20.0 - (1800.0 if at > 30 else 0.0))
    rows = list(made.history("ttft").rows())
    assert sum(count.valid for _, count in rows) == 240
    assert [at for at, _ in rows] == list(range(AT, AT + len(rows))) and all(count.valid <= 17 for _, count in rows)
