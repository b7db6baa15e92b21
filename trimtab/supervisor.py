"""`trimtab serve`: a tiny supervisor over one control and one router process. Either may die; it is started
again.

A child that ends because of its settings (a port in use, a bad table) ends the whole with its message.
SIGTERM goes to the router first, which drains its streams, then to the control process. SIGHUP goes to both, which
read the SLOs again.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from .processes import EXIT_SETTINGS, StartError
from .reload import has_terminal
from .settings import Settings

log = logging.getLogger("trimtab.serve")

POLL_S = 0.1
BACKOFF_S = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0)
STEADY_S = 30.0
"""A child that ran as long is started again at once."""
CONTROL_STOP_S = 10.0
LISTENS_S = 5.0
LAST_S = 10.0
"""What a router takes after its streams: connections close, the last records are handed over."""


@dataclass(slots=True)
class _Child:
    """One process and its history."""

    name: str
    process: subprocess.Popen[bytes]
    started_s: float
    failures: int = 0
    restart_at_s: float | None = None


class Supervisor:
    """Starts, watches and stops the children."""

    def __init__(self, settings: Settings, settings_path: Path) -> None:
        self._settings = settings
        self._path = settings_path
        self._children: list[_Child] = []
        self._stopping = False
        self._outlives_terminal = True

    def run(self) -> int:
        """Until a signal, or a child's fatal end; returns the exit code."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        self._outlives_terminal = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN or not has_terminal()
        signal.signal(signal.SIGHUP, self._hangup)
        self._children = [self._start("control"), self._start("router")]
        code = 0
        try:
            while not self._stopping:
                time.sleep(POLL_S)
                for child in self._children:
                    self._look_after(child)
        except StartError as error:
            log.error("%s", error)
            code = EXIT_SETTINGS
        finally:
            self._end()
        return code

    def _start(self, name: str) -> _Child:
        command = [sys.executable, "-m", "trimtab", name, "--settings", str(self._path)]
        return _Child(name, subprocess.Popen(command, start_new_session=False), time.monotonic())

    def _look_after(self, child: _Child) -> None:
        now_s = time.monotonic()
        if child.restart_at_s is not None:
            if now_s >= child.restart_at_s:
                fresh = self._start(child.name)
                child.process, child.started_s, child.restart_at_s = fresh.process, fresh.started_s, None
            return
        code = child.process.poll()
        if code is None:
            return
        if code == EXIT_SETTINGS:
            raise StartError(f"the {child.name} process cannot start; its message is above")
        child.failures = 0 if now_s - child.started_s >= STEADY_S else child.failures + 1
        wait_s = BACKOFF_S[min(child.failures, len(BACKOFF_S) - 1)]
        how = f"signal {-code}" if code < 0 else f"code {code}"
        log.error("the %s process ended (%s); starting it again in %.1f s", child.name, how, wait_s)
        child.restart_at_s = now_s + wait_s

    def _stop(self, number: int, frame: object) -> None:
        self._stopping = True

    def _hangup(self, number: int, frame: object) -> None:
        if not self._outlives_terminal and not has_terminal():
            self._stopping = True
            return
        for child in self._children:
            # One that has just started reads the file anyhow, and may not listen for the signal yet: it would end.
            if child.process.poll() is None and time.monotonic() - child.started_s > LISTENS_S:
                child.process.send_signal(signal.SIGHUP)

    def _end(self) -> None:
        leaving_s = max(self._settings.drain_s, self._settings.notice_s) + LAST_S
        for child, patience_s in zip(reversed(self._children), (leaving_s, CONTROL_STOP_S), strict=False):
            if child.process.poll() is None:
                child.process.send_signal(signal.SIGTERM)
                try:
                    child.process.wait(patience_s)
                except subprocess.TimeoutExpired:
                    log.error("the %s process does not end; killing it", child.name)
                    child.process.kill()
                    child.process.wait()
