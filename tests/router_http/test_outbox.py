"""The line to a control process that a test can stop, and what a router can do without one."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from router import outbox as module
from router.artefact import dump
from router.current import Current
from router.metrics import RouterMetrics, page
from router.nodes import NodeWatch, endpoints
from router.outbox import LastPublication, Outbox, TableCache
from router.pin import Pin, read_pin, write_pin
from router.policy import Policy, Publication, TableKey, Weights
from router.turn import NodeId
from router.upstream import Timeouts, Upstream
from router.wire import Report, WireError, publication_to_wire, report_from_json
from tests.router.fleet import Fleet, fleet
from tests.router.samples import MODEL, TOPOLOGY
from tests.router.test_artefact import FIT, ORIGIN, SMALL_TABLE

from .client import in_loop, until

TEXT = dump(ORIGIN, SMALL_TABLE, FIT, ())
OTHER = dump(ORIGIN, SMALL_TABLE, {"ttft_local": 0.06}, ())
DIGEST, OTHER_DIGEST = (TableCache(None).add(text, "t").digest for text in (TEXT, OTHER))
DOCUMENTS = {DIGEST: TEXT, OTHER_DIGEST: OTHER}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REPORT_S", 0.02)
    monkeypatch.setattr(module, "PIN_S", 0.01)
    monkeypatch.setattr(module, "BACKOFF_S", (0.01, 0.02))


def publication(version: int, price: float = 0.4, text: str = TEXT) -> Publication:
    key = TableKey(MODEL, TOPOLOGY)
    policy = Policy(version, {key: TableCache(None).add(text, "t")}, Weights.from_price(price))
    return Publication(version, {"main": policy}, node_dither={NodeId("D0"): 0.1})


@dataclass
class FakeControl:
    """Takes reports and has a publication. `answer` gives the status of a report; None drops the connection."""

    token: str = ""
    answer: Callable[[Report], int | None] = lambda report: 200
    reports: list[Report] = field(default_factory=list)
    """All that came, taken or not."""
    polls: list[dict[str, str]] = field(default_factory=list)
    offered: Callable[[int, list[str]], web.Response | None] = lambda after, have: None
    """What a poll gets at once; None: it waits."""
    port: int = 0
    _runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def publish(self, published: Publication) -> None:
        def offer(after: int, have: list[str]) -> web.Response | None:
            if published.version <= after:
                return None
            return web.json_response(publication_to_wire(published, DOCUMENTS, have))

        self.offered = offer

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/internal/v1/turns", self._turns)
        app.router.add_get("/internal/v1/policy", self._policy)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.05)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _turns(self, request: web.Request) -> web.Response:
        assert request.headers.get("Authorization", "") == (f"Bearer {self.token}" if self.token else "")
        report = report_from_json(await request.read())
        self.reports.append(report)
        status = self.answer(report)
        if status is None:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return web.json_response({"accepted_seq": report.seq}, status=status)

    async def _policy(self, request: web.Request) -> web.Response:
        assert request.headers.get("Authorization", "") == (f"Bearer {self.token}" if self.token else "")
        self.polls.append(dict(request.query))
        have = request.query["have"].split(",")
        while (response := self.offered(int(request.query["after"]), have)) is None:
            await asyncio.sleep(0.005)
        return response


@dataclass
class Router:
    """The outbox of a router, and the parts that it works on."""

    outbox: Outbox
    fleet: Fleet
    cache: TableCache
    folder: Path
    registry: CollectorRegistry

    @property
    def current(self) -> Current:
        return self.fleet.core.current

    def talk(self, turns: int = 1) -> None:
        for _ in range(turns):
            self.outbox.add(self.fleet.talk())


@asynccontextmanager
async def running(folder: Path, control: FakeControl | None, token: str | None = None) -> AsyncIterator[Router]:
    """An outbox whose loops run."""
    wired = fleet()
    registry = CollectorRegistry()
    cache = TableCache(folder)
    watch = NodeWatch(endpoints(["http://p0", "http://p1"], ["http://d0", "http://d1"], []), Upstream(Timeouts()))
    outbox = Outbox(
        wired.core,
        watch,
        RouterMetrics(registry, ()),
        cache,
        LastPublication(folder, cache),
        name="router-0",
        boot=secrets.token_hex(4),
        control_url=control.url if control is not None else None,
        token=token,
        state_dir=folder,
        now_s=lambda: wired.now_s,
    )
    task = asyncio.ensure_future(outbox.run())
    try:
        yield Router(outbox, wired, cache, folder, registry)
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def both(folder: Path, **control: Any) -> AsyncIterator[tuple[Router, FakeControl]]:
    fake = FakeControl(**control)
    await fake.start()
    try:
        async with running(folder, fake, fake.token or None) as router:
            yield router, fake
    finally:
        await fake.stop()


async def published(router: Router, version: int) -> None:
    await until(lambda: router.current.published_version == version)


async def pinned(router: Router, x: float | None) -> None:
    await until(lambda: router.current.pin_x == x)


def taken(control: FakeControl) -> list[str]:
    """Records by request id, each report once, as a control process counts them."""
    by_seq = {report.seq: report for report in control.reports}
    return [record.request_id for seq in sorted(by_seq) for record in by_seq[seq].records]


# -- reports -----------------------------------------------------------------------------------------------------------


@in_loop
async def test_reports_say_what_happened_and_how_things_stand(tmp_path: Path):
    async with both(tmp_path, token="secret") as (router, control):
        router.talk(3)
        waiting = router.fleet.start("another")
        router.fleet.now_s += 2.0
        await until(lambda: any(report.waiting for report in control.reports) and len(taken(control)) == 3)
        report = next(report for report in control.reports if report.waiting)
        await until(lambda: router.outbox.control_seen_s is not None)  # the answer comes after the report is there
    assert report.router == "router-0"
    assert [(w.model, w.turn, w.streaming, w.age_s) for w in report.waiting] == [(MODEL, 1, True, 2.0)]
    assert [node.id for node in report.nodes] == ["P0", "P1", "D0", "D1"]
    assert report.nodes[0].url == "http://p0"
    assert report.policy_version == router.current.publication.version
    assert report.counts.keys() == router.fleet.core.counts.snapshot().keys()
    assert "trimtab_turns_in_flight 1.0" in report.metrics
    assert waiting.turn.request_id not in taken(control)


@in_loop
async def test_a_report_is_sent_again_with_its_number_until_it_is_taken(tmp_path: Path):
    refusals = iter([503, None, 401, 503])
    async with both(tmp_path, answer=lambda report: next(refusals, 200)) as (router, control):
        router.talk(2)
        await until(lambda: len(control.reports) >= 6)
        first, rest = control.reports[:5], control.reports[5:]
    assert len({(report.boot, report.seq) for report in first}) == 1
    assert all(report == first[0] for report in first)
    assert [report.seq for report in rest] == [first[0].seq + 1 + at for at in range(len(rest))]
    assert len(taken(control)) == 2


@in_loop
async def test_a_report_that_is_wrong_is_let_go_and_counted(tmp_path: Path):
    async with both(tmp_path, answer=lambda report: 400 if report.seq == 1 else 200) as (router, control):
        router.talk(2)
        await until(lambda: len(control.reports) >= 3)
        assert router.registry.get_sample_value("trimtab_reports_total", {"result": "refused"}) == 1
    assert [report.seq for report in control.reports[:3]] == [1, 2, 3]
    assert control.reports[1].dropped_records == len(control.reports[0].records)


@in_loop
async def test_records_outlive_a_dead_control_process_and_arrive_once_and_in_order(tmp_path: Path):
    async with both(tmp_path) as (router, control):
        router.talk(2)
        await until(lambda: len(taken(control)) == 2)
        await control.stop()
        for _ in range(5):
            router.talk()
            await asyncio.sleep(0.02)
        unreachable = router.registry.get_sample_value("trimtab_reports_total", {"result": "unreachable"})
        await control.start()
        await until(lambda: len(taken(control)) == 7)
    assert unreachable is not None and unreachable >= 1
    assert taken(control) == [record.request_id for record in router.fleet.records]
    assert control.reports[-1].dropped_records == 0


@in_loop
async def test_what_waits_is_bounded_and_the_oldest_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_WAITING_RECORDS", 50)
    async with both(tmp_path, answer=lambda report: 503) as (router, control):
        await until(lambda: control.reports)  # an empty report hangs
        router.talk(70)
        assert len(router.outbox._records) == 50
        control.answer = lambda report: 200
        await until(lambda: len(taken(control)) == 50)
    assert taken(control) == [record.request_id for record in router.fleet.records[20:]]
    assert control.reports[-1].dropped_records == 20
    assert "trimtab_records_dropped 20.0" in control.reports[-1].metrics


@in_loop
async def test_many_records_do_not_wait_for_the_second_to_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "REPORT_S", 30.0)
    monkeypatch.setattr(module, "MAX_RECORDS", 20)
    async with both(tmp_path) as (router, control):
        router.talk(45)
        await until(lambda: len(taken(control)) == 40)
        assert [len(report.records) for report in control.reports] == [20, 20]


@in_loop
async def test_a_mistake_inside_ends_no_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mistakes = iter([ZeroDivisionError, RecursionError])

    def now_and_then(registry: CollectorRegistry) -> str:
        if mistake := next(mistakes, None):
            raise mistake
        return page(registry)

    monkeypatch.setattr("router.outbox.page", now_and_then)
    async with both(tmp_path) as (router, control):
        await until(lambda: control.reports)
        control.offered = lambda after, have: web.Response(text="[" * 100_000)
        await until(lambda: len(control.polls) > 2)
        control.publish(publication(9))
        await published(router, 9)
        write_pin(tmp_path, Pin(1.0, "me", "now"))
        await pinned(router, 1.0)


# -- publications ------------------------------------------------------------------------------------------------------


@in_loop
async def test_a_publication_is_taken_at_once_and_kept_on_disk(tmp_path: Path):
    async with both(tmp_path) as (router, control):
        await until(lambda: control.polls)
        control.publish(publication(8, price=2.0))
        await published(router, 8)
        assert router.current.publication == publication(8, price=2.0)
        await until(lambda: any(report.prices == {} and report.policy_version == 8 for report in control.reports))
    assert LastPublication(tmp_path, TableCache(tmp_path)).load() == publication(8, price=2.0)
    assert not list(tmp_path.glob("*.part"))


@in_loop
async def test_a_table_travels_once(tmp_path: Path):
    async with both(tmp_path) as (router, control):
        for version, text in ((8, TEXT), (9, TEXT), (10, OTHER)):
            control.publish(publication(version, text=text))
            await published(router, version)
        await until(lambda: control.polls[-1]["after"] == "10")
    assert [poll["have"] for poll in control.polls] == ["", DIGEST, DIGEST, f"{DIGEST},{OTHER_DIGEST}"]
    assert [poll["after"] for poll in control.polls] == ["1", "8", "9", "10"]
    assert LastPublication(tmp_path, TableCache(tmp_path)).load() == publication(10, text=OTHER)


BAD: dict[str, Callable[[dict[str, Any]], object]] = {
    "no object": lambda wire: [],
    "another format": lambda wire: {**wire, "format": 99},
    "a changed policy": lambda wire: {**wire, "arms": {"main": {**wire["arms"]["main"], "explore": 0.3}}},
    "no table": lambda wire: {**wire, "tables": {}},
    "another table": lambda wire: {**wire, "tables": {DIGEST: OTHER}},
    "a table that is none": lambda wire: {**wire, "tables": {DIGEST: "{}"}},
    "no main arm": lambda wire: {**wire, "arms": {}},
}


@pytest.mark.parametrize("case", BAD)
@in_loop
async def test_a_bad_publication_leaves_the_last_one_in_force(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    wire = publication_to_wire(publication(9), DOCUMENTS)
    async with both(tmp_path) as (router, control):
        before = router.current.publication
        control.offered = lambda after, have: web.json_response(BAD[case](wire))
        await until(lambda: len(control.polls) >= 3)
        assert router.current.publication is before
        assert not (tmp_path / "publication.json").exists()
        control.publish(publication(9))
        await published(router, 9)
    assert "cannot be used" in caplog.text


@pytest.mark.parametrize("status", [500, 404, 204, 200])
@in_loop
async def test_a_control_process_that_answers_at_once_is_not_asked_in_a_circle(status: int, tmp_path: Path):
    """204 at once, the old publication again, or an error: a few polls a second, not thousands."""
    async with both(tmp_path) as (router, control):
        old = publication_to_wire(publication(1), DOCUMENTS)
        control.offered = lambda after, have: (
            web.json_response(old) if status == 200 else web.Response(status=status, text="not JSON")
        )
        begun = len(control.polls)
        await asyncio.sleep(0.3)
        assert 2 <= len(control.polls) - begun <= 35  # 0.01 s apart, at least
        control.publish(publication(9))
        await published(router, 9)


@in_loop
async def test_an_older_publication_is_not_taken(tmp_path: Path):
    async with both(tmp_path) as (router, control):
        control.publish(publication(9))
        await published(router, 9)
        control.offered = lambda after, have: web.json_response(publication_to_wire(publication(5), DOCUMENTS))
        begun = len(control.polls)
        await until(lambda: len(control.polls) > begun + 2)
        assert router.current.published_version == 9
    assert json.loads((tmp_path / "publication.json").read_text())["version"] == 9


# -- from disk alone ---------------------------------------------------------------------------------------------------


def kept(folder: Path, published: Publication, text: str = TEXT) -> Path:
    """A folder with a publication, as a process left it."""
    cache = TableCache(folder)
    cache.add(text, "t")
    LastPublication(folder, cache).save(publication_to_wire(published, DOCUMENTS, [DIGEST]))
    return folder / "publication.json"


def loaded(folder: Path) -> Publication | None:
    return LastPublication(folder, TableCache(folder)).load()


def test_without_a_publication_on_disk_there_is_none(tmp_path: Path):
    assert loaded(tmp_path) is None


def test_a_table_that_the_router_had_from_elsewhere_lies_on_disk_too(tmp_path: Path):
    """It came with the settings, so it did not travel; the next version of the program may not ship it."""
    kept(tmp_path, publication(8))
    assert loaded(tmp_path) == publication(8)


@pytest.mark.parametrize("text", ["", "{", "null", "[]", '{"format": 1}', "\x00", "{}" * 9])
def test_a_damaged_publication_is_said_and_ignored(text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    kept(tmp_path, publication(8)).write_text(text)
    assert loaded(tmp_path) is None
    assert str(tmp_path / "publication.json") in caplog.text


@pytest.mark.parametrize("text", [None, "", "{}", OTHER])
def test_a_damaged_table_is_said_and_ignored_and_the_next_process_mends_it(text: str | None, tmp_path: Path):
    kept(tmp_path, publication(8))
    table = tmp_path / f"table-{DIGEST}.json"
    if text is None:
        table.unlink()
    else:
        table.write_text(text)
    assert loaded(tmp_path) is None
    kept(tmp_path, publication(9))
    assert loaded(tmp_path) == publication(9)


def test_a_folder_that_cannot_be_written_is_said_and_not_fatal(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    kept(tmp_path / "nowhere", publication(8))
    assert "could not be saved" in caplog.text


def test_a_digest_is_no_path(tmp_path: Path):
    (tmp_path / "secret").write_text(TEXT)
    for digest in ("../secret", "x", "", "a" * 63 + "/", "é" * 64):
        with pytest.raises(WireError):
            TableCache(tmp_path).get(digest, None)


# -- the pin -----------------------------------------------------------------------------------------------------------


@in_loop
async def test_a_pin_works_without_a_control_process(tmp_path: Path):
    async with running(tmp_path, None) as router:
        for x in (1.0, 0.25, 0.0, None, 0.5):
            write_pin(tmp_path, None if x is None else Pin(x, "me", "2026-01-31T03:00:00Z"))
            await pinned(router, x)
            assert router.current.publication.arms["main"].pin_x == x


@in_loop
async def test_a_pin_works_with_a_dead_control_process_and_outlasts_a_publication(tmp_path: Path):
    async with both(tmp_path) as (router, control):
        await control.stop()
        write_pin(tmp_path, Pin(1.0, "me", "now"))
        await pinned(router, 1.0)
        await control.start()
        control.publish(publication(9))
        await published(router, 9)
        assert router.current.publication.arms["main"].pin_x == 1.0
        await until(lambda: any(report.pin_x == 1.0 for report in control.reports))
        write_pin(tmp_path, None)
        await until(lambda: router.current.publication == publication(9))


@pytest.mark.parametrize(
    "text", ["", "{", "null", "[]", "{}", '{"x": 2, "by": "me", "at": "now"}', '{"x": NaN, "by": "me", "at": "now"}']
)
@in_loop
async def test_a_damaged_pin_changes_nothing_and_is_said_once(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.ERROR)
    async with running(tmp_path, None) as router:
        write_pin(tmp_path, Pin(1.0, "me", "now"))
        await pinned(router, 1.0)
        (tmp_path / "pin.json").write_text(text)
        await until(lambda: "is no pin" in caplog.text)
        await asyncio.sleep(0.05)
        assert router.current.pin_x == 1.0
        assert caplog.text.count("is no pin") == 1
        write_pin(tmp_path, None)
        await pinned(router, None)


def test_a_pin_is_read_as_it_was_written(tmp_path: Path):
    assert read_pin(tmp_path) is None
    write_pin(tmp_path, None)
    write_pin(tmp_path, Pin(0.1, "ops", "2026-01-31"))
    assert read_pin(tmp_path) == Pin(0.1, "ops", "2026-01-31")
    assert [path.name for path in tmp_path.iterdir()] == ["pin.json"]
    with pytest.raises(ValueError, match=r"0\.\.1"):
        Pin(1.1, "me", "now")
    (tmp_path / "pin.json").write_text("{")
    with pytest.raises(ValueError, match="trimtab pin"):
        read_pin(tmp_path)
