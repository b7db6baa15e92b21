"""Which keys a file of SLOs may have: the tables that `spec.py` reads by and that the published JSON Schema is made of.

A table maps each key to the JSON Schema of its value. The schema is for editors: it knows keys, types and the shape
of values. What it cannot say (two keys that exclude each other by their values, names used twice, a burn rule that can
never fire) only `trimtab slo check` finds. The first key of a table is the one that an error offers as an example.
"""

from .objective import Signal
from .policy import Severity
from .presets import PRESETS

Json = dict[str, object]
Table = dict[str, Json]

_NUMBER = r"([0-9]+(\.[0-9]*)?|\.[0-9]+)"
_LATENCY = rf"^{_NUMBER} *(ms|s|m|h)$"
_SPAN = rf"^{_NUMBER} *(s|m|h|d|w)$"
_LABEL = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
LABEL_NAME = r"^[a-zA-Z_][a-zA-Z0-9_]*$"


def _text(about: str, pattern: str | None = None) -> Json:
    return {"description": about, "type": "string", "minLength": 1, **({"pattern": pattern} if pattern else {})}


def _percent(about: str) -> Json:
    number = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 100}
    return {"description": about, "anyOf": [number, {"type": "string", "pattern": rf"^{_NUMBER} *%?$"}]}


def _whole(about: str, least: int) -> Json:
    return {"description": about, "type": "integer", "minimum": least}


def _one_or_more(about: str, pattern: str | None = None) -> Json:
    one = {"type": "string", "minLength": 1, **({"pattern": pattern} if pattern else {})}
    return {"description": about, "anyOf": [one, {"type": "array", "items": one, "minItems": 1}]}


def _mapping(table: Table, about: str, required: tuple[str, ...] = ()) -> Json:
    more = {"required": list(required)} if required else {}
    return {"description": about, "type": "object", "properties": table, "additionalProperties": False, **more}


_SEVERITY: Json = {"description": "page wakes somebody up, ticket does not.", "enum": [each.value for each in Severity]}
_LABELS: Json = {
    "description": "Labels of alerts and rules.",
    "type": "object",
    "propertyNames": {"pattern": LABEL_NAME},
    "additionalProperties": {"type": ["string", "number", "boolean"]},
}

