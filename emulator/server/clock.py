"""Virtual time on the wall clock: what is due at t happens at `started + t / speed`.

The schedule is absolute. A late process runs what is overdue at once, each event still stamped with its own
time, so nothing drifts; how late it was is the caller's to measure (`lag.py`). What comes from outside is stamped
with the wall clock as it arrives: do it inside `with clock:`, which first runs what is due and then sets the alarm.

The alarm is a timerfd where there is one (Linux): asyncio's own timers are rounded up to a millisecond by epoll,
which at ten times the speed would be 10 ms of engine time.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from ..events import Events


class Alarm(Protocol):
    """Calls back once, at a time of `time.monotonic`; setting it again moves it."""

    def set(self, at: float) -> None: ...

    def close(self) -> None: ...


class WallClock:
    """Runs one agenda in real time on the running event loop."""

    def __init__(self, events: Events, speed: float = 1.0) -> None:
        if not speed > 0:
            raise ValueError(f"speed must be positive, got {speed}")
        self.events = events
        self.speed = speed
        self._started = time.monotonic()
        self._alarm = _alarm(self._ring)
        self._set_for: float | None = None
        self._running = False

    @property
    def now_s(self) -> float:
        """Engine time of this moment."""
        return (time.monotonic() - self._started) * self.speed

    def late_s(self, due_s: float) -> float:
        """Wall seconds since something was due."""
        return time.monotonic() - self._started - due_s / self.speed

    def close(self) -> None:
        """Nothing happens any more."""
        self._alarm.close()

    def __enter__(self) -> WallClock:
        self.events.run(self.now_s)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wind()

    def _ring(self) -> None:
        self._set_for = None
        self.events.run(self.now_s)
        self._wind()

    def _wind(self) -> None:
        due_s = self.events.next_s
        if due_s is not None and due_s != self._set_for:
            self._set_for = due_s
            self._alarm.set(self._started + due_s / self.speed)


class _LoopAlarm:
    """The event loop's own timer, good to about a millisecond."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._action = action
        self._handle: asyncio.TimerHandle | None = None

    def set(self, at: float) -> None:
        self.close()
        self._handle = self._loop.call_later(max(0.0, at - time.monotonic()), self._action)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()


class _Interval(ctypes.Structure):
    """struct itimerspec: a period that we leave at zero, then the time."""

    _fields_ = [
        ("period_s", ctypes.c_long),
        ("period_ns", ctypes.c_long),
        ("at_s", ctypes.c_long),
        ("at_ns", ctypes.c_long),
    ]


class _TimerFd:
    """timerfd(2) on CLOCK_MONOTONIC, the clock of `time.monotonic`; good to some 50 µs."""

    _ABSOLUTE = 1

    def __init__(self, libc: ctypes.CDLL, action: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._action = action
        self._settime = libc.timerfd_settime
        self._fd = libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError("timerfd_create failed")
        self._loop.add_reader(self._fd, self._ring)

    def set(self, at: float) -> None:
        # A time that is past, but not zero (which would disarm), fires at once.
        whole = int(at)
        self._settime(
            self._fd, self._ABSOLUTE, ctypes.byref(_Interval(0, 0, whole, max(1, int((at - whole) * 1e9)))), None
        )

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _ring(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # it was moved after it fired
            return
        self._action()


def _alarm(action: Callable[[], None]) -> Alarm:
    try:
        return _TimerFd(ctypes.CDLL(None, use_errno=True), action)
    except (AttributeError, OSError):  # no Linux
        return _LoopAlarm(action)
