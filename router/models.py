"""Which pool of engines serves a model: by its configured name, its aliases, and whatever its engines say they serve.

Every model has a core of its own: its nodes, conversations, residency and load, its connector and its line to the
control process. The directory is what a request passes before it gets there. With one model every name leads to it, and
its engines say whether they know it.

Adapters (LoRA) are names that engines list with a parent. A conversation belongs to the adapter, for its KV is the
adapter's; table, price and SLOs are those of the model beneath.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from .core import RouterCore
from .dispatch import Dispatcher
from .errors import Code, RequestError
from .nodes import NodeWatch
from .placement import Node
from .policy import ANY_MODEL
from .turn import Role
from .upstream import NodeError, Upstream

log = logging.getLogger("trimtab.models")

REFRESH_S = 15.0
MODELS_TIMEOUT_S = 5.0
MAX_NAMES = 1000
"""Names that engines of one pool may list; more are not known here."""


class _Card(msgspec.Struct):
    id: str
    parent: str | None = None


class _List(msgspec.Struct):
    data: list[msgspec.Raw] = []


_decode_list = msgspec.json.Decoder(_List)
_decode_card = msgspec.json.Decoder(_Card)


@dataclass(slots=True, eq=False)
class Pool:
    """One model and what serves it. `name` may be `*`: whatever the engines call it."""

    name: str
    core: RouterCore
    dispatcher: Dispatcher
    watch: NodeWatch
    upstream: Upstream
    aliases: frozenset[str] = frozenset()
    cards: dict[str, bytes] = field(default_factory=dict)
    """What its engines list, as they wrote it, by id."""
    known: bool = False
    """Whether an engine has said what it serves."""
    _last_used: int = 0

    def nodes(self, *, prefill: bool = False) -> list[Node]:
        """Usable nodes, least busy first; those that only prefill last, and only if wanted."""
        usable = [node for node in self.core.nodes.values() if node.usable]
        found = [node for node in usable if prefill or node.role is not Role.PREFILL]
        return sorted(found, key=lambda node: (node.role is Role.PREFILL, self.core.load[node.id].sequences))

    @property
    def decodes(self) -> bool:
        """Somebody can serve."""
        return bool(self.nodes())

    def serves(self, model: str) -> bool:
        """The name is this model's or one of its adapters'."""
        return model == self.name or model in self.aliases or model in self.cards

    async def refresh(self) -> bool:
        """Ask an engine what it serves; False if none says."""
        for node in self.nodes(prefill=True):
            try:
                status, body = await self.upstream.get(self.watch.url(node.id, "/v1/models"), MODELS_TIMEOUT_S)
                if status != 200:
                    continue
                raw = _decode_list.decode(body).data[:MAX_NAMES]
                self.cards = {_decode_card.decode(item).id: bytes(item) for item in raw}
            except (NodeError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                continue
            self.known = True
            return True
        return False


class Directory:
    """The models of one router process. The first one's dispatcher takes the requests in."""

    def __init__(self, pools: Sequence[Pool]) -> None:
        self.pools = tuple(pools)
        for pool in self.pools:
            pool.dispatcher.pool_of = self._dispatcher_of
            pool.dispatcher.base_of = self.base_of

    @property
    def front(self) -> Dispatcher:
        """Takes requests in, for all models."""
        return self.pools[0].dispatcher

    def cut_short(self) -> None:
        """End what still runs, of every model."""
        for pool in self.pools:
            pool.dispatcher.cut_short()

    def find(self, model: str) -> Pool:
        """Who serves it. Raises RequestError (404)."""
        if len(self.pools) == 1:
            return self.pools[0]
        for pool in self.pools:
            if pool.serves(model):
                return pool
        raise RequestError(
            Code.MODEL_NOT_FOUND, "no such model here; GET /v1/models lists those that there are", "model"
        )

    def base_of(self, model: str) -> str:
        """The model whose table, price and SLOs apply to requests for that name."""
        pool = next((pool for pool in self.pools if pool.serves(model)), None)
        return model if pool is None or pool.name == ANY_MODEL else pool.name

    async def refresh(self) -> None:
        """Ask all pools what they serve."""
        await asyncio.gather(*(pool.refresh() for pool in self.pools))

    async def run(self) -> None:
        """Ask for ever: adapters come and go."""
        while True:
            try:
                await self.refresh()
            except Exception:
                log.exception("asking the engines for their models failed inside the router")
            await asyncio.sleep(REFRESH_S)

    async def listing(self) -> bytes | None:
        """What `GET /v1/models` answers: every model once, as its engines list it. None if no engine answers."""
        await self.refresh()
        cards: dict[str, msgspec.Raw] = {}
        for pool in self.pools:
            if pool.nodes(prefill=True):
                for id, card in pool.cards.items():
                    cards.setdefault(id, msgspec.Raw(card))
        if not cards:
            return None
        return msgspec.json.encode({"object": "list", "data": list(cards.values())})

    def _dispatcher_of(self, model: str) -> Dispatcher:
        return self.find(model).dispatcher
