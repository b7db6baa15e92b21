"""The file of `trimtab emulate --faults`."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from emulator.rules import Condition, Mishap, Pages, Trouble
from slos.spec import SpecError
from trimtab.cli import app
from trimtab.fault_file import load_faults, parse_faults

GOOD = """\
version: 1
requests:
  - {node: D0, nth: 3, fault: status, status: 503}
  - {node: P, has: min_tokens, fault: status, status: 400}
  - {leg: decode, nth: every 20, fault: stall, after: 5, for: 2s}
nodes:
  D1: {slow: 10, metrics: frozen}
"""


def test_a_good_file_is_read():
    plan = parse_faults(GOOD, "faults.yaml")
    assert [rule.mishap for rule in plan.requests] == [
        Mishap(Trouble.STATUS, 503),
        Mishap(Trouble.STATUS, 400),
        Mishap(Trouble.STALL, after=5, for_s=2.0),
    ]
    assert plan.nodes == {"D1": Condition(10.0, Pages.FROZEN)}


def test_all_problems_are_told_with_their_lines():
    text = GOOD.replace("nth: 3", "nth: none").replace("slow: 10", "slow: very").replace("version: 1", "version: 2")
    with pytest.raises(SpecError) as told:
        parse_faults(text, "faults.yaml")
    assert [problem.line for problem in told.value.problems] == [1, 3, 7]
    assert "write 3, 2-5, 4- or every 5" in str(told.value.problems[1])


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(SpecError) as told:
        load_faults(tmp_path / "none.yaml")
    assert "cannot be read" in str(told.value.problems[0])


def test_emulate_tells_what_is_wrong_with_its_file_and_does_not_start(tmp_path):
    path = tmp_path / "faults.yaml"
    path.write_text("version: 1\nrequests: [{fault: quake}]\n")
    told = CliRunner().invoke(app, ["emulate", "1D", "--port", "0", "--faults", str(path)])
    assert told.exit_code == 2
    assert "faults.yaml:2" in told.stderr and "'quake' is none of status" in told.stderr
