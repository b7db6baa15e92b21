"""Router cores side by side in front of one simulated fleet: each counts the turns that it carries, and knows nothing
of the others' but what the engines say of their memory.

A conversation stays with one router, by a hash of its name, as sticky load balancing does. Health, usage and
publications reach all of them at once. Left out: conversations that change their router, publications that arrive at
different times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from zlib import crc32

from emulator.kv_blocks import BlocksRemoved, BlocksStored, Change
from router.blocks import Blocks, Cleared, Event, Removed, Stored
from router.core import Flight, RouterCore, Waiting
from router.policy import Publication
from router.turn import NodeId
from slos.objective import Slo


class RouterGroup:
    """`count` routers made by `make`."""

    def __init__(self, make: Callable[[], RouterCore], count: int) -> None:
        if count < 1:
            raise ValueError(f"a fleet needs one router or more, got {count}")
        self.cores: tuple[RouterCore, ...] = tuple(make() for _ in range(count))

    def of(self, conversation: str) -> RouterCore:
        """The router of a conversation."""
        return self.cores[crc32(conversation.encode()) % len(self.cores)] if len(self.cores) > 1 else self.cores[0]

    def node_down(self, node: str) -> None:
        """To all of them."""
        for core in self.cores:
            core.node_down(NodeId(node))

    def node_up(self, node: str) -> None:
        """To all of them."""
        for core in self.cores:
            core.node_up(NodeId(node))

    def node_usage(self, node: str, share: float) -> None:
        """To all of them: what is not its own is others', to each."""
        for core in self.cores:
            core.node_usage(NodeId(node), share)

    def introduce(self, node: str, engine_id: str) -> None:
        """The node's name in hand-overs."""
        for core in self.cores:
            core.nodes[NodeId(node)].engine_id = engine_id

    def redeclare(self, slos: Sequence[Slo]) -> None:
        """Other objectives from now on."""
        for core in self.cores:
            core.redeclare(slos)

    def swap(self, publication: Publication) -> None:
        """A newer publication."""
        for core in self.cores:
            core.current.swap(publication)

    def flights(self) -> list[Flight]:
        """Turns in flight, router by router, oldest first."""
        return [flight for core in self.cores for flight in core.flights()]

    def waiting(self, now_s: float) -> Iterator[tuple[str, Waiting]]:
        """Turns without a first token, by request id."""
        for core in self.cores:
            unanswered = (flight for flight in core.flights() if flight.watch.first_s is None)
            for flight, waiting in zip(unanswered, core.waiting(now_s), strict=True):
                yield flight.turn.request_id, waiting

    def follow(self, node: str, block_tokens: int) -> Callable[[Change], None]:
        """What an emulated engine's cache calls so that all of them hear of its KV events."""
        tellers = [_Teller(core.residency.follow(NodeId(node)), block_tokens) for core in self.cores]

        def tell(change: Change) -> None:
            for teller in tellers:
                teller(change)

        return tell


class _Teller:
    """Numbers what an emulated engine's cache tells, as its publisher would."""

    def __init__(self, blocks: Blocks, block_tokens: int) -> None:
        self._blocks = blocks
        self._block_tokens = block_tokens
        self._number = 0

    def __call__(self, change: Change) -> None:
        event: Event = Cleared()
        if isinstance(change, BlocksStored):
            event = Stored(change.parent, change.names, self._block_tokens, change.session)
        elif isinstance(change, BlocksRemoved):
            event = Removed(change.names)
        self._blocks.take(self._number, (event,))
        self._number += 1
