"""The SLOs of a running process follow their file: an SLO file, or the trimtab.yaml that holds them.

    reloader = Reloader(settings, apply)
    await reloader.run()               # looks every second, and at once after `kick` (SIGHUP)

A file that is good replaces the declaration as one, between two turns or ticks; a bad one is logged with all of its
problems and the old declaration stays. A file is read once it has looked the same twice in a row, so that an editor
may write it in two steps. Reading happens in a thread. `hooks` are told of every attempt: that is where an alert on a
reload that failed hangs. Everything else in a trimtab.yaml is read at the start only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from slos.files import load_slo_file, read_text
from slos.objective import Slo
from slos.policy import Declaration
from slos.problem import SpecError
from slos.revisions import revisions

from .settings import Settings, unknown_tenants
from .settings_file import parse_settings

log = logging.getLogger("trimtab.reload")

LOOK_S = 1.0
MAX_PROBLEMS = 50
"""Shown of one file."""


@dataclass(frozen=True, slots=True)
class ReloadState:
    """How the last attempt went; times are wall time."""

    source: str
    loaded_at_s: float
    """When the declaration in force was read."""
    failed_at_s: float | None = None
    """When the file was found to be bad, None while it is good."""
    problems: tuple[str, ...] = ()
    reloads: int = 0
    failures: int = 0

    @property
    def words(self) -> str:
        """What is wrong, in a sentence; empty if nothing is."""
        if self.failed_at_s is None:
            return ""
        more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
        return f"{self.source} cannot be used, and the SLOs read before stay: {self.problems[0]}{more}"

    def document(self, slos: tuple[Slo, ...]) -> dict[str, object]:
        """For the status."""
        return {
            "source": self.source,
            "loaded_at_s": round(self.loaded_at_s, 3),
            "failed_at_s": None if self.failed_at_s is None else round(self.failed_at_s, 3),
            "problems": list(self.problems),
            "reloads": self.reloads,
            "failures": self.failures,
            "revisions": revisions(slos),
        }


def read_declared(settings: Settings) -> Declaration:
    """What the file of these settings declares now. Raises SpecError."""
    path = Path(settings.slo_path)
    if settings.slo_inline:
        declaration = parse_settings(read_text(path), str(path), path.parent).declaration
    else:
        declaration = load_slo_file(path)
    unknown = unknown_tenants(declaration, settings.tenants)
    if unknown:
        raise SpecError(unknown)
    return declaration


def fresh(settings: Settings) -> Settings:
    """These settings with the declaration as its file has it now, if that is good: a process that is started again
    must not go back to what was declared when the first one started."""
    if not settings.slo_path:
        return settings
    try:
        declaration = read_declared(settings)
    except SpecError:
        return settings  # the reloader says what is wrong with it
    return replace(
        settings,
        declaration=declaration,
        further=tuple(replace(each, declaration=declaration) for each in settings.further),
    )


class Reloader:
    """Of one process. `apply` swaps what is declared; it is called on the event loop."""

    def __init__(
        self,
        settings: Settings,
        apply: Callable[[Declaration], None],
        *,
        look_s: float = LOOK_S,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._apply = apply
        self._look_s, self._wall = look_s, wall
        self.declaration = settings.declaration
        self.state = ReloadState(settings.slo_path, wall())
        self.hooks: list[Callable[[ReloadState], None]] = []
        self._kicked = asyncio.Event()
        self._loaded: tuple[int, ...] | None = None
        self._before: tuple[int, ...] | None = None

    def kick(self) -> None:
        """Read the file now, changed or not."""
        self._kicked.set()

    async def run(self) -> None:
        """For ever."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._kicked.wait(), self._look_s)
            kicked = self._kicked.is_set()
            self._kicked.clear()
            try:
                await self.look(now=kicked)
            except Exception:
                log.exception("reading the SLOs again went wrong")

    async def look(self, *, now: bool = False) -> None:
        """Read the file if it has changed and is at rest, or if told to."""
        if not self._settings.slo_path:
            if now:
                log.warning("there is no SLO file to read again: start with --slo, or with slos in trimtab.yaml")
            return
        looks = _looks(self._settings.slo_path)
        resting = looks == self._before
        self._before = looks
        if now or (resting and looks != self._loaded):
            self._loaded = looks
            await self._load()

    async def _load(self) -> None:
        try:
            declaration = await asyncio.to_thread(read_declared, self._settings)
        except SpecError as error:
            told = tuple(str(problem) for problem in error.problems[:MAX_PROBLEMS])
            state = self.state
            self.state = replace(state, failed_at_s=self._wall(), problems=told, failures=state.failures + 1)
            log.error("%s cannot be used; the SLOs read before stay in force:\n%s", state.source, "\n".join(told))
            self._tell()
            return
        changed = repr(declaration) != repr(self.declaration)
        recovered = self.state.failed_at_s is not None
        if changed:
            before, self.declaration = self.declaration, declaration
            self._apply(declaration)
            reloads = self.state.reloads + 1
            self.state = ReloadState(self.state.source, self._wall(), None, (), reloads, self.state.failures)
            log.info("SLOs read again from %s: %s", self.state.source, difference(before, declaration))
        elif recovered:
            self.state = replace(self.state, failed_at_s=None, problems=())
            log.info("%s is as it was when it was last good", self.state.source)
        if changed or recovered:
            self._tell()

    def _tell(self) -> None:
        for hook in self.hooks:
            try:
                hook(self.state)
            except Exception:
                log.exception("somebody who waits for reloads went wrong")


def difference(before: Declaration, after: Declaration) -> str:
    """What a reload changed, by the names of SLOs."""
    old, new = revisions(before.slos), revisions(after.slos)
    parts = {
        "new": [name for name in new if name not in old],
        "changed": [name for name in new if name in old and old[name] != new[name]],
        "gone": [name for name in old if name not in new],
    }
    told = [f"{what} {', '.join(names)}" for what, names in parts.items() if names]
    same = sum(old.get(name) == revision for name, revision in new.items())
    return "; ".join([*told, f"{same} as before"])


@contextlib.contextmanager
def on_hangup(kick: Callable[[], None]) -> Iterator[None]:
    """SIGHUP reads the file again. One that comes because the terminal closed ends the process instead, as it would
    without us, unless it was started to outlive that (nohup). Needs a running loop."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    had_terminal = has_terminal()

    def hangup() -> None:
        if had_terminal and not ignored and not has_terminal():
            end_process()
        else:
            kick()

    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGHUP, hangup)
    except (ValueError, RuntimeError, NotImplementedError):  # not the main thread
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


def end_process() -> None:
    """As SIGTERM does."""
    os.kill(os.getpid(), signal.SIGTERM)


def has_terminal() -> bool:
    """Whether this process has a terminal that could close."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _looks(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return (found.st_mtime_ns, found.st_ino, found.st_size, found.st_ctime_ns)
