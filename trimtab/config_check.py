"""What `trimtab config check` does: every problem of a trimtab.yaml at once, each with its place, and what the file
comes to, in the file's own shape, with nothing in it that opens a door.

A reader says where a value is wrong by itself. What does not go together (`Settings.conflicts`) is placed at the
longest path of the file that its message names, else at the value that it quotes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from slos.document import compose
from slos.problem import Problem, Problems, SpecError

from .discover import Discover
from .settings import Settings, shown
from .settings_file import load_settings

CODE = "E301"
"""Values that do not go together."""


def check(path: Path) -> tuple[Settings | None, list[Problem]]:
    """The file's settings if they can be used, and all that is wrong with it."""
    try:
        settings = load_settings(path)
    except SpecError as error:
        return None, list(error.problems)
    told = settings.conflicts()
    if told:
        places = _places(path)
        return None, sorted((_placed(str(path), places, text) for text in told), key=lambda p: (p.line, p.column))
    return settings.checked(), []


def effective(settings: Settings, environment: Mapping[str, str]) -> dict[str, object]:
    """What holds, in the file's shape. Secrets are named, and said to be there or not; addresses lose what may be
    a password."""

    def secret(name: str) -> str:
        if not name:
            return "none"
        return f"{name} ({'set' if environment.get(name) else 'not set'})"

    models = {}
    for each in settings.each_model:
        models[each.model] = {
            "prefill": [without_secrets(url) for url in each.prefill],
            "decode": [without_secrets(url) for url in each.decode],
            "replica": [without_secrets(url) for url in each.replica],
            "connector": each.connector,
            "connector_addresses": {without_secrets(url): at for url, at in each.addresses().items()},
            "lease": f"{each.lease_s:g}s",
            "table": list(each.tables),
            "discover": _discover(each.discover),
            "kv_events": {
                without_secrets(url): {"endpoint": without_secrets(at), "replay": without_secrets(replay)}
                for url, at, replay in each.kv_events
            },
            "engine_key_env": secret(each.engine_key_env),
            "aliases": list(each.aliases),
        }
    return {
        "version": 1,
        "listen": {"host": settings.host, "port": settings.port},
        "admin": {
            "host": settings.admin_host,
            "port": settings.admin_port,
            "token_env": secret(settings.admin_token_env),
        },
        "state_dir": settings.state_dir,
        "source": settings.source,
        "models": models,
        "slo_file": "none" if settings.slo_inline or not settings.slo_path else settings.slo_path,
        "slos": [f"{slo.name}: {slo.objective:.4g} {slo.signal.value}" for slo in settings.slos],
        "control": {
            "law": settings.law,
            "price": settings.price,
            "table": settings.mode,
            "signal": settings.signal,
            "priority": settings.priority,
            "without_table_tokens": settings.without_table_tokens,
            "pin_x": settings.pin_x,
            "observe": settings.observe,
            "webhook": without_secrets(settings.webhook, path=True) or "none",
            "webhook_secret_env": secret(settings.webhook_secret_env),
            "alertmanagers": [without_secrets(url) for url in settings.alertmanagers],
        },
        "router": {
            "conversation": settings.conversation,
            "idle": f"{settings.idle_s:g}s",
            "connect_timeout": f"{settings.connect_timeout_s:g}s",
            "first_byte_timeout": f"{settings.first_byte_timeout_s:g}s",
            "gap_timeout": f"{settings.gap_timeout_s:g}s",
            "answer_timeout": f"{settings.answer_timeout_s:g}s",
            "timeout_per_prompt_token": f"{settings.per_prompt_token_s * 1000:g}ms",
            "body_timeout": f"{settings.body_timeout_s:g}s",
            "drain": f"{settings.drain_s:g}s",
            "notice": f"{settings.notice_s:g}s",
            "max_requests": settings.max_requests,
            "max_conversations": settings.max_conversations,
            "conversations_mb": settings.conversations_mb,
            "retry_share": settings.retry_share,
            "p_down": settings.p_down,
            "p_down_prompts": settings.p_down_prompts,
            "api_keys_env": secret(settings.api_keys_env),
            "api_keys_file": settings.api_keys_file or "none",
            "tenants": {tenant: secret(variable) for tenant, variable in settings.tenants},
            "forward_headers": list(settings.forward_headers),
            "passthrough": list(settings.passthrough),
        },
    }


def _discover(found: Discover) -> dict[str, object]:
    """Where nodes are found, in the file's shape; only what is followed."""
    shown: dict[str, object] = {}
    if found.file:
        shown["file"] = found.file
    if found.dns:
        shown["dns"] = {role: without_secrets(url) for role, url in found.dns} | {"every": f"{found.dns_every_s:g}s"}
    if found.heartbeats:
        shown["heartbeats"] = {
            "bind": found.heartbeats,
            "networks": list(found.heartbeat_networks),
            "expiry": f"{found.heartbeat_expiry_s:g}s",
        }
    if found.kube_namespace:
        shown["kubernetes"] = {
            "namespace": found.kube_namespace,
            "selector": found.kube_selector,
            "port": found.kube_port,
            "role_label": found.kube_role_label,
            "kubeconfig": found.kubeconfig or "none",
        }
    return shown


def without_secrets(url: str, *, path: bool = False) -> str:
    """A URL less its user, its query and, with `path`, its path: any of them may be a secret."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "…"
    if not parts.netloc:
        return url
    at = "…@" if "@" in parts.netloc else ""
    host = f"{parts.scheme}://{at}{parts.netloc.rpartition('@')[2]}"
    rest = parts.path if not path else "/…" if parts.path not in ("", "/") else ""
    return host + rest + ("?…" if parts.query else "") + ("#…" if parts.fragment else "")


def _placed(source: str, places: list[tuple[str, str, yaml.Mark]], text: str) -> Problem:
    named = [(len(path), mark) for path, _, mark in places if path and path in text]
    if not named:
        named = [(len(value), mark) for _, value, mark in places if value and f"'{shown(value)}'" in text]
    mark = max(named, key=lambda entry: entry[0])[1] if named else None
    line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
    return Problem(source, line, column, CODE, text, "")


def _places(path: Path) -> list[tuple[str, str, yaml.Mark]]:
    """(path, value if it is a scalar, where) of everything in a file that has been read before."""
    root = compose(path.read_text(encoding="utf-8"), Problems(str(path)))
    return list(_walk("", root.node)) if root is not None else []


def _walk(path: str, node: yaml.Node) -> Iterator[tuple[str, str, yaml.Mark]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            name = f"{path}.{key.value}" if path else str(key.value)
            yield name, str(value.value) if isinstance(value, yaml.ScalarNode) else "", key.start_mark
            yield from _walk(name, value)
    elif isinstance(node, yaml.SequenceNode):
        for at, item in enumerate(node.value):
            yield f"{path}[{at}]", str(item.value) if isinstance(item, yaml.ScalarNode) else "", item.start_mark
            yield from _walk(f"{path}[{at}]", item)
