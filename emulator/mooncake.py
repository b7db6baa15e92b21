"""Mooncake's hand-over between emulated engines: both halves come at once and meet by a transfer id; P pushes.

    D's half without transfer id, engine id or bootstrap address       waits until its client leaves
    an engine id that no process has ever had                          D answers 500
    a P that fails, is gone, or ends with `stop`                       D waits 480 s, then answers 500
    a D that never comes                                               P keeps the blocks for 480 s
    a half at the wrong role                                           the engine dies (an assertion)
    P's half without a transfer id                                     an ordinary request

Read from the source of vLLM 0.32, none of it seen on a real engine here (it needs an accelerator). Assumed: D's
`cached_tokens` are its own hits, and D has met each P before (else it asks the bootstrap server, and a P that is gone
is a 500). Left out: D waits 540 s for a P whose process is gone; a D leg refused with 400 lets P's blocks go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from .engine import Job

if TYPE_CHECKING:
    from .fleet import Fleet

ABORT_TIMEOUT_S = 480.0
"""VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT."""


class Mooncake:
    """Where the two halves of each transfer meet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._offers: dict[str, str] = {}
        """Leases of prefilled prompts, by P's engine id and transfer id."""
        self._waiting: dict[str, Callable[[str], None]] = {}
        """D's halves whose P is not done, likewise."""

    def engine_id(self, node: str) -> str:
        """What the node's present process calls itself."""
        return f"{node}-{self._fleet.engines[node].epoch}"

    def address(self, node: str) -> str:
        """Its bootstrap server's name; the HTTP front has a real one (`server/bootstrap.py`)."""
        return f"http://{node}:8998"

    def terms(self, node: str, request_id: str, params: Mapping[str, object] | None) -> Mapping[str, object] | None:
        """As the wire has them, less what the engine does not take."""
        role = self._fleet.roles[node].value
        if not params or role == "R":
            return None
        if params.get("do_remote_prefill" if role == "P" else "do_remote_decode"):
            self._fleet.events.after(0.0, self._fleet.kill, node)
            return None
        if params.get("do_remote_decode") and not params.get("transfer_id"):
            return None
        return params

    def prefilled(self, node: str, job: Job, params: Mapping[str, object], replied: Callable[[bool], None]) -> None:
        """P keeps the prompt and replies; a D that waits for it gets it."""
        name = f"{self.engine_id(node)} {params['transfer_id']}"
        lease = self._fleet.lease(node, job, ABORT_TIMEOUT_S)
        waiting = self._waiting.pop(name, None)
        if waiting is not None:
            waiting(lease)
        else:
            self._offers[name] = lease
        replied(True)

    def transfer(self, node: str, params: Mapping[str, object]) -> Callable[[Job, Callable[[bool], None]], None]:
        """Wait for P, then take its blocks."""
        return partial(self._meet, node, params)

    def _meet(self, node: str, params: Mapping[str, object], job: Job, arrived: Callable[[bool], None]) -> None:
        needed = [params.get(key) for key in ("transfer_id", "remote_engine_id", "remote_bootstrap_addr")]
        if not all(needed):
            return
        name, engine = f"{needed[1]} {needed[0]}", str(needed[1])
        if not self._has_been(engine):
            self._fleet.events.after(0.0, arrived, False)
            return
        lease = self._offers.pop(name, None)
        if lease is not None and self._fleet.holds(lease):
            self._fleet.pull(node, lease, job, arrived)
            return
        self._waiting[name] = lambda lease: self._fleet.pull(node, lease, job, arrived)
        self._fleet.events.after(ABORT_TIMEOUT_S, self._give_up, name, self._waiting[name], arrived)

    def _has_been(self, engine: str) -> bool:
        node, _, epoch = engine.rpartition("-")
        return node in self._fleet.engines and epoch.isdecimal() and int(epoch) <= self._fleet.engines[node].epoch

    def _give_up(self, name: str, waiting: Callable[[str], None], arrived: Callable[[bool], None]) -> None:
        if self._waiting.get(name) is waiting:
            del self._waiting[name]
            arrived(False)
