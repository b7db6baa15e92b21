"""Names and bucket bounds, ours and vLLM's own: the installed vLLM registers its metrics in a process of its own, and
prints the page that an engine would serve before its first request."""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import Any

import pytest

from controller.engine_page import NAMES, read_page
from controller.engines import HISTOGRAMS, EngineMetric, EngineNode
from emulator.server.metrics import SPECS
from router.turn import Role
from trimtab.doctor.page import read

pytestmark = pytest.mark.vllm

PRINT_PAGES = """
import json, sys
from prometheus_client import REGISTRY, generate_latest
from vllm import __version__
from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.metrics.buckets import histogram_buckets
from vllm.v1.metrics.loggers import PrometheusStatLogger

pages = {}
for role in ("kv_producer", "kv_consumer"):
    transfer = KVTransferConfig(kv_connector="NixlConnector", kv_role=role, engine_id=role)
    PrometheusStatLogger(EngineArgs(
        model=sys.argv[1], served_model_name=["tiny"], max_model_len=8192, block_size=32, enforce_eager=True,
        kv_transfer_config=transfer,
    ).create_engine_config())
    pages[role] = generate_latest(REGISTRY).decode()
bounds = {name: histogram_buckets(name) for name in ("time_to_first_token", "inter_token_latency")}
print(json.dumps({"version": __version__, "pages": pages, "bounds": bounds}))
"""
FAMILIES = {EngineMetric.TTFT: "time_to_first_token", EngineMetric.TPOT: "inter_token_latency"}
"""vLLM's name of the buckets that a histogram uses."""
ROLES = {"kv_producer": Role.PREFILL, "kv_consumer": Role.DECODE}


@pytest.fixture(scope="module")
def vllm(home: Any) -> dict[str, Any]:
    quiet = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        [str(home.python), "-W", "ignore", "-c", PRINT_PAGES, str(home.model)],
        capture_output=True,
        text=True,
        env={**kept, **quiet},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def bounds(page: str, name: str) -> list[float]:
    """The finite edges of a histogram on a page."""
    found = re.findall(rf'^{re.escape(name)}_bucket{{.*?le="([^"]+)".*?}} ', page, re.MULTILINE)
    return [float(edge) for edge in found if edge != "+Inf"]


@pytest.mark.parametrize("kv_role", ROLES)
def test_all_that_is_read_is_there_under_todays_names(kv_role, vllm):
    node = EngineNode("x", ROLES[kv_role], "http://x", "tiny")
    scrape = read_page(node, vllm["pages"][kv_role])
    assert scrape.missing == () and scrape.older_names == {} and scrape.models == ("tiny",)


@pytest.mark.parametrize("metric", HISTOGRAMS)
def test_the_edges_that_are_read_are_those_that_vllm_defines(metric, vllm):
    scrape = read_page(EngineNode("x", Role.DECODE, "http://x", "tiny"), vllm["pages"]["kv_consumer"])
    (snapshot,) = scrape.histograms[metric].values()
    assert list(snapshot.edges[:-1]) == vllm["bounds"][FAMILIES[metric]]


def test_the_older_names_are_gone(vllm):
    for names in NAMES.values():
        for name in names[1:]:
            assert not re.search(rf"^{re.escape(name)}\b", vllm["pages"]["kv_consumer"], re.MULTILINE)


def test_the_role_of_an_engine_can_be_seen(vllm):
    for kv_role, role in ROLES.items():
        page = read("x", "http://x", role, "tiny", vllm["pages"][kv_role])
        assert page.connector and page.consumer is (role is Role.DECODE)
        assert set(page.prompt_tokens) >= {"external_kv_transfer", "local_compute"}
        assert page.expired_leases == page.failed_transfers == 0.0


def test_the_emulator_has_the_names_kinds_and_bounds_of_vllm(vllm):
    for letter, kv_role in (("P", "kv_producer"), ("D", "kv_consumer")):
        page = vllm["pages"][kv_role]
        for spec in SPECS:
            if letter in spec.roles:
                assert f"# TYPE vllm:{spec.name} {spec.kind}\n" in page, spec.name
                assert bounds(page, f"vllm:{spec.name}") == [float(edge) for edge in spec.bounds], spec.name
        emulated = {f"vllm:{spec.name}" for spec in SPECS if letter in spec.roles} | {"vllm:cache_config_info"}
        real = {name for name, kind in re.findall(r"^# TYPE (vllm:\S+) (\w+)$", page, re.MULTILINE)}
        assert {name for name in real if not name.endswith("_created")} - emulated == set()
