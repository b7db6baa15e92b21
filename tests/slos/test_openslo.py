"""OpenSLO v1 in both directions: nothing is lost on the way there and back, and what cannot come in is named."""

import json
import os
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from slos.objective import Match, Signal, Slo
from slos.openslo import PREFIX, read_openslo, to_openslo
from slos.policy import Declaration
from slos.spec import load_slos
from slos.write import to_yaml
from tests.slos.declarations import declarations, meaning

EXAMPLES = Path(__file__).parents[2] / "examples"
FULL = (EXAMPLES / "slo-full.yaml").read_text("utf-8")
OPENSLO = to_openslo(load_slos(FULL, "slo.yaml"))
ONE = """\
apiVersion: openslo/v1
kind: SLO
metadata:
  name: chat-ttft
  displayName: Chat
spec:
  description: the first words
  service: chat
  indicator:
    metadata: {name: chat-ttft}
    spec:
      ratioMetric:
        counter: true
        good: {metricSource: {type: Trimtab, spec: {signal: ttft, max: 500ms, match: {turn: ">=2"}}}}
        total: {metricSource: {type: Trimtab, spec: {match: {turn: ">=2"}}}}
  timeWindow:
    - duration: 4w
      isRolling: true
  budgetingMethod: Occurrences
  objectives:
    - target: 0.99
"""


def imported(text: str) -> Declaration:
    declaration, problems = read_openslo(text, "openslo.yaml")
    assert declaration is not None, problems
    return declaration


@settings(max_examples=30)
@given(declarations())
def test_what_is_written_as_a_file_is_read_as_the_same(declaration: Declaration):
    assert meaning(load_slos(to_yaml(declaration), "slo.yaml")) == meaning(declaration)


@settings(max_examples=30)
@given(declarations())
def test_what_is_exported_is_imported_as_the_same(declaration: Declaration):
    assert meaning(imported(to_openslo(declaration))) == meaning(declaration)


def test_the_example_of_every_key_goes_there_and_back():
    declaration = load_slos(FULL, "slo.yaml")
    assert meaning(imported(to_openslo(declaration))) == meaning(declaration)


@settings(max_examples=10)
@given(declarations())
def test_annotations_have_our_prefix_and_never_that_of_openslo(declaration: Declaration):
    for document in yaml.safe_load_all(to_openslo(declaration)):
        assert all(key.startswith(PREFIX) for key in document["metadata"].get("annotations", {}))


def test_a_document_of_the_other_sides_making_is_understood():
    declaration = imported(ONE)
    assert declaration.slos == (Slo("chat-ttft", Signal.TTFT, 0.99, 0.5, Match(turn_min=2)),)
    assert (declaration.service, declaration.slos[0].description) == ("chat", "the first words")


def test_what_is_left_out_is_said_and_does_not_fail():
    _, problems = read_openslo(ONE, "openslo.yaml")
    assert [str(each) for each in problems] == [
        "openslo.yaml:5:3 W601 metadata.displayName: is left out; nothing, or say it in description"
    ]


def test_an_indicator_may_be_a_document_of_its_own_that_comes_later():
    lines = ONE.splitlines(keepends=True)
    start = next(at for at, line in enumerate(lines) if line.startswith("  indicator:"))
    spec = "".join(line[4:] for line in lines[start + 2 : start + 7])
    referring = "".join([*lines[:start], "  indicatorRef: first\n", *lines[start + 7 :]])
    sli = f"---\napiVersion: openslo/v1\nkind: SLI\nmetadata: {{name: first}}\n{spec}"
    assert imported(referring + sli).slos == imported(ONE).slos


