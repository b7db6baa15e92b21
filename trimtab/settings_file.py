"""Reads `trimtab.yaml` into `Settings`: all problems of a file at once, each with line and fix."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from controller.laws import LAWS
from controller.laws.protocol import Priority
from router.artefact import SOURCES
from router.connectors import CONNECTORS
from router.p_down import PrefillDown
from router.policy import MODES
from router.recognition import Recognition
from slos import phrases
from slos.deliver import shown_url
from slos.document import compose
from slos.files import load_slo_file
from slos.nodes import REFUSED, Spot, boolean, fields, items, own_fields, pairs, scalar
from slos.nodes import names as texts
from slos.policy import UNDECLARED, Declaration
from slos.problem import Problem, Problems, SpecError, did_you_mean
from slos.schema import DECLARATION
from slos.spec import read_declaration

from .discover import read_discover
from .settings import OWN_OF_A_MODEL, SIGNALS, Settings, unknown_tenants


def load_settings(path: Path) -> Settings:
    """Read `trimtab.yaml`. Raises SpecError with every problem."""
    problems = Problems(str(path))
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        problems.add(1, 1, "E110", f"cannot be read: {error.strerror}", "check the path")
        problems.raise_any()
        raise AssertionError from error
    except UnicodeDecodeError as error:
        problems.add(1, 1, "E110", f"byte {error.start} is not UTF-8", "save the file as UTF-8")
        problems.raise_any()
        raise AssertionError from error
    return parse_settings(text, str(path), path.parent)


def parse_settings(text: str, source: str, folder: Path) -> Settings:
    """Settings from YAML text; file names in it are relative to `folder`. Raises SpecError."""
    problems = Problems(source)
    values = _read(text, problems, folder)
    problems.raise_any()
    further: Any = values.pop("further", ())
    settings = Settings(**values)  # type: ignore[arg-type]
    return replace(settings, further=tuple(replace(settings, **{**OWN_OF_A_MODEL, **own}) for own in further))


def check_settings(
    text: str, source: str, folder: Path, rps: float | None = None
) -> tuple[Declaration | None, tuple[Problem, ...]]:
    """What a trimtab.yaml declares, with the advice on it; where there are mistakes, None and only these."""
    problems = Problems(source)
    declaration = _read(text, problems, folder, rps).get("declaration", UNDECLARED)
    found = sorted(problems, key=lambda problem: (problem.line, problem.column))
    mistakes = tuple(each for each in found if not each.advice)
    if mistakes or not isinstance(declaration, Declaration):
        return None, mistakes
    return declaration, tuple(found)


def _read(text: str, problems: Problems, folder: Path, rps: float | None = None) -> dict[str, object]:
    """The values of `Settings` that the text gives; those of `further` are what each of these models has of its own."""
    root = compose(text, problems)
    keys = (
        "version",
        "listen",
        "admin",
        "state_dir",
        "source",
        "models",
        *DECLARATION,
        "slo_file",
        "control",
        "router",
    )
    top = fields(root, keys) if root else None
    values: dict[str, object] = {}
    if root is None or top is None:
        return values
    if "version" not in top:
        root.complain("E103", "version is missing", "write version: 1 on the first line")
    elif scalar(top["version"], "1") not in (None, "1"):
        top["version"].complain("E112", "is not known", "write 1")
    _Reader(values, folder, rps).read(top)
    declaration, tenants = values.get("declaration"), values.get("tenants", ())
    if isinstance(declaration, Declaration) and isinstance(tenants, tuple):
        for each in unknown_tenants(declaration, tenants):
            inline = "slos" in top
            spot = top["slos" if inline else "slo_file"]
            line, column = (each.line, 1) if inline else (spot.line, spot.mark.column + 1)
            problems.add(line, column, each.code, each.message, each.fix)
    return values


class _Reader:
    """Puts the values of a file under the names of `Settings`."""

    def __init__(self, values: dict[str, object], folder: Path, rps: float | None = None) -> None:
        self._values = values
        self._folder = folder
        self._rps = rps

    def read(self, top: dict[str, Spot]) -> None:
        if "listen" in top:
            self._address(top["listen"], "host", "port", ())
        if "admin" in top:
            self._address(top["admin"], "admin_host", "admin_port", ("token_env",))
        if "state_dir" in top:
            self._text(top["state_dir"], "state_dir", "/var/lib/trimtab")
        if "source" in top:
            self._choice(top["source"], "source", SOURCES)
        if "models" in top:
            self._models(top["models"])
        beside = [key for key in DECLARATION if key in top]
        if beside and "slo_file" in top:
            top["slo_file"].complain("E210", f"stands beside {', '.join(beside)}", "keep one of them")
        elif "slos" in top:
            source = top["slos"].problems.source
            self._values["declaration"] = read_declaration(top, source, self._rps)
            self._values["slo_path"], self._values["slo_inline"] = str(Path(source).resolve()), True
        elif beside:
            top[beside[0]].complain("E103", "slos is missing beside it", "list at least one objective under slos:")
        elif "slo_file" in top:
            self._slo_file(top["slo_file"])
        if "control" in top:
            self._control(top["control"])
        if "router" in top:
            self._router(top["router"])

    def _address(self, spot: Spot, host: str, port: str, more: tuple[str, ...]) -> None:
        found = fields(spot, ("host", "port", *more)) or {}
        if "host" in found:
            self._text(found["host"], host, "127.0.0.1")
        if "port" in found:
            text = scalar(found["port"], "8000")
            if text is not None and not text.isdigit():
                found["port"].complain("E104", f"{text!r} is no port", "write a number, e.g. 8000")
            elif text is not None:
                self._values[port] = int(text)
        if "token_env" in found:
            self._text(found["token_env"], "admin_token_env", "TRIMTAB_ADMIN_TOKEN")

    def _models(self, spot: Spot) -> None:
        if spot.node.tag != REFUSED and not (isinstance(spot.node, yaml.MappingNode) and spot.node.value):
            spot.complain(
                "E104", f"must map model names to pools, not {spot.kind}", "write NAME: {decode: [http://...]}"
            )
            return
        found = own_fields(spot, "NAME")
        if not found:
            return
        (first, pool), *others = found.items()
        self._model(first, pool)
        further: list[dict[str, object]] = []
        for name, pool in others:
            further.append({})
            _Reader(further[-1], self._folder)._model(name, pool)
        if further:
            self._values["further"] = further

    def _model(self, name: str, pool: Spot) -> None:
        self._values["model"] = name
        own = ("aliases", "engine_key_env")
        pools = ("prefill", "decode", "replica", "discover")
        keys = (*own, *pools, "connector", "connector_addresses", "lease", "table", "kv_events")
        inside = fields(pool, keys) or {}
        for role in ("prefill", "decode", "replica"):
            if role in inside:
                urls = [scalar(item, "http://127.0.0.1:8100") for item in items(inside[role]) or ()]
                self._values[role] = tuple(url for url in urls if url is not None)
        if "aliases" in inside:
            self._list(inside["aliases"], "aliases", "llama")
        if "engine_key_env" in inside:
            self._text(inside["engine_key_env"], "engine_key_env", "TRIMTAB_ENGINE_KEY")
        if "connector" in inside:
            self._choice(inside["connector"], "connector", tuple(CONNECTORS))
        if "connector_addresses" in inside:
            self._pairs(inside["connector_addresses"], "connector_addresses", "http://127.0.0.1:8100", "10.0.0.1:21001")
        if "lease" in inside:
            self._duration(inside["lease"], "lease_s", "30s")
        if "table" in inside:
            listed = inside["table"]
            paths = texts(listed, "tables/mine.json")
            self._values["tables"] = tuple(str(self._folder / path) for path in paths)
        if "kv_events" in inside:
            self._kv_events(inside["kv_events"])
        if "discover" in inside:
            self._values["discover"] = read_discover(inside["discover"], self._folder)

    def _kv_events(self, spot: Spot) -> None:
        addresses: list[tuple[str, str, str]] = []
        for url, place in own_fields(spot, "http://127.0.0.1:8200").items():
            if isinstance(place.node, yaml.MappingNode):
                inside = fields(place, ("endpoint", "replay")) or {}
                if "endpoint" not in inside:
                    place.complain("E103", "endpoint is missing", "write {endpoint: tcp://HOST:PORT, replay: ...}")
                    continue
            else:
                inside = {"endpoint": place}
            endpoint = scalar(inside["endpoint"], "tcp://127.0.0.1:5557") or ""
            replay = (scalar(inside["replay"], "tcp://127.0.0.1:5558") or "") if "replay" in inside else ""
            addresses.append((url.rstrip("/"), endpoint, replay))
        self._values["kv_events"] = tuple(addresses)

    def _slo_file(self, spot: Spot) -> None:
        name = scalar(spot, "slo.yaml")
        if name is None:
            return
        try:
            self._values["declaration"] = load_slo_file(self._folder / name)
            self._values["slo_path"] = str((self._folder / name).resolve())
        except SpecError as error:
            for problem in error.problems:
                spot.complain(problem.code, f"{problem.source}:{problem.line}: {problem.message}", problem.fix)

    def _control(self, spot: Spot) -> None:
        keys = (
            "law",
            "priority",
            "price",
            "table",
            "signal",
            "webhook",
            "webhook_secret_env",
            "alertmanagers",
            "without_table_tokens",
            "pin_x",
            "observe",
        )
        found = fields(spot, keys) or {}
        choices = {"law": tuple(LAWS), "priority": tuple(Priority), "table": MODES, "signal": SIGNALS}
        for key, known in choices.items():
            if key in found:
                self._choice(found[key], "mode" if key == "table" else key, known)
        for key in ("price", "pin_x"):
            if key in found:
                text = scalar(found[key], "0.4")
                try:
                    if text is not None:
                        self._values[key] = float(text)
                except ValueError:
                    found[key].complain("E104", f"{text!r} is no number", "write e.g. 0.4")
        if "without_table_tokens" in found:
            self._number(found["without_table_tokens"], "without_table_tokens", "1536", int)
        for key, example in (
            ("webhook", "http://127.0.0.1:9093/hook"),
            ("webhook_secret_env", "TRIMTAB_WEBHOOK_SECRET"),
        ):
            if key in found:
                self._text(found[key], key, example)

        if "observe" in found:
            observe = boolean(found["observe"])
            if observe is not None:
                self._values["observe"] = observe
        if "alertmanagers" in found:
            self._alertmanagers(found["alertmanagers"])

    def _alertmanagers(self, spot: Spot) -> None:
        """Every peer of a cluster by itself; a path prefix is part of the URL."""
        urls: list[str] = []
        for item in items(spot) or ():
            url = scalar(item, "http://127.0.0.1:9093")
            if url is None:
                continue
            try:
                shown_url(url)
            except ValueError:
                item.complain("E104", "is no URL of an Alertmanager", "write http://HOST:9093")
            else:
                urls.append(url)
        self._values["alertmanagers"] = tuple(urls)

    def _router(self, spot: Spot) -> None:
        durations = {
            "idle": "idle_s",
            "connect_timeout": "connect_timeout_s",
            "first_byte_timeout": "first_byte_timeout_s",
            "gap_timeout": "gap_timeout_s",
            "answer_timeout": "answer_timeout_s",
            "timeout_per_prompt_token": "per_prompt_token_s",
            "body_timeout": "body_timeout_s",
            "drain": "drain_s",
            "notice": "notice_s",
        }
        numbers = ("max_requests", "max_conversations", "conversations_mb", "p_down_prompts")
        doors = ("api_keys_env", "api_keys_file", "tenants", "forward_headers", "passthrough")
        keys = (*doors, "conversation", "p_down", "retry_share", *durations, *numbers)
        found = fields(spot, keys) or {}
        if "tenants" in found:
            named = pairs(found["tenants"], "assistants", "TRIMTAB_KEYS_ASSISTANTS")
            self._values["tenants"] = tuple((name, variable) for name, (_, variable) in named.items() if variable)
        if "p_down" in found:
            self._choice(found["p_down"], "p_down", tuple(rule.value for rule in PrefillDown))
        if "retry_share" in found:
            self._number(found["retry_share"], "retry_share", "0.2", float)
        for key in numbers:
            if key in found:
                self._number(found[key], key, "1000", int)
        if "api_keys_file" in found:
            name = scalar(found["api_keys_file"], "api-keys.txt")
            if name is not None:
                self._values["api_keys_file"] = str(self._folder / name)
        for key, example in (("forward_headers", "traceparent"), ("passthrough", "/v1/load_lora_adapter")):
            if key in found:
                self._list(found[key], key, example, empty=True)
        if "api_keys_env" in found:
            self._text(found["api_keys_env"], "api_keys_env", "TRIMTAB_API_KEYS")
        if "conversation" in found:
            self._choice(found["conversation"], "conversation", tuple(rule.value for rule in Recognition))
        for key, name in durations.items():
            if key in found:
                self._duration(found[key], name, "60s")

    def _pairs(self, spot: Spot, name: str, key: str, example: str) -> None:
        texts = {url: scalar(value, example) for url, value in own_fields(spot, key).items()}
        self._values[name] = tuple((url, text) for url, text in texts.items() if text is not None)

    def _list(self, spot: Spot, name: str, example: str, *, empty: bool = False) -> None:
        """Texts; `empty`: none is a choice too."""
        if empty and isinstance(spot.node, yaml.SequenceNode) and not spot.node.value:
            self._values[name] = ()
            return
        texts = [scalar(item, example) for item in items(spot) or ()]
        self._values[name] = tuple(text for text in texts if text is not None)

    def _text(self, spot: Spot, name: str, example: str) -> None:
        text = scalar(spot, example)
        if text is not None:
            self._values[name] = text

    def _number(self, spot: Spot, name: str, example: str, kind: type[int] | type[float]) -> None:
        text = scalar(spot, example)
        try:
            if text is not None:
                self._values[name] = kind(text)
        except ValueError:
            spot.complain("E104", f"{text!r} is no {'whole ' if kind is int else ''}number", f"write e.g. {example}")

    def _choice(self, spot: Spot, name: str, known: tuple[str, ...]) -> None:
        text = scalar(spot, known[0])
        if text is None:
            return
        if text not in known:
            spot.complain("E104", f"{text!r} is not known", did_you_mean(text, known))
        else:
            self._values[name] = text

    def _duration(self, spot: Spot, name: str, example: str) -> None:
        text = scalar(spot, example)
        seconds = None if text is None else phrases.duration_s(text, spot.complain)
        if seconds is not None:
            self._values[name] = seconds
