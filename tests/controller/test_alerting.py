"""From ticks and counts to what a webhook receives."""

import asyncio
import json
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from aiohttp import web

from controller.alerting import Alerting
from controller.doing import doing
from controller.feasibility import Feasibility, Relief
from controller.laws.protocol import Action
from controller.ledgers import Ledgers
from controller.stored import OutboxRow
from controller.tick import ModelOutput, Outputs
from slos.alerts import State
from slos.counts import Count
from slos.deliver import Result, Waiting
from slos.epoch import Epoch
from slos.objective import Match, Signal, Slo
from slos.policy import AlertPolicy, Declaration
from slos.reduce import Binding

TTFT = Slo("later-ttft", Signal.TTFT, 0.99, 2.0, Match(turn_min=2))
TPOT = Slo("tpot", Signal.TPOT, 0.99, 0.040)
WALL_S = 1_795_986_000.0


def output(action: Action = Action.HOLD, price: float = 0.4, relief: Relief | None = None) -> ModelOutput:
    return ModelOutput((), Binding(None, None), price, action, Feasibility(relief=relief))


OUTPUTS = Outputs(None, {"m": output(Action.PROTECT_TTFT, 0.31)})


class Bodies:
    """Stands in for a delivery."""

    def __init__(self) -> None:
        self.bodies: list[dict] = []

        self.changes, self.waiting, self.shown = 0, 0, "http://hook"
        self.outbox: tuple[Waiting, ...] = ()
        self.results: dict[Result, int] = {}

    def offer(self, body) -> str:
        self.bodies.append(body)
        return "id"


class Fleet:
    """Ticks of 5 s with counts that grow; the clock is the ticks' own, the wall is far from it."""

    def __init__(self, **options) -> None:
        self.now_s, self.turns = options.pop("now_s", 1000.0), 0
        self.counts = {TTFT.name: Count(50_000, 9_000, 4), TPOT.name: Count(60_000, 3, 0)}
        self.told = Bodies()
        clock, wall = lambda: self.now_s, lambda: WALL_S + self.now_s
        self.declared = options.pop("declared", Declaration((TTFT, TPOT)))
        rows = options.pop("rows", ())
        self.ledgers = Ledgers(self.declared.slos, Epoch(wall(), clock()), rows, dict(self.counts))
        options = {"delivery": self.told, "wall": wall, "clock": clock, "turns": lambda: {"m": self.turns}, **options}
        self.alerting = Alerting(self.declared, self.ledgers, **options)
        self._random = np.random.default_rng(3)

    def run(self, minutes: float, slow: float, rate_hz: float = 4.0, outputs: Outputs = OUTPUTS) -> None:
        for _ in range(round(minutes * 12)):
            self.now_s += 5.0
            turns = round(5.0 * rate_hz)
            self.turns += turns
            bad = int(self._random.binomial(turns, slow))
            self.counts = {
                TTFT.name: self.counts[TTFT.name] + Count(turns, bad),
                TPOT.name: self.counts[TPOT.name] + Count(turns, 0),
            }
            self.tick(outputs)

    def tick(self, outputs: Outputs = OUTPUTS) -> None:
        self.ledgers.take(self.counts, self.now_s, WALL_S + self.now_s)
        self.alerting(self.now_s, outputs, self.counts)

    def redeclare(self, *slos: Slo) -> None:
        self.ledgers.redeclare(slos, (), self.counts)
        self.alerting.redeclare(Declaration(slos))

    @property
    def about(self) -> list[str]:
        return [incident.about for incident in self.alerting.incidents]

    @property
    def statuses(self) -> list[str]:
        return [body["status"] for body in self.told.bodies]


