"""The store: what outlives the process, what is done about a bad file or disk, and that nothing waits for it."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

import controller.store as module
from controller import database, stored
from controller.audit import AuditRow
from controller.database import MIGRATIONS
from controller.ledgers import LedgerKey, SliceRow
from controller.store import FILE, MAX_PENDING, Store
from controller.stored import RETENTION_S, OutboxRow, TickRow
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

    write = stored.write

    def slow(*args: object) -> None:
        write(*args)  # type: ignore[arg-type]
        store.put_ticks([late])
        store.put_publication(publication(5, 0.2), 2.0)

    monkeypatch.setattr(module, "write", slow)
    assert store.flush(100.0)
    assert store.pending == 1
    monkeypatch.setattr(module, "write", write)
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


# -- the ledger's slices ----------------------------------------------------------------------------------------------

KEY, OTHER_KEY = LedgerKey("tpot", "aaaa", 300.0), LedgerKey("tpot", "bbbb", 300.0)
LATEST = int(10 * RETENTION_S // 300)


def put(store: Store, *rows: SliceRow) -> None:
    store.put_counts(SLOS, {"tpot": Count(9, 1)}, {}, 1.0, rows)


def test_slices_come_back_by_what_was_promised_and_writing_them_again_changes_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    rows = [SliceRow(KEY, LATEST + at, Count(10 + at, at, 1)) for at in range(3)]
    put(store, *rows, SliceRow(OTHER_KEY, LATEST, Count(5, 5)))
    assert store.flush(10 * RETENTION_S)
    put(store, *rows)
    put(store, SliceRow(KEY, LATEST + 2, Count(20, 3)))
    store.close(10 * RETENTION_S)
    again = Store(tmp_path)
    assert again.slices([KEY]) == [*rows[:2], SliceRow(KEY, LATEST + 2, Count(20, 3))]
    assert again.slices([OTHER_KEY]) == [SliceRow(OTHER_KEY, LATEST, Count(5, 5))]
    assert again.last_slice_s() == (LATEST + 2) * 300.0
    found = {row.revision: row for row in again.revisions()}
    assert found["aaaa"].count == Count(41, 4, 2) and found["aaaa"].to_s - found["aaaa"].from_s == 900.0
    assert found["bbbb"].count == Count(5, 5), "the old promise stays visible"


def test_slices_that_wait_for_a_disk_stay_until_they_are_written(tmp_path: Path) -> None:
    store = Store(tmp_path)
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    put(store, *(SliceRow(KEY, LATEST + at, Count(at, 0)) for at in range(3000)))
    assert not store.flush(1.0)
    put(store, SliceRow(KEY, LATEST + 1, Count(100, 0)))
    store._db.execute("PRAGMA max_page_count = 1000000")
    assert store.flush(2.0)
    rows = store.slices([KEY])
    assert len(rows) == 3000 and rows[1].count == Count(100, 0)


def test_slices_older_than_the_budgets_go_and_so_do_promises_without_any(tmp_path: Path) -> None:
    store = Store(tmp_path)
    now_s = 100 * 86_400.0
    recent = int((now_s - 28 * 86_400.0) // 300)
    put(store, SliceRow(KEY, recent, Count(1, 0)), SliceRow(OTHER_KEY, recent - 300, Count(1, 0)))
    store.flush(now_s)
    assert [row.revision for row in store.revisions()] == ["aaaa"]
    assert store._db.execute("SELECT count(*) FROM slo_revisions").fetchone()[0] == 1


def test_incidents_and_the_notices_that_wait_are_of_one_moment(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first, second = OutboxRow("a", "webhook", 1.0, "{}"), OutboxRow("b", "webhook", 2.0, "{}")
    store.put_alerts('{"version": 1}', [first, second], 2.0)
    assert store.outbox() == [first, second], "what is not yet written is read back"
    store.flush(3.0)
    store.put_alerts('{"version": 2}', [second], 3.0)
    store.close(4.0)
    again = Store(tmp_path)
    assert again.outbox() == [second] and again.document("alerts") == '{"version": 2}'


# -- what is done about damage ----------------------------------------------------------------------------------------


def damaged(tmp_path: Path) -> Path:
    """A file with 40,000 slices and a hole in the middle."""
    store = Store(tmp_path)
    put(store, *(SliceRow(KEY, LATEST + at, Count(at, 0)) for at in range(40_000)))
    store.put_document("alerts", '{"version": 1}', 1.0)
    store.close(10 * RETENTION_S)
    path = tmp_path / FILE
    data = bytearray(path.read_bytes())
    middle = len(data) // 2 // 4096 * 4096
    data[middle : middle + 4096] = b"\xff" * 4096
    path.write_bytes(bytes(data))
    return path


def test_a_damaged_file_is_set_aside_and_what_can_be_read_is_saved(tmp_path: Path) -> None:
    before = damaged(tmp_path).read_bytes()
    store = Store(tmp_path)
    assert store.on_disk and "was damaged" in store.damage and not store.problem
    (aside,) = tmp_path.glob(f"{FILE}.damaged-*T*Z")
    assert aside.read_bytes() == before and aside.name in store.damage
    rows = store.slices([KEY])
    assert 38_000 < len(rows) < 40_000, "all but the rows of one page"
    assert all(row.count == Count(row.at - LATEST, 0) for row in rows)
    assert rows[0].at == LATEST and rows[-1].at == LATEST + 39_999, "from both ends"
    put(store, SliceRow(KEY, LATEST + 40_000, Count(1, 1)))
    store.close(10 * RETENTION_S)
    again = Store(tmp_path)
    assert not again.damage and len(again.slices([KEY])) == len(rows) + 1


def test_a_file_that_is_no_database_is_set_aside_and_a_new_one_begun(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"this is no database" * 100)
    store = Store(tmp_path)
    assert store.on_disk and "0 rows" in store.damage
    put(store, SliceRow(KEY, LATEST, Count(1, 1)))
    store.close(10 * RETENTION_S)
    assert len(Store(tmp_path).slices([KEY])) == 1


def test_damage_that_is_found_while_it_runs_costs_nothing_that_is_in_memory(tmp_path: Path) -> None:
    store = Store(tmp_path)
    put(store, SliceRow(KEY, LATEST, Count(1, 0)))
    store.flush(10 * RETENTION_S)
    store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    path = tmp_path / FILE
    path.write_bytes(b"\xff" * path.stat().st_size)
    store._db.close()
    store._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    put(store, SliceRow(KEY, LATEST + 1, Count(2, 0)))
    assert not store.flush(10 * RETENTION_S) and store.lost and store.on_disk
    put(store, SliceRow(KEY, LATEST, Count(1, 0)))  # whoever has them all puts them again
    assert store.flush(10 * RETENTION_S)
    assert [row.at for row in Store(tmp_path).slices([KEY])] == [LATEST, LATEST + 1]


def where(store: Store) -> str:
    return "disk" if store.on_disk else "memory"


def test_a_disk_that_comes_back_gets_all_that_was_kept_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Store(tmp_path)
    put(first, SliceRow(KEY, LATEST, Count(1, 0)))
    first.close(10 * RETENTION_S)
    really = database.open_database

    def read_only(path: str) -> sqlite3.Connection:
        if path == ":memory:":
            return really(path)
        raise sqlite3.OperationalError("attempt to write a readonly database")

    monkeypatch.setattr(module, "open_database", read_only)
    store = Store(tmp_path)
    assert where(store) == "memory" and "readonly" in store.problem
    assert len(store.slices([KEY])) == 1, "what can be read is read"
    put(store, SliceRow(KEY, LATEST + 1, Count(2, 0)))
    assert store.flush(100.0) and where(store) == "memory"
    monkeypatch.setattr(module, "open_database", really)
    assert store.flush(120.0) and where(store) == "memory", "tried every minute"
    put(store, SliceRow(KEY, LATEST + 2, Count(3, 0)))
    assert store.flush(170.0) and where(store) == "disk" and store.problem == ""
    store.close(180.0)
    assert [row.at for row in Store(tmp_path).slices([KEY])] == [LATEST, LATEST + 1, LATEST + 2]


def test_a_folder_that_is_not_there_yet_is_used_when_it_is(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("in the way", encoding="utf-8")
    store = Store(tmp_path / "state")
    put(store, SliceRow(KEY, LATEST, Count(1, 0)))
    assert where(store) == "memory" and store.flush(100.0)
    (tmp_path / "state").unlink()
    assert store.flush(200.0) and where(store) == "disk"
    assert len(Store(tmp_path / "state").slices([KEY])) == 1