MATCH: Table = {
    "model": _one_or_more("A glob, or a list of globs; case matters."),
    "turn": {
        "description": 'Which turns of a conversation: "1", "2..5" or ">=2".',
        "anyOf": [
            {"type": "integer", "minimum": 1},
            {"type": "string", "pattern": r"^(>=)? *[0-9]{1,6}( *\.\. *[0-9]{1,6})?$"},
        ],
    },
    "streaming": {"description": "Only streaming turns, or only others.", "type": "boolean"},
    "class": _one_or_more("Values of the header x-slo-class.", r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"),
    "tenant": _one_or_more("Names in router.tenants of trimtab.yaml.", r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"),
    "asked": {"description": "Turns whose request carried a deadline of its own, or only others.", "type": "boolean"},
}
BUDGET: Table = {
    "over": _text("How long the budget lasts, rolling.", _SPAN),
    "method": {"description": "What is counted.", "enum": ["requests", "slices"]},
    "percent": _percent("By slices: how many of the measured slices have to be good."),
    "slice": _text("How long a slice is; it divides a day.", _SPAN),
    "min_samples": _whole("Fewer valid turns in a slice: unknown.", 1),
}
DEFAULTS: Table = {
    "slice": BUDGET["slice"],
    "budget": _mapping({key: BUDGET[key] for key in ("over", "method", "percent")}, "The budget of every SLO."),
    "min_samples": BUDGET["min_samples"],
}
SLO: Table = {
    "name": _text("Unique in the file.", _LABEL),
    "objective": _text("p99(ttft) <= 500ms, success >= 99.9%, or p99(ttft) <= asked."),
    "signal": {"description": "The long form of objective.", "enum": [each.value for each in Signal]},
    "percent": _percent("How many of the covered turns have to be good."),
    "max": _text("What a latency may be: a duration, or asked.", rf"{_LATENCY}|^asked$"),
    "all_of": {
        "description": "Goodput: conditions that a turn has to meet at once.",
        "type": "array",
        "minItems": 1,
        "items": {
            "type": "string",
            "pattern": rf"^ *(success|(ttft|tpot|itl|e2e) *<= *({_NUMBER} *(ms|s|m|h)|asked)) *$",
        },
    },
    "preset": {"description": "A TTFT and a TPOT SLO with published limits.", "enum": list(PRESETS)},
    "match": _mapping(MATCH, "Which turns it is about; all without."),
    "budget": _mapping(BUDGET, "Where it differs from defaults."),
    "description": _text("For people."),
    "labels": _LABELS,
}
BREACH: Table = {
    "severity": _SEVERITY,
    "confidence": {"description": "Of the exact test.", "type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "for": _text("How long it has to last.", _SPAN),
    "clear": _text("How long it has to be over.", _SPAN),
}
BURN: Table = {
    "severity": _SEVERITY,
    "spend": _text("Share of the budget that the long window alone takes.", rf"^{_NUMBER} *%$"),
    "long": _text("The long window.", _SPAN),
    "short": _text("The short window, which ends the alert.", _SPAN),
    "for": _text("How long both have to last.", _SPAN),
}
NO_DATA: Table = {"after": _text("Without a measured turn although some came.", _SPAN), "severity": _SEVERITY}
ALERTS: Table = {
    "runbook": _text("A URL; {slo} stands for the SLO's name.", r"^https?://"),
    "breach": _mapping(BREACH, "The promise is broken now, beyond doubt."),
    "burn": {
        "description": "The budget goes too fast.",
        "type": "array",
        "minItems": 1,
        "items": _mapping(BURN, "Two windows.", ("severity", "spend", "long", "short")),
    },
    "min_bad_events": _whole("Fewer bad turns: no burn alert.", 1),
    "no_data": _mapping(NO_DATA, "Nothing measured."),
}
TRAFFIC: Table = {"rps": {"description": "Expected turns a second.", "type": "number", "exclusiveMinimum": 0}}

DECLARATION: Table = {
    "service": _text("What the SLOs are of.", _LABEL),
    "labels": _LABELS,
    "traffic": _mapping(TRAFFIC, "What trimtab slo check and explain reckon with."),
    "defaults": _mapping(DEFAULTS, "What every SLO has that says nothing else."),
    "slos": {
        "description": "The objectives.",
        "type": "array",
        "minItems": 1,
        "items": {
            **_mapping(SLO, "One objective."),
            "oneOf": [
                {
                    "required": ["name", "objective"],
                    "not": {"anyOf": [{"required": [key]} for key in ("signal", "percent", "max", "all_of", "preset")]},
                },
                {
                    "required": ["name", "signal", "percent"],
                    "not": {"anyOf": [{"required": [key]} for key in ("all_of", "preset")]},
                },
                {
                    "required": ["name", "all_of", "percent"],
                    "not": {"anyOf": [{"required": [key]} for key in ("max", "preset")]},
                },
                {
                    "required": ["preset"],
                    "not": {"anyOf": [{"required": [key]} for key in ("signal", "percent", "max", "all_of")]},
                },
            ],
        },
    },
    "alerts": _mapping(ALERTS, "When to tell whom."),
}
"""The keys that a file of SLOs and trimtab.yaml have in common."""
FILE: Table = {"version": {"description": "Of this format.", "enum": [1, "1"]}, **DECLARATION}


def json_schema() -> Json:
    """JSON Schema (draft 2020-12) of a file of SLOs."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Trimtab SLO file, version 1",
        **_mapping(FILE, "Service level objectives of a vLLM fleet behind Trimtab.", ("version", "slos")),
    }