def test_one_incident_is_one_message_and_its_recovery_another():
    fleet = Fleet(service="chat", page_url="http://trimtab:9400/")
    fleet.run(60, slow=0.003)
    assert fleet.statuses == []
    fleet.run(30, slow=0.2)
    assert fleet.statuses == ["firing"] and fleet.alerting.alerts()[TTFT.name].state is State.FIRING
    fleet.run(40, slow=0.003)
    assert fleet.statuses == ["firing", "resolved"]
    firing, resolved = (body["alerts"][0] for body in fleet.told.bodies)
    assert firing["labels"]["slo"] == "later-ttft" and firing["labels"]["service"] == "chat"
    assert firing["generatorURL"] == "http://trimtab:9400/#slo-later-ttft"
    assert firing["startsAt"] == resolved["startsAt"] < resolved["endsAt"] and firing["startsAt"].startswith("2026-11-")
    assert firing["fingerprint"] == resolved["fingerprint"]
    assert fleet.alerting.alerts()[TPOT.name].state is State.OK and fleet.about == []


def test_the_message_says_what_users_suffer_and_what_is_done_about_it():
    policy = AlertPolicy(runbook="https://runbooks.example/{slo}")
    fleet = Fleet(declared=Declaration((TTFT, TPOT), alerts=policy), page_url="http://trimtab:9400/")
    fleet.run(60, slow=0.0)
    fleet.run(3, slow=0.3)
    (body,) = fleet.told.bodies
    text = body["alerts"][0]["annotations"]["summary"]
    assert text == body["commonAnnotations"]["summary"]
    assert text.startswith("later-ttft: users waited over 2 s for the first token in ")
    assert " of 1,200 later turns (" in text and " in the last 5 min, where 1 % is allowed; " in text
    doing = "the controller keeps more turns on their decode nodes to spare the prefill nodes (p = 0.31)"
    assert "of the budget for 28 days is left (" in text and "bad turns)" in text
    assert text.endswith(f"; {doing}; see https://runbooks.example/later-ttft and http://trimtab:9400/#slo-later-ttft")


def test_what_was_counted_before_the_start_and_right_after_it_is_not_five_minutes():
    fleet = Fleet()
    fleet.alerting(fleet.now_s, OUTPUTS, {TTFT.name: Count(), TPOT.name: Count()})
    fleet.now_s += 5.0  # the routers' first reports to a new process hold hours, of which a fifth was slow
    fleet.alerting(fleet.now_s, OUTPUTS, fleet.counts)
    fleet.run(30, slow=0.0)
    assert fleet.statuses == []


def test_a_restart_in_an_incident_goes_on_with_the_same_alert():
    kept: list[str] = []
    before = Fleet(keep=lambda text, outbox: kept.append(text))
    before.run(10, slow=0.0)
    before.run(10, slow=0.2)
    assert before.statuses == ["firing"]
    rows = before.ledgers.all()
    after = Fleet(stored=kept[-1], keep=lambda text, outbox: kept.append(text), now_s=before.now_s + 60.0, rows=rows)
    asyncio.run(after.alerting.watch())
    assert after.statuses == [], "before anything is judged, nothing is over"
    after.run(10, slow=0.2)
    assert after.statuses == [], "it was told already"
    after.run(20, slow=0.0)
    assert after.statuses == ["resolved"]
    assert after.told.bodies[0]["alerts"][0]["startsAt"] == before.told.bodies[0]["alerts"][0]["startsAt"]
    assert json.loads(kept[-1])["incidents"]["open"] == []


@pytest.mark.parametrize(
    "kept", [None, "", "{", "[1]", '{"version": "x"}', '{"incidents": {"open": [{}]}}', '{"gone": 5.0}']
)
def test_what_was_kept_may_be_missing_damaged_or_about_others(kept):
    assert Fleet(stored=kept).about == []


def test_an_slo_that_is_not_counted_stays_unknown_and_strange_names_are_ignored():
    fleet = Fleet()
    for at in range(400):
        fleet.alerting(5.0 * at, OUTPUTS, {"strange": Count(10 * at, 10 * at)})
    assert {alert.state for alert in fleet.alerting.alerts().values()} == {State.UNKNOWN}
    assert fleet.statuses == []


def test_it_evaluates_every_ten_seconds_though_ticks_jitter():
    fleet, evaluated = Fleet(), set()
    for at in range(121):
        fleet.alerting(5.0 * at + (0.02 if at % 2 else -0.02), OUTPUTS, fleet.counts)
        evaluated.add(fleet.alerting.alerts()[TTFT.name].evaluated_s)
    assert len(evaluated) == 61


