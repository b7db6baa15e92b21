"""Several models in one router process: what each has of its own, and what they share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from router.admission import Admission
from router.clock import Clock
from router.doors import Doors
from router.errors import RequestError
from router.models import Directory
from router.outbox import LastPublication, TableCache
from router.policy import Policy, Publication, Weights
from router.recognition import Recogniser, Recognition
from slos.spec import load_slos
from trimtab.served_model import ServedModel, Shared, served_model
from trimtab.settings import Settings
from trimtab.settings_file import parse_settings

TWO = """\
version: 1
models:
  big: {prefill: [http://127.0.0.1:1], decode: [http://127.0.0.1:2], discover: {file: nodes.yaml}}
  small: {replica: [http://127.0.0.1:3]}
slos: [{name: ttft, objective: p99(ttft) <= 2s}]
router: {tenants: {assistants: TRIMTAB_KEYS_ASSISTANTS}, max_requests: 7}
"""


def wired(folder: Path) -> tuple[Settings, list[ServedModel]]:
    settings = parse_settings(TWO, "trimtab.yaml", folder).checked()
    settings = replace(settings, state_dir=str(folder), admin_port=0)
    cache = TableCache(folder)
    shared = Shared(
        settings,
        folder,
        Clock(),
        Doors(),
        Admission(settings.max_requests),
        Recogniser(b"k" * 32, Recognition.CHAIN),
        cache,
        LastPublication(folder, cache),
        Publication(1, {"main": Policy(1, {}, Weights(1, 1))}),
    )
    return settings, [served_model(each, f"r/{each.model}", shared) for each in settings.each_model]


def test_each_model_has_nodes_watch_roster_and_sources_of_its_own(tmp_path: Path):
    _, (big, small) = wired(tmp_path)
    assert [sorted(each.pool.core.nodes) for each in (big, small)] == [["big/D0", "big/P0"], ["small/R0"]]
    told = [each.membership.roster.sources for each in (big, small)]
    assert told == [("static", "admin", "file"), ("static", "admin")]
    assert [sorted(each.membership.roster.nodes) for each in (big, small)] == [["big/D0", "big/P0"], ["small/R0"]]
    assert big.pool.core.retries is not small.pool.core.retries


def test_what_is_declared_anew_holds_for_every_model(tmp_path: Path):
    _, served = wired(tmp_path)
    other = load_slos("version: 1\nslos: [{name: tpot, objective: p99(tpot) <= 50ms}]\n", "slo.yaml")
    for each in served:
        each.redeclare(other)
    assert [sorted(each.pool.core.counts.snapshot()) for each in served] == [["tpot"], ["tpot"]]


def test_places_are_shared_and_all_models_leave_together(tmp_path: Path):
    _, served = wired(tmp_path)
    directory = Directory([each.pool for each in served])
    front, other = (each.pool.dispatcher for each in served)
    assert front is directory.front and front.admission is other.admission
    with front.admission.slot():
        assert other.active == 1
    front.draining = True
    with pytest.raises(RequestError), other.admission.slot():
        pass
