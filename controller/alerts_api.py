"""The alerts' part of the HTTP face.

    GET    /api/v1/alerts                open incidents, what a page holds back, receivers, what waits for them
    POST   /api/v1/alerts/test           {"by": "..."}: tell every receiver that this is a test -> what came of it
    GET    /api/v1/slos/history          what was counted of every SLO, by what it promised at the time
    GET    /api/v1/silences
    POST   /api/v1/silences              {"matchers": ["slo=chat-*"], "for_s": 7200, "by": "...", "comment": "..."}
    DELETE /api/v1/silences/ID           end it now

The guard of `app.py` is before all of them. What operators do here is in the audit.
"""

from __future__ import annotations

import asyncio
import json

from fastapi import FastAPI, Request, Response

from router.errors import Code
from slos.revisions import revision
from slos.silences import Silence

from .alerting import Alerting
from .answers import TooLarge, answered, body_of, refused
from .audit import AuditRow
from .loop import ControlLoop
from .slo_status import incident_row, slo_status
from .status import iso, number

MAX_BYTES = 16_384


def mount_alerts(app: FastAPI, loop: ControlLoop, alerting: Alerting) -> None:
    """Add the routes, and the SLOs' standing to what `/api/v1/slos` says."""
    loop.slo_details = lambda slo: slo_status(loop, alerting, slo)

    @app.get("/api/v1/alerts")
    async def get_alerts() -> Response:
        told = {one.key for one in alerting.incidents}
        held_back = [alarm for alarm in alerting.alarms if alarm.key not in told]
        return answered(
            {
                "source": loop.config.source,
                "incidents": [incident_row(one) for one in alerting.incidents],
                "joined": [
                    {
                        "about": alarm.about,
                        "family": alarm.family.value,
                        "severity": alarm.severity.value,
                        "muted": alarm.key in alerting.muted,
                        "summary": alarm.said,
                        "labels": dict(alarm.labels),
                    }
                    for alarm in held_back
                ],
                "receivers": alerting.receivers(),
                "waiting": {
                    "webhook": 0 if alerting.delivery is None else alerting.delivery.waiting,
                    "alertmanager": 0 if alerting.alertmanagers is None else alerting.alertmanagers.waiting,
                },
                "silences": sum(one.active(loop.wall()) for one in alerting.silences),
            }
        )

    @app.post("/api/v1/alerts/test")
    async def test_alerts(request: Request) -> Response:
        try:
            wanted = _object(await body_of(request, MAX_BYTES), ("by",))
        except (TooLarge, ValueError) as error:
            return refused(400, Code.BAD_REQUEST, str(error) or "the body is too large")
        by = str(wanted.get("by", "api"))[:200]
        loop.store.audit(AuditRow(loop.wall(), by, "alerts test", ""))
        return answered({"results": await alerting.test(by)})

    @app.get("/api/v1/slos/history")
    async def get_history() -> Response:
        current = {(slo.name, revision(slo)) for slo in alerting.judging.declaration.slos}
        rows = await asyncio.to_thread(loop.store.revisions)
        return answered(
            {
                "source": loop.config.source,
                "history": [
                    {
                        "slo": row.slo,
                        "revision": row.revision,
                        "current": (row.slo, row.revision) in current,
                        "from": iso(row.from_s),
                        "to": iso(row.to_s),
                        "valid": row.count.valid,
                        "bad": row.count.bad,
                        "excluded": row.count.excluded,
                        "good_share": number(1.0 - row.count.bad / row.count.valid if row.count.valid else None),
                    }
                    for row in rows
                ],
            }
        )

    @app.get("/api/v1/silences")
    async def get_silences() -> Response:
        return answered({"silences": [_row(one, loop.wall()) for one in alerting.silences], "note": _note(alerting)})

    @app.post("/api/v1/silences")
    async def post_silence(request: Request) -> Response:
        try:
            wanted = _object(await body_of(request, MAX_BYTES), ("matchers", "for_s", "by", "comment"))
            matchers, for_s = wanted.get("matchers"), wanted.get("for_s")
            if not isinstance(matchers, list) or not all(isinstance(text, str) for text in matchers):
                raise ValueError('"matchers" is a list of texts such as "slo=chat-ttft"')
            if isinstance(for_s, bool) or not isinstance(for_s, int | float):
                raise ValueError('"for_s" is a number of seconds')
            by, comment = wanted.get("by", ""), wanted.get("comment", "")
            if not isinstance(by, str) or not isinstance(comment, str):
                raise ValueError('"by" and "comment" are texts')
            made = alerting.silence(matchers, float(for_s), by, comment)
        except TooLarge:
            return refused(413, Code.TOO_LARGE, f"a silence has at most {MAX_BYTES} bytes")
        except ValueError as error:
            return refused(400, Code.BAD_REQUEST, str(error))
        said = f"{', '.join(map(str, made.matchers))} until {iso(made.ends_s)}: {made.comment}"
        loop.store.audit(AuditRow(loop.wall(), made.author, "silence", said))
        return answered({**_row(made, loop.wall()), "note": _note(alerting)}, 201)

    @app.delete("/api/v1/silences/{id}")
    async def delete_silence(id: str, by: str = "api") -> Response:
        ended = alerting.unsilence(id)
        if ended is None:
            return refused(404, Code.BAD_REQUEST, f"no silence {id[:40]} is in force; GET /api/v1/silences lists them")
        loop.store.audit(AuditRow(loop.wall(), by[:200], "unsilence", ", ".join(map(str, ended.matchers))))
        return answered(_row(ended, loop.wall()))


def _row(silence: Silence, now_s: float) -> dict[str, object]:
    return {
        "id": silence.id,
        "matchers": [str(matcher) for matcher in silence.matchers],
        "starts": iso(silence.starts_s),
        "ends": iso(silence.ends_s),
        "active": silence.active(now_s),
        "by": silence.author,
        "comment": silence.comment,
    }


def _note(alerting: Alerting) -> str:
    if alerting.alertmanagers is None:
        return ""
    return "these silences hold back log and webhook; for what is posted to Alertmanager set one there"


def _object(body: bytes, known: tuple[str, ...]) -> dict[str, object]:
    """The body's fields. Raises ValueError with what to write."""
    try:
        value = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        raise ValueError("the body is no JSON") from None
    if not isinstance(value, dict):
        raise ValueError(f"the body is an object with {', '.join(known)}")
    strange = sorted(set(value) - set(known))
    if strange:
        raise ValueError(f"{strange[0][:40]!r} is not known; the fields are {', '.join(known)}")
    return value