def test_without_a_receiver_alerts_are_logged_and_kept():
    fleet = Fleet(delivery=None)
    fleet.run(10, slow=0.0)
    fleet.run(10, slow=0.2)
    assert fleet.about == [TTFT.name] and fleet.alerting.receivers() == ["log"]
    asyncio.run(fleet.alerting.close())


def test_a_webhook_gets_it_over_http():
    received: list[dict] = []

    async def take(request: web.Request) -> web.Response:
        received.append({"body": await request.json(), "signed": "X-Trimtab-Signature" in request.headers})
        return web.Response(status=503 if len(received) == 1 else 200)

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/hook", take)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
        fleet = Fleet(delivery=None, webhook_url=url, secret="s", clock=time.monotonic)
        job, _ = fleet.alerting.jobs()
        assert job.interval_s == 1.0 and job.timeout_s is not None and job.timeout_s > 5.0
        fleet.run(10, slow=0.0)
        fleet.run(10, slow=0.2)
        await job.run()
        delivery = fleet.alerting.delivery
        assert delivery is not None and delivery.waiting == 1
        while delivery.waiting:
            await asyncio.sleep(0.1)
            await job.run()
        assert delivery.results[Result.FAILED] == 1 and delivery.results[Result.DELIVERED] == 1
        await fleet.alerting.close()
        await runner.cleanup()

    asyncio.run(asyncio.wait_for(main(), 20.0))
    assert received[0] == received[1] and received[0]["signed"]
    assert received[0]["body"]["alerts"][0]["labels"]["alertname"] == "SLOBreach"


def test_what_nobody_has_taken_is_posted_after_a_restart_under_the_same_id():
    ids: list[str] = []
    stored: list[tuple[str, Sequence[OutboxRow]]] = []

    async def take(request: web.Request) -> web.Response:
        ids.append(request.headers["X-Trimtab-Delivery"])
        return web.Response(status=503 if len(ids) == 1 else 200)

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/hook", take)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
        options = {"delivery": None, "webhook_url": url, "keep": lambda *kept: stored.append(kept)}
        before = Fleet(**options)
        before.run(10, slow=0.0)
        before.run(2, slow=0.3)
        await before.alerting.deliver()  # away; then the process is killed
        text, outbox = stored[-1]
        assert len(outbox) == 1 and outbox[0].sink == "webhook"
        after = Fleet(**options, stored=text, outbox=outbox, now_s=before.now_s + 5.0, rows=before.ledgers.all())
        await after.alerting.deliver()
        after.run(1, slow=0.3)
        await after.alerting.deliver()
        assert len(ids) == 2 and ids[0] == ids[1] and stored[-1][1] == []
        await before.alerting.close()
        await after.alerting.close()
        await runner.cleanup()

    asyncio.run(asyncio.wait_for(main(), 20.0))


def test_what_is_new_is_on_disk_before_anybody_is_told():
    done: list[str] = []

    class Watched(Bodies):
        async def flush(self) -> None:
            done.append(f"posted {len(self.bodies)}")

        async def close(self) -> None: ...

    async def flush() -> None:
        done.append("written")

    fleet = Fleet(delivery=Watched(), keep=lambda text, outbox: done.append("kept"), flush=flush)
    fleet.run(10, slow=0.0)
    fleet.run(2, slow=0.3)
    done.clear()
    asyncio.run(fleet.alerting.deliver())
    assert done[0] == "written" and done[1].startswith("posted")


