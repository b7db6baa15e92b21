"""Keys in a file: rotated without a restart, and a bad file never opens or closes the door."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from router.doors import BadKeys, Doors
from router.errors import RequestError
from router.key_file import KeyFile


def lets_in(doors: Doors, key: str) -> bool:
    try:
        doors.caller({b"authorization": b"Bearer " + key.encode()})
    except RequestError:
        return False
    return True


def write(path: Path, text: str) -> None:
    """As a careful operator does: all at once."""
    partial = path.with_suffix(".part")
    partial.write_text(text)
    partial.replace(path)


def test_keys_change_with_their_file_and_those_of_the_variable_stay(tmp_path, caplog):
    path, doors = tmp_path / "keys", Doors()
    path.write_text("web:one\n")
    file = KeyFile(path, doors, [("ops", "fixed")])
    file.load()
    assert [lets_in(doors, key) for key in ("one", "two", "fixed")] == [True, False, True]
    write(path, "web:one\nweb:two\n")
    file.look()
    assert [lets_in(doors, key) for key in ("one", "two", "fixed")] == [True, True, True]
    write(path, "web:two\n")
    file.look()
    assert [lets_in(doors, key) for key in ("one", "two", "fixed")] == [False, True, True]


@pytest.mark.parametrize("text", ["", "# nothing\n", "a:\n", "b c d\n", "\udcff"])
def test_a_file_that_became_bad_changes_nothing_and_is_told_once(tmp_path, caplog, text):
    path, doors = tmp_path / "keys", Doors()
    path.write_text("web:one\n")
    file = KeyFile(path, doors)
    file.load()
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    os.utime(path, ns=(1, 1))
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            file.look()
    assert lets_in(doors, "one") and not lets_in(doors, "two")
    assert len([r for r in caplog.records if "stay" in r.getMessage()]) == 1


def test_a_file_that_went_away_changes_nothing_and_one_that_comes_back_counts(tmp_path):
    path, doors = tmp_path / "keys", Doors()
    path.write_text("one")
    file = KeyFile(path, doors)
    file.load()
    path.unlink()
    file.look()
    assert lets_in(doors, "one")
    write(path, "two")
    file.look()
    assert lets_in(doors, "two") and not lets_in(doors, "one")


def test_at_the_start_a_bad_file_is_refused(tmp_path):
    with pytest.raises(BadKeys, match="No such file"):
        KeyFile(tmp_path / "keys", Doors()).load()


def test_a_file_that_others_may_read_is_warned_of(tmp_path, caplog):
    path = tmp_path / "keys"
    path.write_text("one")
    path.chmod(0o644)
    KeyFile(path, Doors()).load()
    assert "chmod 640" in caplog.text and "one" not in caplog.text
