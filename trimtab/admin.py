"""The control process's API as commands use it: JSON in, JSON out, and one sentence where that fails."""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request
from typing import Annotated, Any

import typer

from .console import fail

DEFAULT_URL = "http://127.0.0.1:9400"
TIMEOUT_S = 10.0

Url = Annotated[str, typer.Option("--url", help="Where the control process listens.", envvar="TRIMTAB_ADMIN_URL")]
TokenEnv = Annotated[
    str, typer.Option("--token-env", metavar="NAME", help="Environment variable with admin.token_env's token.")
]


def ask(url: str, path: str, method: str = "GET", body: object = None, token_env: str = "") -> Any:
    """The answer to one request, or the end of the command with the reason."""
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    if token_env:
        token = os.environ.get(token_env)
        if not token:
            fail(f"the environment variable {token_env} is not set")
        headers["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    try:
        request = urllib.request.Request(url.rstrip("/") + path, data=data, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        fail(f"{url}: {_told(error)}")
    except (urllib.error.URLError, OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        fail(f"{url}: the control process does not answer ({reason}); is it running there? give --url")


def _told(error: urllib.error.HTTPError) -> str:
    try:
        message = json.load(error)["error"]["message"]
    except (ValueError, KeyError, TypeError, OSError):
        message = ""
    if error.code == 401:
        return "a token is needed; give --token-env"
    return str(message) or f"status {error.code}"
