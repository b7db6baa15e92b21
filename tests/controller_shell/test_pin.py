"""The pin on record, whoever set it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from controller.audit import AuditRow
from controller.pin import look, noticed, put
from router.pin import Pin, write_pin
from tests.controller_shell.reports import config
from trimtab.control import build_control


def test_a_pin_is_put_looked_at_and_lifted(tmp_path: Path) -> None:
    assert look(tmp_path).pin is None
    put(tmp_path, 0.25, "alice", "2026-11-30T00:00:00+00:00")
    assert look(tmp_path).pin == Pin(0.25, "alice", "2026-11-30T00:00:00+00:00")
    put(tmp_path, None, "alice", "2026-11-30T00:00:00+00:00")
    assert look(tmp_path).pin is None and not look(tmp_path).warning


def test_a_damaged_file_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "pin.json").write_bytes(b"\xff{")
    assert look(tmp_path).pin is None and "pin.json" in look(tmp_path).warning


def test_each_change_goes_on_record_once() -> None:
    pin = Pin(0.0, "bob", "t1")
    rows: list[AuditRow] = []
    for now, at_s in ((None, 1.0), (pin, 2.0), (pin, 3.0), (Pin(0.0, "bob", "t2"), 4.0), (None, 5.0), (None, 6.0)):
        row = noticed(now, rows, at_s)
        if row is not None:
            rows.insert(0, row)
    assert [(row.at_s, row.action, row.detail) for row in reversed(rows)] == [
        (2.0, "pin", "off -> x=0, t1"),
        (4.0, "pin", "x=0 -> x=0, t2"),
        (5.0, "unpin", "x=0 -> off"),
    ]


def test_who_lifted_a_pin_by_hand_is_on_record(tmp_path: Path) -> None:
    async def scene() -> None:
        control = build_control(config(tmp_path))
        write_pin(tmp_path, Pin(1.0, "carol", "t1"))
        await control.flush()
        write_pin(tmp_path, None, "dave")
        await control.flush()
        assert [(row.actor, row.detail) for row in control.store.audits()] == [
            ("dave", "x=1 -> off"),
            ("carol", "off -> x=1, t1"),
        ]
        control.store.close(1.0)

    asyncio.run(scene())


def test_a_pin_set_by_hand_while_the_process_was_dead_is_noticed(tmp_path: Path) -> None:
    async def scene() -> None:
        write_pin(tmp_path, Pin(1.0, "carol", "t1"))
        for _ in range(2):  # and not again after a restart
            control = build_control(config(tmp_path))
            await control.flush()
            await control.flush()
            assert [(row.actor, row.action, row.detail) for row in control.store.audits()] == [
                ("carol", "pin", "off -> x=1, t1")
            ]
            control.store.close(1.0)

    asyncio.run(scene())
