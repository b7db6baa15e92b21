"""What a simulated controller is told of the turns: all of them, a share, or nothing for a while.

A share is drawn by a hash of seed and request id, so that a turn that waits and its record are both told or neither.
While metrics are out, records are kept back and arrive together when they are over, as routers' outboxes do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from zlib import crc32

from controller.cells import Tallies
from router.core import Waiting
from router.record import TurnRecord
from slos.objective import Slo


class Told:
    """The tallies of one model, and what reaches them."""

    def __init__(
        self,
        model: str,
        slos: Sequence[Slo],
        *,
        share: float,
        seed: int,
        also: Callable[[TurnRecord], None] | None = None,
    ) -> None:
        """`also` is told what the tallies are told."""
        if not 0 < share <= 1:
            raise ValueError(f"a controller is told of a share of the turns above 0 and up to 1, got {share}")
        self.tallies = {model: Tallies(model, slos)}
        self._share = share
        self._seed = seed
        self._held_back: list[TurnRecord] | None = None
        self._also = also

    def record(self, record: TurnRecord) -> None:
        """A turn has ended."""
        if not self._tells(record.request_id):
            return
        if self._held_back is None:
            self._tell(record)
        else:
            self._held_back.append(record)

    def waiting(self, found: Iterable[tuple[str, Waiting]]) -> Iterator[Waiting]:
        """Those that it is told of, by request id."""
        return (waiting for request_id, waiting in found if self._tells(request_id))

    def metrics_out(self) -> None:
        """Nothing arrives from now on."""
        self._held_back = []

    def metrics_back(self) -> None:
        """All that was kept back arrives."""
        kept, self._held_back = self._held_back or [], None
        for record in kept:
            self._tell(record)

    def redeclare(self, slos: Sequence[Slo]) -> None:
        """Other objectives from now on."""
        for tallies in self.tallies.values():
            tallies.redeclare(slos)

    def _tell(self, record: TurnRecord) -> None:
        self.tallies[record.model].fold(record)
        if self._also is not None:
            self._also(record)

    def _tells(self, request_id: str) -> bool:
        return self._share == 1 or crc32(f"{self._seed}/{request_id}".encode()) < self._share * 2**32
