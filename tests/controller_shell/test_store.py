"""The store: what outlives the process, what is done about a bad file or disk, and that nothing waits for it."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from controller.store import FILE, MAX_PENDING, MIGRATIONS, RETENTION_S, AuditRow, Store, TickRow
from router.policy import Policy, Publication, Weights
from slos.counts import Count
from tests.controller_shell.reports import SLOS

ROW = TickRow(100.0, "m", 0.5, None, 2.0, 0.04, 0.4, 3.0, 15, 10, 6, 1, "hold", "active", None)


def publication(version: int, price: float) -> Publication:
    policy = Policy(version, {}, Weights.from_price(0.4), {"m": Weights.from_price(price)})
    return Publication(version, {"main": policy})


def test_everything_comes_back(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put_publication(publication(7, 0.3), 100.0)
    store.put_ticks([ROW, replace(ROW, at_s=105.0, ttft_s=float("inf"))])
    store.put_counts(SLOS, {"later-ttft": Count(), "tpot": Count(9, 1, 2)}, {("r", "b"): {"tpot": Count(9, 1, 2)}}, 1.0)
    store.audit(AuditRow(100.0, "alice", "pin", "x=0"))
    store.put_document("alerts", '{"tpot": 5.0}', 100.0)
    store.close(110.0)
    again = Store(tmp_path)
    restored = again.restore(SLOS)
    assert restored.publication is not None
    assert restored.publication.version == 7
    assert restored.publication.weights == {"m": Weights.from_price(0.3)}
    assert restored.counts["tpot"] == Count(9, 1, 2)
    assert restored.boots == {("r", "b"): {"tpot": Count(9, 1, 2)}}
    assert [row.ttft_s for row in again.series(0.0)] == [0.5, float("inf")]
    assert again.series(0.0)[0] == ROW
    assert [row.actor for row in again.audits()] == ["alice"]
    assert again.document("alerts") == '{"tpot": 5.0}' and again.document("none") is None
    assert again.on_disk and not again.problem


def test_a_new_folder_is_made_and_empty(tmp_path: Path) -> None:
    store = Store(tmp_path / "deep" / "state")
    assert store.on_disk and store.restore(SLOS).publication is None and store.series(0.0) == []


def test_what_is_not_yet_written_is_read_back_all_the_same(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put_ticks([ROW])
    store.flush(100.0)
    store.put_ticks([replace(ROW, at_s=105.0)])
    store.audit(AuditRow(1.0, "a", "pin", ""))
    store.put_document("alerts", "{}", 1.0)
    assert [row.at_s for row in store.series(0.0)] == [100.0, 105.0]
    assert store.series(101.0, "m")[0].at_s == 105.0 and store.series(0.0, "other") == []
    assert store.document("alerts") == "{}" and len(store.audits()) == 1


def test_counts_of_an_slo_that_has_changed_begin_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put_counts(SLOS, {"tpot": Count(9, 1), "later-ttft": Count(5, 0)}, {}, 1.0)
    store.close(1.0)
    changed = (SLOS[0], replace(SLOS[1], threshold_s=0.05))
    assert Store(tmp_path).restore(changed).counts == {"later-ttft": Count(5, 0)}


@pytest.mark.parametrize("why", ["newer", "a folder"])
def test_a_file_that_cannot_be_used_is_left_as_it_is_and_memory_serves(tmp_path: Path, why: str) -> None:
    path = tmp_path / FILE
    if why == "a folder":
        path.mkdir()
    else:
        Store(tmp_path).close(100.0)
        with sqlite3.connect(path) as db:
            db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    before = path.read_bytes() if path.is_file() else None
    store = Store(tmp_path)
    assert not store.on_disk and str(path) in store.problem and store.errors == 1
    store.put_ticks([ROW])
    store.put_publication(publication(3, 0.2), 1.0)
    assert store.flush(100.0) and store.series(0.0) == [ROW]
    assert str(path) in store.problem, "a flush into memory must not hide it"
    store.close(100.0)
    assert (path.read_bytes() if path.is_file() else None) == before


def test_a_full_disk_is_told_and_what_waits_is_written_when_there_is_room(tmp_path: Path) -> None:
    store = Store(tmp_path)
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    store.put_ticks([replace(ROW, at_s=float(at)) for at in range(5000)])
    store.put_publication(publication(4, 0.2), 1.0)
    assert not store.flush(100.0)
    assert "full" in store.problem and store.pending == 5000
    assert len(store.series(0.0)) == 5000
    store._db.execute("PRAGMA max_page_count = 1000000")
    assert store.flush(100.0)
    assert store.problem == "" and store.pending == 0
    store.close(100.0)
    restored = Store(tmp_path).restore(SLOS).publication
    assert restored is not None and restored.version == 4


def test_a_disk_that_stays_full_costs_the_oldest_rows_only(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put_ticks([replace(ROW, at_s=float(at)) for at in range(MAX_PENDING + 7)])
    assert store.pending == MAX_PENDING and store.dropped_rows == 7
    assert store.series(0.0)[0].at_s == 7.0


def test_rows_that_arrive_while_writing_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    store.put_ticks([ROW])
    late = replace(ROW, at_s=105.0)
    import controller.store as module

    write = module._write

    def slow(*args: object) -> None:
        write(*args)  # type: ignore[arg-type]
        store.put_ticks([late])
        store.put_publication(publication(5, 0.2), 2.0)

    monkeypatch.setattr(module, "_write", slow)
    assert store.flush(100.0)
    assert store.pending == 1
    monkeypatch.setattr(module, "_write", write)
    assert store.flush(100.0)
    assert [row.at_s for row in store.series(0.0)] == [100.0, 105.0]
    restored = store.restore(SLOS).publication
    assert restored is not None and restored.version == 5


def test_old_rows_go(tmp_path: Path) -> None:
    store = Store(tmp_path)
    now_s = 10 * RETENTION_S
    store.put_ticks([replace(ROW, at_s=now_s - RETENTION_S - 1), replace(ROW, at_s=now_s - 1)])
    store.flush(now_s)
    assert [row.at_s for row in store.series(0.0)] == [now_s - 1]


def test_a_store_that_is_busy_does_not_pile_up_flushes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.store.READ_WAIT_S", 0.01)
    store = Store(tmp_path)
    store.put_ticks([ROW])
    with store._io:
        assert not store.flush(1.0)
        assert store.series(0.0) == [ROW]
    assert store.flush(1.0)


def test_the_schema_is_versioned_by_its_migrations(tmp_path: Path) -> None:
    Store(tmp_path).close(1.0)
    with sqlite3.connect(tmp_path / FILE) as db:
        assert db.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS)
        assert db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
