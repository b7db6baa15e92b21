"""Follows an operator's orders: the file, and the control process where that keeps its own."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import aiohttp

from .orders import Orders, keep_newer, orders_from_json, read_orders
from .source import Tell

log = logging.getLogger("trimtab.membership")

LOOK_S = 0.5
ASK_S = 2.0
TIMEOUT_S = 5.0
MAX_BYTES = 1 << 20


class OrdersSource:
    """Nodes added by hand, and drains. The router is the client, as for everything else. `several`: there are several
    models, and a node that names none is nobody's."""

    name = "admin"

    def __init__(
        self, folder: Path, control_url: str | None = None, token: str | None = None, *, several: bool = False
    ) -> None:
        self._folder = folder
        self._several = several
        self._control_url = control_url
        self._token = token
        self._version = 0

    async def run(self, tell: Tell) -> None:
        """For ever."""
        if self._control_url is None:
            await self._follow(tell)
        else:
            await asyncio.gather(self._follow(tell), self._ask_again(self._control_url))

    def look(self, tell: Tell) -> None:
        """Read the file once."""
        try:
            orders = read_orders(self._folder)
            members = [each.member() for each in orders.added if each.model or not self._several]
        except ValueError as error:
            tell.failed(str(error))
            return
        self._version = orders.version
        tell.nodes(members, may_be_empty=True)
        tell.drains(each.url for each in orders.drained)

    async def _follow(self, tell: Tell) -> None:
        while True:
            self.look(tell)
            await asyncio.sleep(LOOK_S)

    async def _ask_again(self, control_url: str) -> None:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session:
            while True:
                try:
                    newer = await self._newer(session, control_url)
                    if newer is not None:
                        await asyncio.to_thread(keep_newer, self._folder, newer)
                except (aiohttp.ClientError, TimeoutError):
                    pass  # a control process that is away is nothing new: the file counts
                except (OSError, ValueError) as error:
                    log.error("the control process's orders about nodes cannot be used: %s", error)
                await asyncio.sleep(ASK_S)

    async def _newer(self, session: aiohttp.ClientSession, control_url: str) -> Orders | None:
        params = {"after": str(self._version)}
        async with session.get(f"{control_url}/internal/v1/nodes", params=params, allow_redirects=False) as answer:
            if answer.status != 200:
                return None
            return orders_from_json(await answer.content.read(MAX_BYTES))
