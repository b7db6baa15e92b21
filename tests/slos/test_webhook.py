"""The body that receivers made for Alertmanager read."""

import json

import pytest

from slos.alerts import Change
from slos.notice import Notice, labels
from slos.objective import Match, Signal, Slo
from slos.sinks import SINKS
from slos.sinks.webhook import NEVER, fingerprint, payload, timestamp

SLO = Slo("later-ttft", Signal.TTFT, 0.99, 2.0, Match(turn_min=2))
LABELS = labels(SLO, "chat", {"team": "assistants"})
STARTS_S = 1795986991.0394


def notice(change: Change = Change.FIRED, ends_s: float | None = None) -> Notice:
    return Notice(change, LABELS, {"summary": "6.13 % slow"}, STARTS_S, ends_s, "http://trimtab:9400#slo-later-ttft")


def alert(told: Notice) -> dict[str, object]:
    alerts = payload(told, "")["alerts"]
    assert isinstance(alerts, list) and len(alerts) == 1
    return alerts[0]


@pytest.mark.parametrize("name", SINKS)
def test_every_sink_gives_json_and_keeps_the_identity_from_alert_to_recovery(name: str):
    fired, resolved = (SINKS[name](n, "") for n in (notice(), notice(Change.RESOLVED, STARTS_S + 60.0)))
    json.dumps([fired, resolved], allow_nan=False)
    assert fired != resolved and fired["groupKey"] == resolved["groupKey"]


def test_a_recovery_has_an_end_and_keeps_its_start_and_fingerprint():
    fired, resolved = alert(notice()), alert(notice(Change.RESOLVED, STARTS_S + 60.0))
    assert (fired["status"], fired["endsAt"]) == ("firing", NEVER)
    assert (resolved["status"], resolved["endsAt"]) == ("resolved", "2026-11-29T21:17:31.039Z")
    assert fired["startsAt"] == resolved["startsAt"] == "2026-11-29T21:16:31.039Z"
    assert fired["fingerprint"] == resolved["fingerprint"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, 14695981039346656037), ({"name": "garland, briggs", "fear": "love is not enough"}, 5799056148416392346)],
)
def test_fingerprints_are_those_of_prometheus(given, expected):  # the vectors of prometheus/common's own test
    assert int(fingerprint(given), 16) == expected
    assert len(fingerprint(given)) == 16


def test_labels_are_strings_and_hold_no_numbers_of_the_moment():
    assert LABELS == {
        "alertname": "SLOBreach",
        "family": "breach",
        "service": "chat",
        "severity": "page",
        "slo": "later-ttft",
        "team": "assistants",
    }
    assert labels(SLO, None, {"slo": "mine"})["slo"] == "later-ttft"
    assert "service" not in labels(SLO, None)


def test_a_group_key_escapes_what_would_end_it():
    odd = Notice(Change.FIRED, {"slo": 'a"b\\c\n'}, {}, 0.0, None, "")
    assert payload(odd, "")["groupKey"] == '{}:{slo="a\\"b\\\\c\\n"}'


def test_a_time_is_utc_with_milliseconds():
    assert timestamp(0.0) == "1970-01-01T00:00:00.000Z"
