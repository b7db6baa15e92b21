"""Follows an operator's orders: the file, and the control process where that keeps its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp

from .orders import Orders, keep_newer, orders_from_json, read_orders
from .source import Tell

LOOK_S = 0.5
ASK_S = 2.0
TIMEOUT_S = 5.0
MAX_BYTES = 1 << 20
TOKEN = "; give this router the token that the admin port asks for"


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
        self._elsewhere = ""
        """What is wrong with the control process's orders; one that is away is nothing new."""

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
            self._version = 0  # whatever the control process has is newer than nothing
            tell.failed(str(error))
            return
        self._version = orders.version
        tell.nodes(members, may_be_empty=True)
        tell.drains(each.url for each in orders.drained)
        if self._elsewhere:
            tell.failed(self._elsewhere)

    async def _follow(self, tell: Tell) -> None:
        while True:
            self.look(tell)
            await asyncio.sleep(LOOK_S)

    async def _ask_again(self, control_url: str) -> None:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session:
            while True:
                await self.ask(session, control_url)
                await asyncio.sleep(ASK_S)

    async def ask(self, session: aiohttp.ClientSession, control_url: str) -> None:
        """Ask the control process once, and keep what is newer."""
        try:
            newer = await self._newer(session, control_url)
            if newer is not None:
                await asyncio.to_thread(keep_newer, self._folder, newer)
        except (aiohttp.ClientError, TimeoutError):
            pass  # a control process that is away is nothing new: the file counts
        except OSError as error:
            self._elsewhere = f"the control process's orders cannot be kept in {self._folder}: {error.strerror}"
        except ValueError as error:
            self._elsewhere = f"the control process's orders cannot be used: {error}"
        else:
            self._elsewhere = ""

    async def _newer(self, session: aiohttp.ClientSession, control_url: str) -> Orders | None:
        params = {"after": str(self._version)}
        async with session.get(f"{control_url}/internal/v1/nodes", params=params, allow_redirects=False) as answer:
            if answer.status == 204:
                return None
            if answer.status != 200:
                raise ValueError(f"it answers {answer.status}" + (TOKEN if answer.status == 401 else ""))
            body = bytearray()
            async for part in answer.content.iter_any():
                body += part
                if len(body) > MAX_BYTES:
                    raise ValueError(f"they have more than {MAX_BYTES} bytes")
            return orders_from_json(bytes(body))
