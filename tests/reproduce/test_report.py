"""The report and the document for machines, of a small chapter."""

from __future__ import annotations

import base64
import json
import re

import pytest

from trimtab.agreement import Agreement, Line
from trimtab.reproduce.document import Provenance, document
from trimtab.reproduce.panel import Panel, Series, Source
from trimtab.reproduce.report import page
from trimtab.reproduce.target import Chapter, Finding, Target, Unit

ABOUT = Provenance("emulated", "trimtab reproduce", "abc", 0, True, "nothing", {"trimtab": "1"}, "x", 1.0, {"runs": 3})
PANEL = Panel(
    "a <panel>",
    "x",
    "y",
    [
        Series("ours", [1.0, 2.0], [3.0, 4.0], 0, failed=[False, True]),
        Series("measured", [1.0, 2.0], [3.0, 5.0], 0, Source.MEASURED, line=False),
        Series("paper", [2.0], [5.0], 0, Source.PAPER),
    ],
)
CHAPTER = Chapter(
    "Figure 0: <b>",
    "by hand",
    [
        Finding(Target("figure-0/a", "a & b", Unit.MS, "Figure 0", 10.0, 0.1, why="because <x>"), 10.5, 10.2),
        Finding(Target("figure-0/b", "c", Unit.SHARE, "Figure 0", 0.5), 0.4, interval=(0.3, 0.6)),
    ],
    [PANEL],
)


def test_the_report_holds_everything_and_asks_nobody():
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    text = page({"figure-0": CHAPTER}, ABOUT)
    assert not re.search(r"(src|href)=[\"'](?!data:|#)", text) and "<script" not in text and "@import" not in text
    assert "a &amp; b" in text and "because &lt;x&gt;" in text and "Figure 0: &lt;b&gt;" in text
    assert "source: emulated · trimtab reproduce · abc · seed 0" in text
    pictures = [base64.b64decode(found).decode() for found in re.findall(r"base64,([\w+/=]+)", text)]
    assert len(pictures) == 1 and "</svg>" in pictures[0]
    assert page({"figure-0": CHAPTER}, ABOUT) == text


def test_a_chapter_without_findings_says_so():
    assert "no measured points were given" in page({"fit": Chapter("The fit", "x", [])}, ABOUT)


def test_the_document_has_fit_overall_targets_and_provenance():
    fit = [
        Line("all", Agreement(9, 0.04, 1.0, 0.95), Agreement(9, 0.12, 1.0, 0.96)),
        Line("4R", Agreement(2, 0.09, 0.9, float("nan")), Agreement(2, 0.1, 1.0, float("nan"))),
    ]
    found = json.loads(document({"figure-0": CHAPTER}, fit, ABOUT))
    assert found["overall"]["tpot_mape"] == 0.04 and found["overall"]["spearman"] == 0.95
    assert set(found["fit"]) == {"4R"} and found["fit"]["4R"]["spearman"] is None
    first = found["targets"][0]
    assert {"name", "paper", "measured", "trimtab", "error"} <= set(first)
    assert (first["name"], first["against"], first["verdict"]) == ("figure-0/a", "measured", "holds")
    assert found["targets"][1]["interval"] == [0.3, 0.6]
    assert {"source", "command", "commit", "seed", "versions", "machine"} <= set(found["provenance"])


def test_a_series_has_as_many_x_as_y():
    with pytest.raises(ValueError, match="2 x, 1 y"):
        Series("s", [1.0, 2.0], [1.0], 0)
