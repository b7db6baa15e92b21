"""The control process, put together: configuration in, a running loop with its jobs, API and page out.

    await run_control(config)      until SIGTERM or SIGINT

Other parts join through `extend`: it is given the `Control` before anything runs, and may add scheduler jobs
(`control.scheduler.add(Job(...))`), observers of ticks (`control.loop.observers.append(f)`), readings of the engines
(`control.loop.engine = f`), sections of the status (`control.loop.sections["alerts"] = f`), collectors of metrics
(`control.registry.register(c)`), routes (`control.app`), and things to do at the end (`control.closing.append(f)`).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import IO

import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from controller.app import create_app
from controller.config import ControlConfig
from controller.loop import ControlLoop
from controller.metrics import ControlCollector
from controller.nodes_api import mount_nodes
from controller.pin import look, noticed
from controller.scheduler import Job, Scheduler
from controller.store import Store
from dashboards.page import mount
from router.door import Door

from . import __version__
from .processes import StartError, bound_socket

log = logging.getLogger("trimtab.control")

FLUSH_S = 5.0
SHUTDOWN_S = 3
MAX_CONNECTIONS = 512


@dataclass(slots=True)
class Control:
    """The parts of one control process."""

    config: ControlConfig
    store: Store
    loop: ControlLoop
    scheduler: Scheduler
    registry: CollectorRegistry
    app: FastAPI
    port: int = 0
    """Where it listens, once it does."""
    listening: asyncio.Event = field(default_factory=asyncio.Event)
    closing: list[Callable[[], Awaitable[object]]] = field(default_factory=list)
    """Called at the end, in order, before the store is closed."""
    _flushing: asyncio.Task[bool] | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Serve and tick until `stop` is set. Raises StartError where the port cannot be had."""
        config = self.config
        listener = bound_socket(config.host, config.port, "the control process")
        self.port = listener.getsockname()[1]
        server = _Server(
            uvicorn.Config(
                self.app,
                http=Door(MAX_CONNECTIONS).protocol,  # type: ignore[arg-type]  # uvicorn calls it like a class
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=SHUTDOWN_S,
            )
        )
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        stopping = asyncio.create_task(stop.wait())
        self.scheduler.start()
        self.listening.set()
        log.info(
            "control on http://%s:%d, state in %s, law %s, mode %s, source %s, %s version %d",
            config.host,
            self.port,
            config.state_dir,
            config.law,
            config.mode,
            config.source,
            "continuing above" if self.loop.continued else "starting with",
            self.loop.publication.version,
        )
        try:
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            self.loop.close()  # routers that wait for a publication go, so that the server need not wait for them
            server.should_exit = True
            await self.scheduler.stop()
            try:
                await serving
            finally:
                await self._close()

    async def _close(self) -> None:
        for close in self.closing:
            try:
                async with asyncio.timeout(SHUTDOWN_S):
                    await close()
            except Exception:
                log.exception("closing went wrong")
        self.loop.save_counts()
        await asyncio.to_thread(self.store.close, self.loop.wall())

    async def flush(self) -> None:
        """Write to disk what waits, and note a pin that was set or lifted behind our back."""
        self.loop.save_counts()
        await asyncio.to_thread(self._flush, self.loop.wall())

    def _flush(self, at_s: float) -> None:
        file = look(self.config.state_dir)
        row = None if file.warning else noticed(file.pin, self.store.audits(), at_s, file.lifted_by)
        if row is not None:
            self.store.audit(row)
        self.store.flush(at_s)

    async def tick(self) -> None:
        """One tick; a new publication is written at once, so that a restart goes on from it."""
        outputs = self.loop.tick(self.loop.monotonic())
        publication = None if outputs is None else outputs.publication
        if publication is not None and (self._flushing is None or self._flushing.done()):
            # Not waited for: a disk that hangs must not hold up ticks.
            self._flushing = asyncio.create_task(asyncio.to_thread(self.store.flush, self.loop.wall()))


def build_control(config: ControlConfig) -> Control:
    """Everything of one control process, not running yet. Needs a running event loop."""
    store = Store(config.state_dir)
    loop = ControlLoop(config, store, store.restore(config.slos))
    scheduler = Scheduler(clock=loop.monotonic)
    registry = CollectorRegistry()
    collector = ControlCollector(loop, scheduler, __version__)
    registry.register(collector)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    app = create_app(loop, collector, registry, version=__version__)
    mount_nodes(app, loop)
    mount(app)
    control = Control(config, store, loop, scheduler, registry, app)
    scheduler.add(Job("tick", config.tick_s, control.tick, watched=True))
    scheduler.add(Job("flush", FLUSH_S, control.flush))
    return control


async def run_control(
    config: ControlConfig,
    *,
    extend: Callable[[Control], None] | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Run a control process until SIGTERM or SIGINT, or until `stop` is set. Raises StartError where it cannot
    start."""
    stop = stop or asyncio.Event()
    with _alone(config), _signals(stop):
        control = build_control(config)
        if extend is not None:
            extend(control)
        await control.run(stop)


class _Server(uvicorn.Server):
    """Signals are ours: uvicorn would end the process with them before the store is closed."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.contextmanager
def _alone(config: ControlConfig) -> Iterator[None]:
    """Two control processes on one state folder would undo each other's work."""
    path = config.state_dir / "control.lock"
    lock: IO[str] | None = None
    try:
        config.state_dir.mkdir(parents=True, exist_ok=True)
        lock = path.open("a+", encoding="utf-8")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        assert lock is not None
        lock.seek(0)
        owner = lock.read(20).strip() or "unknown"
        lock.close()
        raise StartError(
            f"{config.state_dir} is in use by another control process (pid {owner}): stop it, or use another state_dir"
        ) from None
    except OSError as error:  # a file system without locks, or one that cannot be written: the store says more
        log.warning("%s: no lock (%s)", path, error.strerror)
    try:
        if lock is not None:
            with contextlib.suppress(OSError):
                lock.truncate(0)
                lock.write(str(os.getpid()))
                lock.flush()
        yield
    finally:
        if lock is not None:
            with contextlib.suppress(OSError):
                lock.close()


@contextlib.contextmanager
def _signals(stop: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    taken = []
    for sig in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(sig, stop.set)
            taken.append(sig)
        except (ValueError, RuntimeError, NotImplementedError):  # not the main thread: `stop` is the only way
            break
    try:
        yield
    finally:
        for sig in taken:
            loop.remove_signal_handler(sig)
