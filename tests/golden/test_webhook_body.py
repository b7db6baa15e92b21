"""The webhook's bodies, as Alertmanager writes them: an alert and its recovery."""

import json

from slos.alerts import Change
from slos.notice import Notice, labels
from slos.objective import Match, Signal, Slo
from slos.sinks.webhook import payload

SLO = Slo("later-ttft", Signal.TTFT, 0.99, 2.0, Match(turn_min=2))
STARTS_S = 1795986991.0394
ADMIN = "http://trimtab:9400"


def test_an_alert_and_its_recovery_are_as_alertmanager_writes_them(golden):
    identity = labels(SLO, "chat", {"team": "assistants"})
    bodies = [
        payload(Notice(change, identity, {"summary": said}, STARTS_S, ends_s, f"{ADMIN}#slo-later-ttft"), ADMIN)
        for change, said, ends_s in (
            (Change.FIRED, "6.13 % slow", None),
            (Change.RESOLVED, "kept again", STARTS_S + 900.0),
        )
    ]
    golden("webhook.json", json.dumps(bodies, indent=2, ensure_ascii=False) + "\n")