@pytest.mark.parametrize(
    ("old", "new", "line", "code", "words"),
    [
        ("openslo/v1", "openslo/v2alpha", 1, "E112", "write openslo/v1"),
        ("openslo/v1", "openslo.com/v2alpha", 1, "E112", "write openslo/v1"),
        ("kind: SLO", "kind: SLOs", 2, "E104", "did you mean SLO?"),
        ("kind: SLO", "kind: AlertPolicy", 2, "E601", "write alerts:"),
        ("kind: SLO", "kind: AlertCondition", 2, "E601", "write alerts:"),
        ("kind: SLO", "kind: DataSource", 2, "E601", "measures turns itself"),
        ("isRolling: true", "isRolling: false", 18, "E601", "calendar window"),
        ("      isRolling: true\n", "      calendar: {startTime: x, timeZone: y}\n", 18, "E601", "calendar window"),
        ("      isRolling: true\n", "", 17, "E601", "calendar window"),
        ("duration: 4w", "duration: 1M", 17, "E601", "no fixed length"),
        ("duration: 4w", "duration: 1Q", 17, "E601", "no fixed length"),
        ("Occurrences", "RatioTimeslices", 19, "E601", "RatioTimeslices"),
        ("Occurrences", "Timeslices", 20, "E103", "timeSliceTarget"),
        ("- target: 0.99\n", "- target: 0.99\n    - target: 0.9\n", 22, "E601", "second objective"),
        ("- target: 0.99\n", "- target: 0.99\n      op: lte\n", 22, "E601", "threshold metrics"),
        ("- target: 0.99\n", "- target: 0.99\n      compositeWeight: 1\n", 22, "E601", "composite"),
        ("- target: 0.99\n", "- target: 99\n", 21, "E204", "0.99"),
        ("- target: 0.99\n", "- displayName: x\n", 21, "E103", "target"),
        ("counter: true", "raw: {metricSource: {spec: {}}}", 13, "E601", "raw"),
        ("good: {", "bad: {", 14, "E601", "bad"),
        ("ratioMetric", "thresholdMetric", 12, "E601", "threshold metric"),
        ("good: {metricSource: {type: Trimtab", "good: {metricSource: {type: Prometheus", 14, "E601", "Prometheus"),
        ("type: Trimtab, spec: {match", "metricSourceRef: x, type: Trimtab, spec: {match", 15, "E601", "query"),
        ('spec: {match: {turn: ">=2"}}', "spec: {}", 15, "E601", "same match"),
        ("max: 500ms", "max: 500", 14, "E203", "500ms"),
        ("signal: ttft", "signal: tftt", 14, "E202", "ttft"),
        ("name: chat-ttft\n  displayName", "name: Chat\n  displayName", 4, "E105", "chat"),
        ("  service: chat\n", "  service: chat\n  alertPolicies: [x]\n", 9, "E601", "alerts:"),
        ("  timeWindow:\n    - duration: 4w\n      isRolling: true\n", "", 1, "E103", "timeWindow"),
        ("spec:\n  description", "spec:\n  owner: me\n  description", 7, "E101", "unknown key"),
    ],
)
def test_what_cannot_be_imported_is_refused_by_its_name_with_its_place(
    old: str, new: str, line: int, code: str, words: str
):
    assert old in ONE
    declaration, problems = read_openslo(ONE.replace(old, new, 1), "openslo.yaml")
    assert declaration is None
    found = [each for each in problems if each.code == code and each.line == line]
    assert found, [str(each) for each in problems]
    assert any(words in str(each) for each in found), [str(each) for each in found]


def test_two_services_are_two_files():
    other = ONE.replace("service: chat", "service: search").replace("name: chat-ttft\n  d", "name: other\n  d")
    declaration, problems = read_openslo(f"{ONE}---\n{other}", "openslo.yaml")
    assert declaration is None
    assert [each.code for each in problems if not each.advice] == ["E601"]


@settings(max_examples=40)
@given(st.data())
def test_a_damaged_document_is_imported_or_refused_and_nothing_else_happens(data):
    text = OPENSLO
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        put = data.draw(
            st.text(max_size=4) | st.sampled_from(["---\n", "spec: ", "[", "{", "kind: ", "\t", "1e3", "~"])
        )
        text = text[:at] + put + text[at + data.draw(st.integers(0, 30)) :]
    declaration, problems = read_openslo(text, "openslo.yaml")
    assert declaration is not None or any(not each.advice for each in problems)
    for each in problems:
        assert 1 <= each.line <= text.count("\n") + 2 and each.column >= 1 and each.fix and "\n" not in str(each)


def test_upstreams_own_schemas_accept_what_is_exported():
    folder = os.environ.get("TRIMTAB_OPENSLO_SCHEMAS")
    if not folder:
        pytest.skip("TRIMTAB_OPENSLO_SCHEMAS does not name a folder with OpenSLO's schemas/v1")
    jsonschema = pytest.importorskip("jsonschema")
    referencing = pytest.importorskip("referencing")
    found = [json.loads(path.read_text("utf-8")) for path in Path(folder).rglob("*.schema.json")]
    by_id = {each["$id"]: each for each in found if "$id" in each}
    registry = referencing.Registry().with_resources(
        (name, referencing.Resource.from_contents(each, default_specification=referencing.jsonschema.DRAFT7))
        for name, each in by_id.items()
    )
    base = "https://openslo.com/schemas/v1/parts/"
    parts = {"SLO": ["general", "slo-spec"], "Service": ["general", "service-spec"]}
    validators = {
        kind: [jsonschema.Draft7Validator(by_id[f"{base}{part}.schema.json"], registry=registry) for part in named]
        for kind, named in parts.items()
    }

    def validate(declaration: Declaration) -> None:
        for document in yaml.safe_load_all(to_openslo(declaration)):
            for validator in validators[document["kind"]]:
                validator.validate(document)

    validate(load_slos(FULL, "slo.yaml"))
    validate(imported(ONE))
    settings(max_examples=30)(given(declarations())(validate))()
    with pytest.raises(jsonschema.ValidationError):
        validators["SLO"][1].validate({"spec": {"service": "x"}})
