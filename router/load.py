"""What this router has outstanding on each node: its own counts, exact and instant for one router.

A backlog is work in ms, first come first served: what was sent and not yet answered, less the time that the
oldest piece has already had.
"""

from __future__ import annotations

from dataclasses import dataclass, field


class Backlog:
    """Outstanding work of one server in ms, by the predicted time of each piece."""

    __slots__ = ("_head_since_s", "_pieces", "_total_ms")

    def __init__(self) -> None:
        self._pieces: dict[str, float] = {}
        self._total_ms = 0.0
        self._head_since_s = 0.0

    def __len__(self) -> int:
        return len(self._pieces)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._pieces

    def add(self, request_id: str, predicted_ms: float, now_s: float) -> None:
        """A piece of work was sent."""
        if not self._pieces:
            self._head_since_s = now_s
        self._pieces[request_id] = predicted_ms
        self._total_ms += predicted_ms

    def remove(self, request_id: str, now_s: float) -> None:
        """A piece of work was answered or given up; unknown ids are ignored."""
        if request_id not in self._pieces:
            return
        if request_id == next(iter(self._pieces)):
            self._head_since_s = now_s
        predicted_ms = self._pieces.pop(request_id)
        self._total_ms = self._total_ms - predicted_ms if self._pieces else 0.0

    def ms(self, now_s: float) -> float:
        """Work still ahead of a new piece."""
        if not self._pieces:
            return 0.0
        head_ms = next(iter(self._pieces.values()))
        # The total is a running sum, so it may miss the sum of the pieces by a rounding error.
        return max(0.0, self._total_ms - min(head_ms, max(0.0, now_s - self._head_since_s) * 1e3))

    def clear(self) -> None:
        """The server is gone."""
        self._pieces.clear()
        self._total_ms = 0.0


@dataclass(slots=True)
class NodeLoad:
    """One node: prompt work, transfers that it has to send, sequences that decode on it and the KV tokens
    that they need; and what of its KV memory the engine says is in use beside."""

    prefill: Backlog = field(default_factory=Backlog)
    link: Backlog = field(default_factory=Backlog)
    sequences: int = 0
    kv_tokens: int = 0
    others_kv_tokens: int = 0

    @property
    def kv_in_use_tokens(self) -> int:
        """KV memory that is not to be had."""
        return self.kv_tokens + self.others_kv_tokens
