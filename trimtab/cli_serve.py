"""The commands that run things: emulate, serve, router, control, pin."""

from __future__ import annotations

import asyncio
import datetime
import getpass
import json
import os
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from emulator.fleet import LoadFailure
from emulator.profiles import PROFILES
from router.artefact import ArtefactError
from router.connectors import CONNECTORS
from router.pin import Pin, write_pin
from slos.files import load_slo_file
from slos.spec import SpecError

from . import cli_fit
from .console import fail, out
from .doctor.visit import at_start
from .fault_file import load_faults
from .processes import (
    EXIT_SETTINGS,
    StartError,
    read_settings,
    save_settings,
    secret_from_env,
    set_up_logging,
    state_dir,
)
from .settings import Settings, default_state_dir
from .settings_file import load_settings
from .supervisor import Supervisor

MODEL_PROBE_S = 1.0

Config = Annotated[Path | None, typer.Argument(help="trimtab.yaml; flags override it.")]
Prefill = Annotated[list[str] | None, typer.Option(help="URL of a prefill node; repeatable.")]
Decode = Annotated[list[str] | None, typer.Option(help="URL of a decode node; repeatable.")]
Replica = Annotated[list[str] | None, typer.Option(help="URL of a replica; repeatable.")]
ConnectorOption = Annotated[str | None, typer.Option("--connector", help="nixl (default), mooncake or p2p_nccl.")]
ConnectorAddress = Annotated[
    list[str] | None, typer.Option(help="ENGINE_URL=ADDRESS: where that node hands over; repeatable.")
]
SloOption = Annotated[Path | None, typer.Option("--slo", help="SLO file.")]
Table = Annotated[list[Path] | None, typer.Option(help="Table artefact of `trimtab calibrate`; repeatable.")]
PinX = Annotated[str | None, typer.Option(help="Fixed share of local turns: 0..1, x0 or x1; no control.")]
Observe = Annotated[
    bool | None,
    typer.Option(
        "--observe/--no-observe", help="Act as pinned (--pin-x, default x0) and show what control would have done."
    ),
]
Host = Annotated[str | None, typer.Option(help="Where clients connect; default 127.0.0.1.")]
Port = Annotated[int | None, typer.Option(help="Default 8000.")]
AdminPort = Annotated[int | None, typer.Option(help="Page, metrics and API on 127.0.0.1; default 9400.")]
StateDir = Annotated[Path | None, typer.Option(help="Where state is kept; default: a folder per port in your home.")]
Source = Annotated[str | None, typer.Option(help="What stands beside numbers: measured, vllm-cpu or emulated.")]
SettingsFile = Annotated[Path | None, typer.Option("--settings", hidden=True)]


