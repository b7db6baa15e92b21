"""`trimtab control`: one control process, wired: settings in, the loop with engine scraping and alerting."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

from controller.alerting import Alerting, conditions
from controller.alerts_api import mount_alerts
from controller.config import ControlConfig
from controller.engines import EngineNode
from controller.laws.protocol import Priority
from controller.observe_status import join
from controller.observed import AlertCollector, EngineCollector, alert_status, engine_status
from controller.scrape import Scraper
from router.nodes import endpoints
from router.turn import Role

from .control import Control, run_control
from .policies import artefacts, tables_of
from .processes import StartError, admin_url, secret_from_env, state_dir
from .reload import Reloader, ReloadState, fresh, on_hangup
from .settings import Settings, prefix_of

log = logging.getLogger("trimtab.control")

ROLES = frozenset(role.value for role in Role)


async def run_control_process(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT. Raises StartError where it cannot start."""
    settings = fresh(settings)
    await run_control(control_config(settings), extend=lambda control: _extend(control, settings))


def control_config(settings: Settings) -> ControlConfig:
    """The control process's part of the settings. Raises StartError."""
    found = artefacts(settings)
    try:
        return ControlConfig(
            state_dir=state_dir(settings),
            slos=settings.slos,
            tables=tables_of(settings, found),
            documents={artefact.digest: artefact.text for artefact in found},
            host=settings.admin_host,
            port=settings.admin_port,
            token=secret_from_env(settings.admin_token_env),
            source=settings.source,
            mode=settings.mode,
            start_price=settings.price,
            without_table_tokens=settings.without_table_tokens,
            pin_x=settings.pin_x,
            observe=settings.observe,
            law=settings.law,
            priority=Priority(settings.priority),
            title="" if settings.model == "*" else ", ".join(each.model for each in settings.each_model),
        )
    except ValueError as error:
        raise StartError(str(error)) from None


def _extend(control: Control, settings: Settings) -> None:
    models = {each.model: each for each in settings.each_model}
    keys = {name: secret_from_env(each.engine_key_env) or "" for name, each in models.items()}
    nodes = [
        EngineNode(str(name), at.role, at.url, model, keys[model])
        for model, each in models.items()
        for name, at in endpoints(each.prefill, each.decode, each.replica, prefix=prefix_of(settings, model)).items()
    ]
    store, loop = control.store, control.loop

    def members() -> list[EngineNode]:
        """As a router sees them, for they come and go; none before one has reported."""
        seen = loop.intake.nodes(loop.monotonic())[1]
        named = {node.id: node.id.rpartition("/")[0] or settings.model for node in seen}
        return [
            EngineNode(node.id, Role(node.role), node.url, named[node.id], keys[named[node.id]])
            for node in seen
            if node.role in ROLES and named[node.id] in models
        ]

    scraper = Scraper(nodes, settings.slos, members=members)
    for job in scraper.jobs():
        control.scheduler.add(job)
    control.registry.register(EngineCollector(scraper))
    loop.sections["engines"] = lambda: engine_status(scraper, loop.outputs)
    if settings.signal == "engine":
        loop.engine = scraper.slo_readings
    service = Path(settings.state_dir).name if settings.model == "*" or settings.further else settings.model
    alerting = Alerting(
        settings.declaration,
        loop.ledgers,
        webhook_url=settings.webhook or None,
        secret=secret_from_env(settings.webhook_secret_env),
        alertmanagers=settings.alertmanagers,
        service=settings.declaration.service or service,
        page_url=f"{admin_url(settings)}/",
        turns=lambda: {model: tally.turns for model, tally in loop.intake.tallies.items()},
        stored=store.document("alerts"),
        outbox=store.outbox(),
        keep=lambda text, outbox: store.put_alerts(text, outbox, loop.wall()),
        flush=control.flush,
        wall=loop.wall,
        clock=loop.monotonic,
    )
    for condition in conditions(loop):
        alerting.system.add(condition)
    mount_alerts(control.app, loop, alerting)
    loop.observers.append(alerting)
    for job in alerting.jobs():
        control.scheduler.add(job)
    control.registry.register(AlertCollector(alerting))
    loop.sections["alerts"] = lambda: alert_status(alerting)
    if settings.observe:
        join(loop, control.registry.register)
        log.info(
            "observe: routers act as pinned to x=%g; what the law comes to is shown, and changes nothing",
            settings.pin_x or 0.0,
        )
    loop.redeclared += [
        lambda declaration: scraper.redeclare(declaration.slos),
        alerting.redeclare,
    ]
    control.closing += [scraper.close, alerting.close, _follow(control, settings)]


def _follow(control: Control, settings: Settings) -> Callable[[], Awaitable[object]]:
    """Follow the file of SLOs; returns what ends it."""
    loop = control.loop
    reloader = Reloader(settings, loop.redeclare)

    def note(state: ReloadState) -> None:
        loop.reload_failed = state.words

    reloader.hooks.append(note)
    loop.sections["declaration"] = lambda: reloader.state.document(reloader.declaration.slos)
    hangup = ExitStack()
    hangup.enter_context(on_hangup(reloader.kick))
    following = asyncio.create_task(reloader.run())

    async def end() -> None:
        hangup.close()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    return end
