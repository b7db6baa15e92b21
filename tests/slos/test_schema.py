"""The published JSON Schema: it is that of the code, it takes what the reader takes, and refuses what it can."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given, settings

from slos.schema import json_schema
from slos.spec import check_slos
from slos.write import declaration_values
from tests.slos.declarations import declarations

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "docs" / "reference" / "slo.schema.json"
VALIDATOR = jsonschema.Draft202012Validator(json_schema())
EXAMPLES = sorted((ROOT / "examples").glob("slo*.yaml"))
HEAD = "version: 1\nslos:\n  - name: x\n"


def test_the_published_schema_is_the_codes_own():
    assert json.loads(PUBLISHED.read_text("utf-8")) == json_schema(), (
        "run: trimtab slo schema --to docs/reference/slo.schema.json"
    )


def test_it_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(json_schema())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_it_accepts_every_example(path: Path):
    VALIDATOR.validate(yaml.safe_load(path.read_text("utf-8")))


@settings(max_examples=25)
@given(declarations())
def test_it_accepts_whatever_the_reader_accepts(declaration):
    VALIDATOR.validate(json.loads(json.dumps(declaration_values(declaration))))


BAD = [
    "version: 2\nslos: [{name: a, objective: p99(ttft) <= 2s}]\n",
    "version: 1\n",
    "version: 1\nslos: []\n",
    "version: 1\nservice: Chat Service\nslos: [{name: a, objective: p99(ttft) <= 2s}]\n",
    "version: 1\nslo: 1\nslos: [{name: a, objective: p99(ttft) <= 2s}]\n",
    "version: 1\nslos: [{objective: p99(ttft) <= 2s}]\n",
    "version: 1\nslos: [{name: A b, objective: p99(ttft) <= 2s}]\n",
    HEAD + "    objektive: p99(ttft) <= 2s\n",
    HEAD + "    signal: tftt\n    percent: 99\n    max: 2s\n",
    HEAD + "    signal: ttft\n    percent: 99\n    max: 500\n",
    HEAD + "    signal: ttft\n    percent: 101\n    max: 500ms\n",
    HEAD + "    objective: p99(ttft) <= 2s\n    percent: 99\n",
    HEAD + "    objective: p99(ttft) <= 2s\n    match: {streaming: 1}\n",
    HEAD + "    objective: p99(ttft) <= 2s\n    match: {turn: '>2'}\n",
    HEAD + "    objective: p99(ttft) <= 2s\n    budget: {method: turns}\n",
    HEAD + "    objective: p99(ttft) <= 2s\n    budget: {over: 28}\n",
    HEAD + "    all_of: [p99(ttft) <= 2s]\n    percent: 97\n",
    HEAD + "    all_of: []\n    percent: 97\n",
    HEAD + "    preset: mlperf/nothing\n",
    HEAD + "    objective: p99(ttft) <= 2s\nalerts: {burn: [{severity: page, spend: 2, long: 1h, short: 5m}]}\n",
    HEAD + "    objective: p99(ttft) <= 2s\nalerts: {burn: [{severity: page, spend: 2%, long: 1h}]}\n",
    HEAD + "    objective: p99(ttft) <= 2s\nalerts: {breach: {severity: call}}\n",
    HEAD + "    objective: p99(ttft) <= 2s\nalerts: {breach: {confidence: 1.5}}\n",
    HEAD + "    objective: p99(ttft) <= 2s\nalerts: {min_bad_events: 0}\n",
    HEAD + "    objective: p99(ttft) <= 2s\ntraffic: {rps: -1}\n",
]


@pytest.mark.parametrize("text", BAD)
def test_it_refuses_what_a_schema_can_and_the_reader_refuses_it_too(text: str):
    assert not VALIDATOR.is_valid(yaml.safe_load(text))
    assert check_slos(text, "slo.yaml")[0] is None


def test_every_key_of_the_schema_is_read():
    """A key in the tables that the reader forgot would be accepted and do nothing."""
    full = (ROOT / "examples" / "slo-full.yaml").read_text("utf-8")
    written = set(_keys(yaml.safe_load(full)))
    known = set(_properties(json_schema()))
    assert known - written <= {"tenant", "asked"}, "put the new key into examples/slo-full.yaml"


def _keys(value):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _keys(inner)


def _properties(schema):
    if isinstance(schema, dict):
        properties = schema.get("properties")
        if isinstance(properties, dict):
            yield from properties
        for inner in schema.values():
            yield from _properties(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from _properties(inner)
