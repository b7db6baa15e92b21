"""The data port's OpenAPI document against the data port: schemathesis sends what it allows and what it does not."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator

import pytest
import schemathesis
import uvloop
from hypothesis import HealthCheck, settings
from schemathesis.checks import CHECKS

from router.app import OWN
from router.engine_routes import may_pass
from router.openapi import DOCUMENT

from .fake_engine import FakeEngine
from .installation import installation

KEY = "right"
EXAMPLES = 60
"""Of each operation. `make fuzz` does more."""


class Served:
    """A router in front of fakes, in a thread of its own: schemathesis does not wait."""

    def __init__(self) -> None:
        self.url = ""
        self._ready = threading.Event()
        self._loop = uvloop.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        p, d = FakeEngine("P0"), FakeEngine("D0")
        async with installation([p], [d], keys=[("web", KEY)]) as router:
            self.url = router.url
            self._ready.set()
            await self._stop.wait()

    def __enter__(self) -> Served:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    with Served() as found:
        yield found.url


schema = schemathesis.openapi.from_dict(json.loads(json.dumps(DOCUMENT)))


@schema.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_the_document_and_the_router_agree(case: schemathesis.Case, served: str):
    """Every check that schemathesis has: status, type, shape, no 5xx, what is not allowed is refused, keys are asked
    for, other methods are 405."""
    headers = {"Authorization": f"Bearer {KEY}"}
    response = case.call(base_url=served, headers=headers, timeout=20)
    case.validate_response(response, checks=list(CHECKS.get_all()), headers=headers)  # type: ignore[arg-type]


def test_every_route_of_the_routers_own_is_described():
    described = {(path, method.upper()) for path, item in DOCUMENT["paths"].items() for method in item}
    assert described == {(path, method) for path, method in OWN.items() if path != "/openapi.json"}
    assert not any(path in OWN for path in ("/v1/embeddings", "/tokenize")) and may_pass("/v1/embeddings")
