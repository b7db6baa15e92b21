"""A shell: GET /metrics of every engine, all at once, a round every few seconds.

A node that is down, slow or shows nonsense is left out and named, and costs the others nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import aiohttp

from estimators.histogram import SCRAPES, BucketQuantile
from slos.objective import Slo
from slos.reduce import SloReading

from .engine_page import PageError, read_page
from .engines import EngineNode, EngineReading, Engines, NodeScrape, as_slo_readings, slo_quantiles
from .scheduler import Job

INTERVAL_S = 5.0
TIMEOUT_S = 2.0
MAX_PAGE_BYTES = 8 * 2**20
TEXT = {"Accept": "text/plain;version=0.0.4"}
STALE_INTERVALS = 3.0
"""Without a round for so long there are no readings, and the law holds."""


class Scraper:
    """The scrape job, and what its rounds say so far. `slo_readings` is the `engine` of `tick`."""

    def __init__(
        self,
        nodes: Sequence[EngineNode],
        slos: Iterable[Slo],
        *,
        interval_s: float = INTERVAL_S,
        timeout_s: float = TIMEOUT_S,
        scrapes: int = SCRAPES,
        clock: Callable[[], float] = time.monotonic,
        members: Callable[[], Sequence[EngineNode]] | None = None,
    ) -> None:
        """`members`: the nodes of this moment, asked before each round; none are as before."""
        self._members = members
        self.nodes = tuple(nodes)
        self.interval_s = interval_s
        self._slos = tuple(slos)
        self._engines = Engines(self.nodes, scrapes)
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._clock = clock
        self._round_s: float | None = None
        self._results: dict[tuple[str, str], int] = {(node.name, way): 0 for node in nodes for way in ("ok", "failed")}
        self._session: aiohttp.ClientSession | None = None

    def jobs(self) -> list[Job]:
        """What the scheduler is to run."""
        return [Job("scrape", self.interval_s, self.scrape)]

    def redeclare(self, slos: Iterable[Slo]) -> None:
        """Read for these from now on."""
        self._slos = tuple(slos)

    async def scrape(self) -> None:
        """One round over all nodes at once; takes at most the timeout and raises nothing."""
        members = () if self._members is None else tuple(self._members())
        if members and members != self.nodes:
            self.nodes = members
            self._engines.follow(members)
            self._results |= {
                (node.name, way): self._results.get((node.name, way), 0) for node in members for way in ("ok", "failed")
            }
        if self._session is None or self._session.closed:
            # No limit: the nodes are a short list, and those that hang must not hold back the others. Engines
            # close idle connections after 5 s, so none is kept.
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
            self._session = aiohttp.ClientSession(connector=connector, timeout=self._timeout)
        session = self._session
        scrapes = await asyncio.gather(*(self._read(session, node) for node in self.nodes))
        for scrape in scrapes:
            self._results[scrape.node, "ok" if scrape.error is None else "failed"] += 1
        self._engines.fold(scrapes)
        self._round_s = self._clock()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def readings(self) -> dict[str, EngineReading]:
        """By model; none while the last round is too old."""
        if self._round_s is None or self._clock() - self._round_s > STALE_INTERVALS * self.interval_s:
            return {}
        return {model: self._engines.reading(model) for model in self._engines.models}

    def slo_readings(self) -> dict[str, list[SloReading]]:
        """For `control.signal: engine`, by model."""
        return {model: as_slo_readings(self._slos, reading) for model, reading in self.readings().items()}

    def slo_quantiles(self) -> dict[str, list[tuple[Slo, BucketQuantile | None]]]:
        """The same with the edges of its bucket."""
        return {model: slo_quantiles(self._slos, reading) for model, reading in self.readings().items()}

    @property
    def last(self) -> Mapping[str, NodeScrape]:
        """The newest round, by node."""
        return self._engines.last

    @property
    def results(self) -> Mapping[tuple[str, str], int]:
        """Pages so far by node and result, `ok` or `failed`."""
        return self._results

    async def _read(self, session: aiohttp.ClientSession, node: EngineNode) -> NodeScrape:
        url = node.url.rstrip("/")
        address = url if url.endswith("/metrics") else f"{url}/metrics"
        try:
            headers = {**TEXT, "Authorization": f"Bearer {node.key}"} if node.key else TEXT
            async with session.get(address, headers=headers, allow_redirects=False) as response:
                if response.status != 200:
                    return NodeScrape(node.name, error=f"status {response.status}")
                page = bytearray()
                async for chunk in response.content.iter_any():
                    page += chunk
                    if len(page) > MAX_PAGE_BYTES:
                        return NodeScrape(node.name, error="page too large")
                openmetrics = response.content_type == "application/openmetrics-text"
            return read_page(node, page.decode("utf-8"), openmetrics)
        except TimeoutError:
            return NodeScrape(node.name, error="timeout")
        except (aiohttp.ClientError, OSError) as error:
            return NodeScrape(node.name, error=f"unreachable: {type(error).__name__}")  # its text may hold a password
        except PageError as error:
            return NodeScrape(node.name, error=str(error))
        except (ValueError, LookupError):  # the parser raises either
            return NodeScrape(node.name, error="not Prometheus text")
