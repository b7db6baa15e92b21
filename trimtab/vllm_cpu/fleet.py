"""Several engines on one machine, one core each, started together: 1P_2D is P0, D0 and D1."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Mapping
from itertools import cycle
from pathlib import Path
from time import monotonic
from types import TracebackType

from .engine import HEALTHY_S, Engine, EngineError, EngineOptions, Role
from .install import Home

ROLES: Mapping[str, Role] = {"P": "prefill", "D": "decode", "R": "replica"}
FIRST_PORT, FIRST_SIDE_PORT = 28100, 5600
"""Ports are looked for from here on, or from `TRIMTAB_VLLM_PORTS` (HTTP:SIDE, e.g. 28200:5620). They lie below those
that the kernel hands out, because an engine listens on its side channel only half a minute after its start."""


class EngineFleet:
    """Engines by name. As a context manager it starts them, waits, and stops them."""

    def __init__(
        self,
        topology: str = "1P_2D",
        *,
        logs: Path,
        options: EngineOptions | None = None,
        options_of: Mapping[str, EngineOptions] | None = None,
        home: Home | None = None,
        first_port: int | None = None,
        first_side_port: int | None = None,
    ) -> None:
        """`options` for all, `options_of` for those named. Raises ValueError for a topology that is none."""
        counts = re.findall(r"(\d+)([PDR])", topology)
        if not counts or "_".join(f"{count}{letter}" for count, letter in counts) != topology:
            raise ValueError(f"{topology!r} is no topology; write e.g. 1P_2D or 2R")
        names = [f"{letter}{number}" for count, letter in counts for number in range(int(count))]
        told = os.environ.get("TRIMTAB_VLLM_PORTS", f"{FIRST_PORT}:{FIRST_SIDE_PORT}").partition(":")
        ports = free_ports(first_port or int(told[0]), len(names))
        side_ports = free_ports(first_side_port or int(told[2]), len(names))
        cores = cycle(sorted(os.sched_getaffinity(0)))
        given = options_of or {}
        self.topology = topology
        self.engines = {
            name: Engine(
                name,
                ROLES[name[0]],
                port,
                side_port,
                core,
                given.get(name, options or EngineOptions()),
                home=home or Home.default(),
                logs=logs,
            )
            for name, port, side_port, core in zip(names, ports, side_ports, cores, strict=False)
        }

    def __getitem__(self, name: str) -> Engine:
        return self.engines[name]

    def __iter__(self) -> Iterator[Engine]:
        return iter(self.engines.values())

    def urls(self, role: Role) -> list[str]:
        """Addresses of the engines of a role."""
        return [engine.url for engine in self if engine.role == role]

    def start(self) -> None:
        """Start all; does not wait."""
        for engine in self:
            engine.start()

    def wait_healthy(self, timeout_s: float = HEALTHY_S) -> None:
        """Return once all serve. Raises EngineError with the last log lines of one that ends or takes too long."""
        end_s = monotonic() + timeout_s
        for engine in self:
            engine.wait_healthy(max(1.0, end_s - monotonic()))

    def stop(self) -> None:
        """Stop all, each in at most its time; all are told first."""
        for engine in self:
            engine.tell_to_stop()
        for engine in self:
            engine.stop()

    def __enter__(self) -> EngineFleet:
        try:
            self.start()
            self.wait_healthy()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def free_ports(first: int, count: int) -> list[int]:
    """The next `count` ports of the loopback that nobody listens on. Raises EngineError if there are too few."""
    found: list[int] = []
    for port in range(first, min(first + 1000, 65536)):
        if len(found) == count:
            break
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
    if len(found) < count:
        raise EngineError(f"fewer than {count} free ports from {first} on")
    return found
