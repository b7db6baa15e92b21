"""The built-in page: one HTML document without anything from elsewhere, drawn in the browser from `/api/v1`.

Its parts are the files in `dashboards/web`; style and script are put into the document, so that one request fetches
all of it.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

from fastapi import FastAPI, Response


@cache
def page() -> str:
    """The document."""
    return _part("page.html").replace("/*STYLE*/", _part("page.css")).replace("/*SCRIPT*/", _part("page.js"))


@cache
def content_security_policy() -> str:
    """Nothing but this very style and script may run, and they may talk to this site only."""
    style, script = _digest("page.css"), _digest("page.js")
    return (
        f"default-src 'none'; style-src '{style}'; script-src '{script}'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def mount(app: FastAPI) -> None:
    """Serve the page at `/`."""

    @app.get("/")
    async def index() -> Response:
        headers = {"content-security-policy": content_security_policy(), "referrer-policy": "no-referrer"}
        return Response(page(), media_type="text/html; charset=utf-8", headers=headers)


def _part(name: str) -> str:
    return (files("dashboards") / "web" / name).read_text(encoding="utf-8")


def _digest(name: str) -> str:
    digest = hashlib.sha256(_part(name).encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
