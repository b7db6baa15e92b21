"""Which routes of engines clients may use beside the two that are turns.

Everything below /v1/ but what steers an engine or tells of its inside; and the few inference routes that vLLM has
elsewhere. Anything else does not exist for clients, unless the operator opens it by its exact path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from .errors import Code, RequestError

METHODS = ("GET", "POST")
ELSEWHERE = frozenset(
    {
        *("/tokenize", "/detokenize", "/pooling", "/classify", "/score", "/rerank"),
        *("/v2/rerank", "/v2/embed"),
    }
)
"""Inference routes of vLLM that are not below /v1/."""
_PLAIN_PATH = re.compile(r"(/[A-Za-z0-9_][A-Za-z0-9._~-]*)+")
_STEERS = re.compile(
    r"(un)?load_.*|.*lora_adapters?|sleep|wake_up|is_sleeping|collective_rpc|reset_.*|pause|resume|abort_requests"
    r"|.*weights?(_.*)?|(start|stop)_.*|scale_.*|fault_tolerance|kv_event_sources|release_.*|init_.*|server_info|shutdown.*"
    r"|admin|internal|debug"
)
"""Parts of a path that change an engine or tell of its inside."""


def may_be_passed(path: str) -> bool:
    """Whether an operator may open that route: it looks like one."""
    return len(path) <= 256 and _PLAIN_PATH.fullmatch(path) is not None


def steers(path: str) -> bool:
    """The route is for whoever runs the engines, not for clients."""
    return any(_STEERS.fullmatch(part) for part in path.lower().replace("-", "_").split("/"))


def may_pass(path: str, allowed: Iterable[str] = ()) -> bool:
    """Whether there is such a route for clients. `allowed`: those that the operator has opened. Raises RequestError
    (403) where there is one that is closed."""
    if not may_be_passed(path):
        return False
    if path in allowed:
        return True
    if not path.startswith("/v1/"):
        return path in ELSEWHERE
    if steers(path):
        raise RequestError(Code.FORBIDDEN, "this route of engines is for operators: router.passthrough can open it")
    return True
