"""`trimtab router`: one router process, wired. It serves alone from its last publication if no control
process answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from router import door
from router.admission import Admission
from router.app import create_app
from router.clock import Clock
from router.models import Directory
from router.outbox import LastPublication, TableCache
from router.passthrough import Passthrough
from router.policy import Publication
from router.recognition import Recogniser, Recognition
from slos.policy import Declaration

from .keys import doors_of
from .policies import artefacts, first_policy
from .processes import bound_socket, installation_secret, state_dir
from .reload import Reloader, fresh, on_hangup
from .served_model import Shared, served_model
from .settings import Settings

log = logging.getLogger("trimtab.router")

LAST_WORDS_S = 3
"""For connections to close once no request is left."""


async def run_router(settings: Settings, name: str = "router-0") -> None:
    """Serve until SIGTERM or SIGINT, then drain. Raises StartError."""
    settings = fresh(settings)
    folder = state_dir(settings)
    listener = bound_socket(settings.host, settings.port, "the router")
    doors, key_file = doors_of(settings)
    cache = TableCache(folder)
    last = LastPublication(folder, cache)
    descriptors = door.raise_limit()
    max_requests = door.most_requests(settings.max_requests, descriptors)
    entrance = door.Door(door.most_connections(max_requests, descriptors))
    clock = Clock()
    shared = Shared(
        settings,
        folder,
        clock,
        doors,
        Admission(max_requests),
        Recogniser(installation_secret(folder), Recognition(settings.conversation)),
        cache,
        last,
        _first_publication(settings, cache, last),
    )
    served = [
        served_model(each, f"{name}/{each.model}" if settings.further else name, shared) for each in settings.each_model
    ]
    pools = [each.pool for each in served]
    directory = Directory(pools)
    front, metrics = directory.front, served[0].metrics

    def redeclare(declaration: Declaration) -> None:
        for each in served:
            each.redeclare(declaration)

    reloader = Reloader(settings, redeclare)

    def look() -> None:
        metrics.let_in(front.admission)
        metrics.connected(entrance.open, entrance.turned_away, entrance.heads_refused, door.descriptors(), descriptors)

    served[0].outbox.on_update = look
    for pool in pools:
        await pool.upstream.start()
    try:
        await asyncio.gather(*(pool.watch.probe_all() for pool in pools))
        await directory.refresh()
        server = _Server(
            directory,
            uvicorn.Config(
                create_app(directory, Passthrough(directory, metrics, front.options, settings.passthrough), doors),
                http=entrance.protocol,  # type: ignore[arg-type]  # uvicorn calls it like a class
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                timeout_graceful_shutdown=LAST_WORDS_S,
                timeout_keep_alive=75,
            ),
            clock,
            settings.notice_s,
            settings.drain_s,
        )
        running: list[Coroutine[Any, Any, None]] = [directory.run(), reloader.run()]
        if key_file is not None:
            running.append(key_file.run())
        for each in served:
            running += each.running()
        tasks = [asyncio.ensure_future(loop) for loop in running]
        address = listener.getsockname()
        for pool in pools:
            log.info(
                "serving %s on %s:%s, topology %s, policy %d",
                pool.name,
                address[0],
                address[1],
                pool.core.topology or "none",
                pool.core.current.published_version,
            )
        try:
            with on_hangup(reloader.kick):
                await server.serve(sockets=[listener])
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*(each.outbox.flush() for each in served))
    finally:
        for pool in pools:
            await pool.upstream.close()


class _Server(uvicorn.Server):
    """Leaves in order. On a signal /ready is false and new requests are refused, while the port still answers; after
    `notice_s` at the earliest, and once nothing runs or `drain_s` are over, it closes. A second signal closes it now.

    The signal is not raised again at the end, as uvicorn would: the process has records to hand over first.
    """

    def __init__(
        self, directory: Directory, config: uvicorn.Config, clock: Clock, notice_s: float, drain_s: float
    ) -> None:
        super().__init__(config)
        self._directory = directory
        self._admission = directory.front.admission
        self._clock = clock
        self._notice_s = notice_s
        self._drain_s = drain_s
        self._told_s: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._told_s is None:
            self._told_s = self._clock.now_s()
            self._admission.draining = True
        else:
            self._directory.cut_short()
            self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        if self._told_s is not None and not self.should_exit:
            since_s = self._clock.now_s() - self._told_s
            over = since_s >= max(self._drain_s, self._notice_s)
            if over and self._admission.active:
                log.warning("%d requests did not end within %g s", self._admission.active, self._drain_s)
                self._directory.cut_short()
            self.should_exit = over or (since_s >= self._notice_s and not self._admission.active)
        return await super().on_tick(counter)


def _first_publication(settings: Settings, cache: TableCache, last: LastPublication) -> Publication:
    """The last one on disk if it can be used, else the settings' own, as version 0."""
    found = artefacts(settings)
    named = [path for each in settings.each_model for path in each.tables]
    for path, artefact in zip(["shipped"] * (len(found) - len(named)) + named, found, strict=True):
        log.info(
            "table %s/%s: %s, source %s",
            artefact.origin.model,
            artefact.origin.topology,
            Path(path).name,
            artefact.origin.source,
        )
        cache.add(artefact.text, artefact.origin.model)
    kept = last.load()
    if kept is not None:
        log.info("starting from publication %d on disk", kept.version)
        return kept if settings.pin_x is None else _pinned(kept, settings.pin_x)
    return Publication(0, {"main": first_policy(settings, found, 0)})


def _pinned(kept: Publication, x: float) -> Publication:
    """What an earlier start published may not act where this one is pinned, be the control process there or not."""
    return replace(kept, arms={name: replace(policy, pin_x=x) for name, policy in kept.arms.items()})