def test_alertmanagers_are_shown_what_fires_and_for_five_minutes_what_is_over():
    fleet = Fleet(delivery=None, alertmanagers=["http://127.0.0.1:9"])
    peers = fleet.alerting.alertmanagers
    assert peers is not None
    fleet.run(10, slow=0.0)
    fleet.run(3, slow=0.3)
    shown = peers._alerts[0]
    assert shown.ends_s is None and shown.labels["slo"] == TTFT.name and "6" in shown.annotations["summary"]
    fleet.alerting.silence(["slo=*ttft"], 3600.0, "ann", "Alertmanager has its own")
    fleet.run(1, slow=0.3)
    assert len(peers._alerts) == 1
    fleet.run(14, slow=0.0)
    over = peers._alerts[0]
    assert over.ends_s is not None and over.starts_s == shown.starts_s and over.labels == shown.labels
    fleet.run(10, slow=0.0)
    assert len(peers._alerts) == 1, "a peer that could not be told is told for an hour"
    fleet.run(60, slow=0.0)
    assert not list(peers._alerts)
    asyncio.run(fleet.alerting.close())


def test_an_slo_that_is_not_declared_any_more_is_no_alert_any_more():
    fleet = Fleet()
    fleet.run(10, slow=0.0)
    fleet.run(3, slow=0.3)
    declared = Declaration((TPOT,))
    fleet.ledgers.redeclare(declared.slos)
    fleet.alerting.redeclare(declared)
    fleet.run(0.2, slow=0.3)
    assert fleet.statuses == ["firing", "resolved"]
    assert "not declared any more" in fleet.told.bodies[-1]["alerts"][0]["annotations"]["summary"]


def test_a_webhook_that_is_no_url_is_refused_at_once():
    with pytest.raises(ValueError, match="http"):
        Fleet(delivery=None, webhook_url="hooks.example")


# -- what the controller does, in words -----------------------------------------------------------------------------


def words() -> Iterator[tuple[dict[str, ModelOutput], str]]:
    yield {}, "the controller has seen no turn of its models yet"
    yield {"m": output()}, "the controller holds its price (p = 0.4)"
    yield {"m": output(Action.NO_EVIDENCE)}, "the controller waits for more samples (p = 0.4)"
    yield (
        {"m": output(Action.PROTECT_TPOT, 5.0, Relief.DECODE)},
        "the controller sends more turns through prefill nodes to spare the decode nodes (p = 5), which is not enough: "
        "add decode capacity or loosen the TPOT SLO",
    )
    yield (
        {"m": output(), "n": output(price=1.0)},
        "the controller holds its price (p = 0.4) for m, holds its price (p = 1) for n",
    )


@pytest.mark.parametrize(("models", "text"), list(words()))
def test_what_is_done_is_said(models: dict[str, ModelOutput], text: str):
    assert doing(TTFT, Outputs(None, models)) == text


def test_every_action_has_words_of_its_own():
    told = [doing(TTFT, Outputs(None, {"m": output(action)})) for action in Action]
    assert len(set(told)) == len(Action) and all(text.endswith(" (p = 0.4)") for text in told)


def test_only_models_that_the_slo_covers_are_told_of():
    only_n = Slo("n-ttft", Signal.TTFT, 0.99, 2.0, Match(("n",)))
    assert doing(only_n, Outputs(None, {"m": output(), "n": output(price=1.0)})).endswith("(p = 1)")
    assert "no turn" in doing(only_n, Outputs(None, {"m": output()}))


def test_another_declaration_keeps_the_alerts_of_what_still_means_the_same():
    fleet = Fleet()
    fleet.run(1, 0.0)
    fleet.run(10, 0.5)
    assert fleet.alerting.alerts()[TTFT.name].state is State.FIRING
    slower = Slo(TPOT.name, Signal.TPOT, 0.99, 9.0)
    fleet.redeclare(TTFT, slower)
    assert fleet.alerting.alerts()[TTFT.name].state is State.FIRING
    assert fleet.alerting.alerts()[TPOT.name].state is State.UNKNOWN
    fleet.run(1, 0.5)
    assert fleet.about == [TTFT.name] and fleet.statuses == ["firing"]


def test_the_incident_of_an_slo_that_is_no_longer_declared_is_over():
    fleet = Fleet()
    fleet.run(10, 0.5)
    fleet.redeclare(TPOT)
    fleet.run(1, 0.5)
    assert fleet.about == [] and fleet.statuses == ["firing", "resolved"]
