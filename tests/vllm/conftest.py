"""Real engines for the tests here: started once a session, with `trimtab serve` in front of them.

`TRIMTAB_VLLM` names another folder than `.vllm` in the checkout, `TRIMTAB_VLLM_PORTS` other ports than 28100:5600.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from trimtab.scenarios import promises
from trimtab.vllm_cpu.engine import EngineOptions
from trimtab.vllm_cpu.fleet import EngineFleet
from trimtab.vllm_cpu.install import Home

from .router import Router, serve_in_front

CHECKOUT = Path(__file__).resolve().parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.vllm)


@pytest.fixture(scope="session")
def home() -> Home:
    """Where the engines are installed; skips where they are not."""
    found = Home(Path(os.environ.get("TRIMTAB_VLLM") or CHECKOUT / ".vllm").resolve())
    if missing := found.missing():
        pytest.skip(missing)
    return found


@pytest.fixture(scope="session")
def engines(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineFleet]:
    """1P_2D, healthy; a test that stops or kills one starts it again before it ends. D0 fails what it cannot load, D1
    computes it."""
    policies = {"D1": EngineOptions(kv_load_failure_policy="recompute")}
    with EngineFleet("1P_2D", logs=tmp_path_factory.mktemp("engines"), home=home, options_of=policies) as fleet:
        yield fleet


@pytest.fixture(scope="session")
def router(engines: EngineFleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    """`trimtab serve` in front of `engines`, with wide promises; `router.pin(x)` fixes the share of local turns."""
    with serve_in_front(engines, tmp_path_factory.mktemp("trimtab"), promises(60.0, 5.0)) as found:
        yield found
        found.pin(None)


@pytest.fixture(scope="module", params=[0.0, 1.0], ids=["x=0", "x=1"])
def x(request: pytest.FixtureRequest, router: Router) -> float:
    """All later turns through P, then all local; pinned once a module, for it takes a second."""
    router.pin(request.param)
    return float(request.param)
