"""API keys in a file that may change: read again when it does. A file that cannot be read or used is said once, and
the keys that were in force stay."""

from __future__ import annotations

import asyncio
import logging
import stat
from collections.abc import Iterable
from pathlib import Path

from .doors import BadKeys, Doors, read_keys

log = logging.getLogger("trimtab.keys")

LOOK_S = 1.0
MAX_FILE_BYTES = 4 * 1024 * 1024


class KeyFile:
    """Keeps `Doors` as a file says, beside keys that do not change."""

    def __init__(self, path: Path, doors: Doors, fixed: Iterable[tuple[str, str]] = ()) -> None:
        self._path = path
        self._doors = doors
        self._fixed = tuple(fixed)
        self._seen: tuple[int, int, int] | None = None
        self._problem = ""

    def load(self) -> None:
        """Read it for the first time. Raises BadKeys."""
        found = self._path.stat() if self._path.exists() else None
        if found is not None and found.st_mode & (stat.S_IRWXG | stat.S_IRWXO) & ~stat.S_IRGRP:
            log.warning("%s: others than its owner may read or change it; chmod 640", self._path)
        self._read()

    def look(self) -> None:
        """Read it again if it has changed."""
        try:
            if self._stamp() != self._seen:
                self._read()
                log.info("%s: API keys in force: %d", self._path, len(self._doors))
            self._problem = ""
        except (BadKeys, OSError) as error:
            text = str(error) if isinstance(error, BadKeys) else f"{self._path}: {error.strerror}"
            if text != self._problem:  # once, not every second
                self._problem = text
                log.error("%s; the keys that were in force stay", text)

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def _stamp(self) -> tuple[int, int, int]:
        found = self._path.stat()
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> None:
        try:
            stamp = self._stamp()
            with self._path.open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise BadKeys(f"{self._path}: {error.strerror}") from None
        if len(data) > MAX_FILE_BYTES:
            raise BadKeys(f"{self._path}: larger than {MAX_FILE_BYTES} bytes")
        try:
            keys = read_keys(data.decode("utf-8"), str(self._path))
        except UnicodeDecodeError:
            raise BadKeys(f"{self._path}: is no UTF-8 text") from None
        finally:
            self._seen = stamp  # a bad file is looked at again when it changes
        try:
            self._doors.replace([*self._fixed, *keys])
        except BadKeys as error:
            raise BadKeys(f"{self._path}: {error}") from None
