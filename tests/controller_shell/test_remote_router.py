"""A router on another host than the control process: its orders about nodes come over HTTP, into its own folder."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from controller.app import create_app
from controller.metrics import ControlCollector
from controller.nodes_api import mount_nodes
from controller.scheduler import Scheduler
from router.membership import orders_source
from router.membership.orders import Added, Drained, Orders, change_orders, read_orders, write_orders
from router.membership.orders_source import OrdersSource
from router.membership.roster import MAX_MEMBERS, Roster
from router.membership.source import Tell
from tests.controller_shell.reports import loop_in

TOKEN = "of-this-test"


class Site:
    """A control process's face with a state folder, and a router's folder that is not the same."""

    def __init__(self, tmp_path: Path) -> None:
        self.control, self.router = tmp_path / "control", tmp_path / "router"
        self.control.mkdir()
        self.router.mkdir()
        loop, clock = loop_in(self.control, token=TOKEN)
        app = create_app(loop, ControlCollector(loop, Scheduler(clock=clock), "t"), CollectorRegistry(), version="t")
        mount_nodes(app, loop)
        self.roster = Roster(("admin",))
        self.url = ""
        self._app = app

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        with served(self._app) as self.url:
            yield

    def follow(self, *states: Callable[[], object], token: str | None = TOKEN) -> None:
        """Run a router's source until each of the states has been there, in order."""

        async def scene() -> None:
            source = OrdersSource(self.router, self.url, token)
            task = asyncio.ensure_future(source.run(Tell("admin", self.roster, time.monotonic)))
            try:
                async with asyncio.timeout(30.0):
                    for state in states:
                        while not state():
                            assert not task.done(), task.exception()
                            await asyncio.sleep(0.01)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

        asyncio.run(scene())

    @property
    def urls(self) -> list[str]:
        return [each.url for each in self.roster.states["admin"].members]

    @property
    def problem(self) -> str:
        return self.roster.states["admin"].problem


@contextlib.contextmanager
def served(app: FastAPI) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        end_s = time.monotonic() + 20
        while not (server.started and server.servers):
            assert time.monotonic() < end_s, "the server did not start"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(orders_source, "LOOK_S", 0.02)
    monkeypatch.setattr(orders_source, "ASK_S", 0.02)
    return Site(tmp_path)


def add(site: Site, *urls: str) -> None:
    for url in urls:
        change_orders(site.control, lambda orders, url=url: orders.add(Added(url, "decode")))  # type: ignore[misc]


def test_orders_given_there_are_followed_here_and_kept(site: Site):
    add(site, "http://a:1", "http://b:1")

    def drain() -> bool:
        change_orders(site.control, lambda orders: orders.drain(Drained("http://a:1")))
        return True

    with site.serving():
        site.follow(lambda: len(site.urls) == 2, drain, lambda: site.roster.drained == {"http://a:1"})
    assert read_orders(site.router) == read_orders(site.control) and not site.problem

    site.roster = Roster(("admin",))
    site.follow(lambda: len(site.urls) == 2 and site.roster.drained)
    assert not site.problem, "a control process that is away is no problem: this router has been told"


def test_as_many_orders_as_there_may_be_arrive_whole(site: Site):
    added = tuple(Added(f"http://engine-{at}.inference.svc:8000", "decode", by="x" * 200) for at in range(MAX_MEMBERS))
    write_orders(site.control, Orders(1, added))
    with site.serving():
        site.follow(lambda: len(site.urls) == MAX_MEMBERS)
    assert not site.problem


@pytest.mark.parametrize("token", [None, "another"])
def test_a_wrong_token_is_told_and_changes_nothing(site: Site, token: str | None):
    add(site, "http://a:1")
    with site.serving():
        site.follow(lambda: site.problem, token=token)
    assert "it answers 401; give this router the token" in site.problem and not site.urls
    assert token is None or token not in site.problem


def test_a_problem_is_over_once_the_orders_can_be_had(site: Site):
    add(site, "http://a:1")
    (site.control / "nodes.json").write_text("{")

    def mend() -> bool:
        write_orders(site.control, Orders(1, (Added("http://a:1", "decode"),)))
        return True

    with site.serving():
        site.follow(lambda: "it answers 500" in site.problem, mend, lambda: site.urls and not site.problem)


def test_a_copy_that_was_damaged_here_is_fetched_again(site: Site):
    add(site, "http://a:1")

    def damage() -> bool:
        (site.router / "nodes.json").write_text("{")
        return True

    with site.serving():
        site.follow(lambda: len(site.urls) == 1, damage, lambda: read_or_none(site.router) == read_orders(site.control))
    assert site.urls == ["http://a:1"]


def read_or_none(folder: Path) -> Orders | None:
    try:
        return read_orders(folder)
    except ValueError:
        return None


@pytest.mark.parametrize(
    ("body", "told"),
    [(b"<html>", "cannot be used"), (b" " * (orders_source.MAX_BYTES + 1), "more than 1048576 bytes")],
)
def test_what_is_no_answer_of_a_control_process_is_told(site: Site, body: bytes, told: str):
    app = FastAPI()

    @app.get("/internal/v1/nodes")
    async def nodes() -> object:
        from starlette.responses import Response

        return Response(body)

    with served(app) as site.url:
        site.follow(lambda: told in site.problem)
    assert not site.urls
