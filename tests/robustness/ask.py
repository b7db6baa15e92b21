"""Requests to a router before an emulated fleet, and what befalls the fleet meanwhile."""

from __future__ import annotations

from typing import Any

from emulator.rules import rule
from tests.router_http.client import Answer, ask, chat
from tests.router_http.emulated import MODEL, Emulated


def asked(*texts: str, stream: bool = True, tokens: int = 8, **more: Any) -> dict[str, Any]:
    """A chat request of that many tokens; texts are the user's and the assistant's in turn."""
    return {**chat(*texts, stream=stream), "model": MODEL, "max_tokens": tokens, "ignore_eos": True, **more}


async def say(installed: Emulated, *texts: str, stream: bool = True, tokens: int = 8, **more: Any) -> Answer:
    """Send it to the router."""
    return await ask(installed.router.url, asked(*texts, stream=stream, tokens=tokens, **more))


def befalls(installed: Emulated, *values: dict[str, str]) -> None:
    """These rules instead of those before."""
    installed.fleet.rules.replace(tuple(rule(each) for each in values))


def struck(installed: Emulated) -> list[int]:
    """How many requests each rule has struck."""
    return installed.fleet.rules.struck