def emulate(
    topology: Annotated[str, typer.Argument(help="E.g. 2P_2D or 4R.")],
    model: Annotated[str, typer.Option(help=f"Engine profile: {', '.join(sorted(PROFILES))}.")] = "llama-3.1-8b-h100",
    host: Annotated[str, typer.Option(help="Loopback unless you know why not.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65000, help="First port; the others follow. 0: free ones.")] = 8100,
    speed: Annotated[float, typer.Option(help="Engine seconds per second.")] = 1.0,
    profile: cli_fit.Profile = None,
    connector: Annotated[str, typer.Option(help="Hand-over protocol: nixl, mooncake or p2p_nccl.")] = "nixl",
    kv_load_failure_policy: Annotated[
        LoadFailure, typer.Option(help="What D does with a request whose KV it could not read, as vLLM's.")
    ] = LoadFailure.FAIL,
    kv_events_port: Annotated[
        int | None, typer.Option(min=1024, max=65000, help="Publish KV events: first of two ports a node. Needs pyzmq.")
    ] = None,
    faults: Annotated[Path | None, typer.Option(help="YAML file: what goes wrong with requests and nodes.")] = None,
    ready_file: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Emulated vLLM servers, one port a node: no GPU, the latencies of the profile."""
    from emulator.server.run import PortInUse, RunningFleet, main_loop

    engine = cli_fit.engine_profile(model, profile)
    if connector not in CONNECTORS:
        fail(f"unknown connector {connector!r}; known: {', '.join(CONNECTORS)}")
    if not 0 < speed <= 1000:
        fail(f"--speed {speed:g}: must be above 0 and at most 1000")
    try:
        plan = None if faults is None else load_faults(faults)
    except SpecError as error:
        fail("\n".join(str(problem) for problem in error.problems))
    set_up_logging("emulator")

    def ready(running: RunningFleet) -> None:
        out.print(f"emulated fleet {topology}, {model}, serving {running.model!r}, source: emulated", highlight=False)
        for name, url in running.urls.items():
            address, publisher = running.addresses.get(name), running.nodes[name].publisher
            handed = f"  hands over at {address}" if address else ""
            told = "" if publisher is None else f"  KV events {publisher.endpoint}, replay {publisher.replay}"
            out.print(f"  {name}  {url}{handed}{told}", highlight=False)
        out.print(f"  kill and revive nodes: {running.control_url}", highlight=False)
        if ready_file is not None:
            partial = ready_file.with_suffix(".part")
            partial.write_text(
                json.dumps(
                    {
                        "urls": running.urls,
                        "addresses": running.addresses,
                        "control": running.control_url,
                        "model": running.model,
                    }
                )
            )
            partial.replace(ready_file)

    try:
        main_loop(
            topology,
            engine,
            host,
            port,
            speed,
            connector=connector,
            kv_events_port=kv_events_port,
            load_failure=kv_load_failure_policy,
            faults=plan,
            on_ready=ready,
        )
    except ImportError:
        fail("--kv-events-port needs pyzmq: pip install 'trimtab[kv-events]'")
    except (ValueError, PortInUse) as error:
        fail(str(error.strerror if isinstance(error, PortInUse) else error))


def serve(
    config: Config = None,
    prefill: Prefill = None,
    decode: Decode = None,
    replica: Replica = None,
    connector: ConnectorOption = None,
    connector_address: ConnectorAddress = None,
    slo: SloOption = None,
    table: Table = None,
    pin_x: PinX = None,
    observe: Observe = None,
    host: Host = None,
    port: Port = None,
    admin_port: AdminPort = None,
    state_dir: StateDir = None,
    source: Source = None,
) -> None:
    """Router and controller in front of a vLLM fleet."""
    settings = _settings(
        config,
        prefill,
        decode,
        replica,
        connector,
        connector_address,
        slo,
        table,
        pin_x,
        observe,
        host,
        port,
        admin_port,
        state_dir,
        source,
    )
    set_up_logging("serve")
    try:
        if settings.model == "*":
            settings = replace(settings, model=_served_model(settings))
        path = save_settings(settings)
    except StartError as error:
        fail(str(error), EXIT_SETTINGS)
    _print(settings)
    for line in at_start(settings):
        print(f"  engines   {line}", file=sys.stderr, flush=True)
    raise typer.Exit(Supervisor(settings, path).run())


def router(config: Config = None, settings_file: SettingsFile = None) -> None:
    """One router process alone, from a trimtab.yaml. It reports to the control process at the admin port, if one is
    there."""
    from .router_process import run_router

    settings = _of_process(config, settings_file)
    set_up_logging("router")
    try:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run_router(settings))
    except (StartError, ArtefactError) as error:
        fail(str(error), EXIT_SETTINGS)


def control(config: Config = None, settings_file: SettingsFile = None) -> None:
    """One control process alone, from a trimtab.yaml: ticks, page, API, metrics."""
    from .control_process import run_control_process

    settings = _of_process(config, settings_file)
    set_up_logging("control")
    try:
        asyncio.run(run_control_process(settings))
    except (StartError, ArtefactError) as error:
        fail(str(error), EXIT_SETTINGS)


def pin(
    x: Annotated[str, typer.Argument(help="Share of later turns that go local: 0..1, x0, x1; or off.")],
    state_dir: StateDir = None,
    port: Annotated[
        int, typer.Option(help="Data port of the installation, if its state folder is the default.")
    ] = 8000,
) -> None:
    """Fix the share of local turns, whatever is published, or lift that. Works with the control process dead."""
    folder = state_dir or default_state_dir(port)
    if not folder.is_dir():
        fail(f"{folder}: no installation keeps its state here; give --state-dir or --port")
    try:
        if x == "off":
            write_pin(folder, None, getpass.getuser())
            out.print("the pin is lifted; routers follow the published policy within a second", highlight=False)
            return
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        write_pin(folder, Pin(_share(x), getpass.getuser(), now))
    except OSError as error:
        fail(f"{folder}: {error.strerror}")
    out.print(f"pinned to x={_share(x):g}; routers follow within a second; `trimtab pin off` lifts it", highlight=False)


def _settings(
    config: Path | None,
    prefill: list[str] | None,
    decode: list[str] | None,
    replica: list[str] | None,
    connector: str | None,
    connector_address: list[str] | None,
    slo: Path | None,
    table: list[Path] | None,
    pin_x: str | None,
    observe: bool | None,
    host: str | None,
    port: int | None,
    admin_port: int | None,
    state_dir: Path | None,
    source: str | None,
) -> Settings:
    try:
        settings = load_settings(config) if config is not None else Settings()
        given: dict[str, object] = {
            "prefill": tuple(prefill) if prefill else None,
            "decode": tuple(decode) if decode else None,
            "replica": tuple(replica) if replica else None,
            "connector": connector,
            "connector_addresses": tuple(map(_pair, connector_address)) if connector_address else None,
            "tables": tuple(str(path.resolve()) for path in table) if table else None,
            "declaration": load_slo_file(slo) if slo is not None else None,
            "slo_path": str(slo.resolve()) if slo is not None else None,
            "slo_inline": False if slo is not None else None,
            "pin_x": None if pin_x is None else _share(pin_x),
            "observe": observe,
            "host": host,
            "port": port,
            "admin_port": admin_port,
            "state_dir": None if state_dir is None else str(state_dir.resolve()),
            "source": source,
        }
        settings = replace(settings, **{k: v for k, v in given.items() if v is not None})  # type: ignore[arg-type]
        return settings.checked()
    except SpecError as error:
        fail("\n".join(str(problem) for problem in error.problems))
    except ValueError as error:
        fail(str(error))


def _of_process(config: Path | None, settings_file: Path | None) -> Settings:
    """What a single process runs on: the supervisor's file, or the operator's."""
    if settings_file is None and config is None:
        fail("name a trimtab.yaml; to do with flags alone, use `trimtab serve`")
    try:
        if settings_file is not None:
            return read_settings(settings_file)
        assert config is not None
        return load_settings(config).checked()
    except StartError as error:
        fail(str(error), EXIT_SETTINGS)
    except SpecError as error:
        fail("\n".join(str(problem) for problem in error.problems))
    except ValueError as error:
        fail(str(error))


def _pair(text: str) -> tuple[str, str]:
    url, equals, address = text.partition("=")
    if not equals or not address:
        fail(f"--connector-address {text!r}: write ENGINE_URL=ADDRESS, e.g. http://10.0.0.1:8100=10.0.0.1:21001")
    return url, address


def _share(text: str) -> float:
    value = {"x0": 0.0, "x1": 1.0}.get(text)
    if value is None:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
    if not 0 <= value <= 1:
        fail(f"{text!r} is no share of turns; write 0..1, x0, x1 or (to lift a pin) off")
    return value


def _served_model(settings: Settings) -> str:
    """What the engines call their model, if one of them answers now; else `*`."""
    key = secret_from_env(settings.engine_key_env)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    for url in (*settings.decode, *settings.replica, *settings.prefill):
        request = urllib.request.Request(f"{url.rstrip('/')}/v1/models", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=MODEL_PROBE_S) as response:
                name = json.load(response)["data"][0]["id"]
        except (OSError, ValueError, KeyError, IndexError, TypeError):
            continue
        if isinstance(name, str) and name:
            return name
    return "*"


def _print(settings: Settings) -> None:
    """The effective configuration, once."""
    shown = [
        ("clients", f"http://{settings.host}:{settings.port}/v1"),
        ("page", f"http://{settings.admin_host}:{settings.admin_port}/"),
    ]
    for each in settings.each_model:
        shown += [
            ("model", ", ".join((each.model, *each.aliases))),
            ("prefill", ", ".join(each.prefill) or "none"),
            ("decode", ", ".join(each.decode) or "none"),
            ("replicas", ", ".join(each.replica) or "none"),
            ("more from", ", ".join(each.discover.names) or "an operator only"),
            (
                "hand-over",
                each.connector + "".join(f", {url} at {address}" for url, address in each.addresses().items()),
            ),
        ]
    shown += [
        (
            "keys",
            ", ".join(filter(None, (settings.api_keys_env, settings.api_keys_file, *dict(settings.tenants).values())))
            or "none: whoever reaches the port may use it",
        ),
        (
            "SLOs",
            ", ".join(f"{slo.name} ({slo.objective:.4g} {slo.signal.value})" for slo in settings.slos)
            or "none declared",
        ),
        (
            "control",
            f"{settings.law}, start price {settings.price:g}, signal {settings.signal}"
            if settings.pin_x is None
            else f"observing: acts as pinned to x={settings.pin_x:g}, {settings.law} in shadow; nothing else is changed"
            if settings.observe
            else f"pinned to x={settings.pin_x:g}",
        ),
        ("state", settings.state_dir),
        ("pid", str(os.getpid())),
    ]
    for name, value in shown:
        print(f"  {name:9s} {value}", file=sys.stderr)
    sys.stderr.flush()
    state_dir(settings)
