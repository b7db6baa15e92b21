"""P2P-NCCL's hand-over between emulated engines: the request id names both, P pushes the whole prompt to D's buffer.

    D's half before P's, or without it                  waits until its client leaves
    an id that names another D                          that D waits
    P's half without addresses in its id                P's engine dies (the id cannot be read)
    D's half without addresses in its id                an ordinary request

Read from the last upstream source; vLLM 0.32 no longer has it, so nothing of it has been seen on a real engine here.
The last line is assumed: upstream takes all that D lacks as P's to send, and local turns need an engine that does not.
Left out: a D that waits stands still as a whole; a full buffer; P sends layer by layer, and makes no step meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from .engine import Job
from .prefix_cache import Prompt

if TYPE_CHECKING:
    from .fleet import Fleet

FIRST_PORT = 21001
_ID = re.compile(r"___prefill_addr_(.+?)___decode_addr_(.+?)_[0-9a-f]{32}")


class P2pNccl:
    """What is in the buffers of the Ds."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._addresses = {node: f"127.0.0.1:{FIRST_PORT + at}" for at, node in enumerate(fleet.engines)}
        self._buffered: dict[str, Prompt] = {}
        """Prompts that arrived and that nobody has taken, by request id."""
        self._waiting: dict[str, Callable[[Prompt], None]] = {}

    def address(self, node: str) -> str:
        """`kv_ip:kv_port`."""
        return self._addresses[node]

    def terms(self, node: str, request_id: str, params: Mapping[str, object] | None) -> Mapping[str, object] | None:
        """From the id; parameters mean nothing to these engines."""
        role = self._fleet.roles[node].value
        found = _ID.search(request_id)
        if role == "P":
            if found is None:
                self._fleet.events.after(0.0, self._fleet.kill, node)
                return None
            return {"do_remote_decode": True, "name": found[0]}
        if role == "D" and found is not None:
            return {"do_remote_prefill": True, "name": found[0], "mine": found[2] == self.address(node)}
        return None

    def engine_id(self, node: str) -> str:
        """Nobody asks."""
        return ""

    def prefilled(self, node: str, job: Job, params: Mapping[str, object], replied: Callable[[bool], None]) -> None:
        """All of it goes out, whatever D has, and then the reply."""
        there_s, _ = self._fleet.link(node, job.prompt_tokens, job.prompt_tokens - job.cached_tokens)
        epoch = self._fleet.engines[node].epoch
        self._fleet.events.at(there_s, self._arrived, node, epoch, job, str(params["name"]), replied)

    def transfer(self, node: str, params: Mapping[str, object]) -> Callable[[Job, Callable[[bool], None]], None]:
        """Wait for the buffer to hold it."""
        return partial(self._take, params)

    def _arrived(self, node: str, epoch: int, job: Job, name: str, replied: Callable[[bool], None]) -> None:
        engine = self._fleet.engines[node]
        if engine.epoch != epoch:
            replied(False)
            return
        engine.let_go(job)
        waiting = self._waiting.pop(name, None)
        if waiting is not None:
            waiting(job.prompt)
        else:
            self._buffered[name] = job.prompt
        replied(True)

    def _take(self, params: Mapping[str, object], job: Job, arrived: Callable[[bool], None]) -> None:
        if not params["mine"]:
            return
        name = str(params["name"])

        def receive(prompt: Prompt) -> None:
            if prompt != job.prompt:
                job.poisoned = True
                self._fleet.poisoned_reads += 1
            self._fleet.events.after(0.0, arrived, True)

        if name in self._buffered:
            receive(self._buffered.pop(name))
        else:
            self._waiting[name] = receive
