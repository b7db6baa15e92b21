"""The router's state directory: full, read-only, damaged, written by a newer version. It serves on and says so."""

from __future__ import annotations

import errno
import json
import logging
import os
import tempfile
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from router import outbox as outboxes
from router.clock import Clock
from router.connectors import CONNECTORS
from router.connectors.protocol import ConnectorOptions
from router.core import RouterCore
from router.current import Current
from router.metrics import RouterMetrics
from router.nodes import NodeWatch, endpoints
from router.outbox import LastPublication, Outbox, TableCache
from router.pin import NAME, Pin, write_pin
from router.policy import Policy, Publication, Weights
from router.upstream import Timeouts, Upstream
from router.wire import publication_to_wire
from tests.router_http.client import in_loop
from trimtab.processes import installation_secret, read_settings, save_settings
from trimtab.settings import Settings

PUBLICATION = Publication(7, {"main": Policy(7, {}, Weights(1, 1))})


def made(folder: Path) -> tuple[Outbox, LastPublication, RouterMetrics, RouterCore]:
    cache = TableCache(folder)
    last = LastPublication(folder, cache)
    watch = NodeWatch(endpoints([], ["http://127.0.0.1:1"], []), Upstream(Timeouts()))
    current = Current(Publication(1, {"main": Policy(1, {}, Weights(1, 1))}))
    core = RouterCore(current, watch.nodes(), CONNECTORS["nixl"](ConnectorOptions()), ())
    metrics = RouterMetrics(CollectorRegistry(), ())
    outbox = Outbox(
        core,
        watch,
        metrics,
        cache,
        last,
        name="router-0",
        boot="b",
        control_url=None,
        token=None,
        state_dir=folder,
        now_s=lambda: 0.0,
    )
    return outbox, last, metrics, core


def problem(outbox: Outbox, metrics: RouterMetrics, what: str) -> float | None:
    outbox.update_gauges()
    return metrics.registry.get_sample_value("trimtab_state_problem", {"what": what})


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
@in_loop
async def test_a_disk_that_takes_nothing_costs_the_publication_on_disk_and_not_the_one_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
):
    def fails(path: Path, text: str) -> None:
        raise OSError(code, os.strerror(code))

    outbox, last, metrics, core = made(tmp_path)
    write = outboxes._write
    monkeypatch.setattr(outboxes, "_write", fails)
    assert core.current.swap(PUBLICATION)
    with caplog.at_level(logging.ERROR):
        last.save(publication_to_wire(PUBLICATION, {}))
    assert "serving on" in caplog.text and os.strerror(code) in caplog.text
    assert core.current.published_version == 7 and problem(outbox, metrics, "publication") == 1
    monkeypatch.setattr(outboxes, "_write", write)
    last.save(publication_to_wire(PUBLICATION, {}))  # the next one is kept again
    assert problem(outbox, metrics, "publication") == 0
    assert LastPublication(tmp_path, TableCache(tmp_path)).load() is not None


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\x00" * 4096,
        b"{",
        b"[]",
        b'"seven"',
        b'{"format": 99, "version": 8}',
        b"[" * 5000 + b"]" * 5000,
        b'{"format": 1, "version": 1e999}',
    ],
)
@in_loop
async def test_a_publication_that_is_damaged_or_newer_is_said_and_the_settings_serve(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: bytes
):
    (tmp_path / "publication.json").write_bytes(damage)
    outbox, last, metrics, _ = made(tmp_path)
    with caplog.at_level(logging.ERROR):
        assert last.load() is None
    assert "publication.json cannot be used" in caplog.text
    assert problem(outbox, metrics, "publication") == 1


@in_loop
async def test_a_publication_with_other_contents_than_a_publication_is_said_too(tmp_path: Path):
    wire = json.loads(json.dumps(publication_to_wire(PUBLICATION, {})))
    for key in list(wire):
        values: tuple[object, ...] = (None, [], {"x": 1}, "text", -1)
        for value in values:
            (tmp_path / "publication.json").write_text(json.dumps({**wire, key: value}))
            last = LastPublication(tmp_path, TableCache(tmp_path))
            assert last.load() is None or not last.problem, key


@in_loop
async def test_a_damaged_pin_leaves_what_was_in_force_and_is_said_until_it_is_mended(tmp_path: Path):
    outbox, _, metrics, core = made(tmp_path)
    write_pin(tmp_path, Pin(0.5, "me", "now"))
    outbox.check_pin()
    (tmp_path / NAME).write_text("{")
    outbox.check_pin()
    assert (core.current.pin_x, problem(outbox, metrics, "pin")) == (0.5, 1)
    write_pin(tmp_path, None)
    outbox.check_pin()
    lifted = core.current.pin_x
    assert (lifted, problem(outbox, metrics, "pin")) == (None, 0)


@pytest.mark.parametrize("damage", [b"short", b""])
def test_a_damaged_secret_is_replaced(tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture):
    (tmp_path / "secret").write_bytes(damage)
    found = installation_secret(tmp_path)
    assert len(found) == 32 and installation_secret(tmp_path) == found
    assert "damaged" in caplog.text


def test_a_secret_that_cannot_be_read_is_one_for_this_process(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "secret").mkdir()
    assert len(installation_secret(tmp_path)) == 32
    assert "conversations begin anew" in caplog.text


def test_settings_go_elsewhere_where_the_state_directory_takes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "spare"))
    (tmp_path / "spare").mkdir()
    (tmp_path / "settings.json").mkdir()  # nothing can be written there, whoever runs this
    settings = Settings(decode=("http://127.0.0.1:1",), state_dir=str(tmp_path))
    assert read_settings(save_settings(settings)) == settings
    assert "nothing will outlive this start" in caplog.text


def test_a_wall_clock_that_jumps_moves_nothing_that_the_router_counts_from(monkeypatch: pytest.MonkeyPatch):
    clock = Clock()
    before_s = clock.now_s()
    for jump_s in (3600.0, -86_400.0):
        monkeypatch.setattr("router.clock.time.time", lambda jump_s=jump_s: before_s + jump_s)
        assert 0 <= clock.now_s() - before_s < 60.0
