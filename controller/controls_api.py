"""What operators do to the control loop over the admin API: the pin, bounds, weights by hand, going on; and the audit.

    GET  /api/v1/controls      by model: state, reason, price, bounds, whether the weights are held; and the pin
    POST /api/v1/bounds        {"model"?, "low"?, "high"?, "by"?}
    POST /api/v1/weights       {"model"?, "w_ttft", "w_tpot" or "price", "hold"?, "by"?}
    POST /api/v1/resume        {"model"?, "by"?}          lifts the pin, too
    GET  /api/v1/pin           POST {"x": 0..1 | null, "by"?}
    GET  /api/v1/audit         ?limit=100

Without a model, where several are known, `resume` is about all of them and the others are refused. What is ordered is
on disk before the answer, where there is a disk. What is a change and who may make it is `app.py`'s business.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict

import msgspec
from fastapi import FastAPI, Query, Request, Response

from router.errors import Code
from router.policy import Policy, Weights

from .answers import answered, body_as, refused
from .commands import Command, bounds, resume, weights
from .guard import Guard
from .laws.protocol import PriceRange
from .loop import ControlLoop
from .pin import look, noticed, put
from .status import WHY, iso, number, pin_document

MAX_BYTES = 4096
MAX_NAME = 200


class _Order(msgspec.Struct, forbid_unknown_fields=True):
    model: str | None = None
    by: str = "api"


class _Bounds(_Order):
    low: float | None = None
    high: float | None = None


class _Weights(_Order):
    w_ttft: float | None = None
    w_tpot: float | None = None
    price: float | None = None
    hold: bool = False

    def wanted(self) -> Weights:
        """Raises ValueError."""
        pair = self.w_ttft is not None or self.w_tpot is not None
        if self.price is not None and not pair:
            return Weights.from_price(self.price)
        if self.price is not None or self.w_ttft is None or self.w_tpot is None:
            raise ValueError('give "w_ttft" and "w_tpot", or "price" alone')
        return Weights(self.w_ttft, self.w_tpot)


class _Pin(msgspec.Struct):
    x: float | None
    by: str = "api"


def mount_controls(app: FastAPI, loop: ControlLoop) -> None:
    """Add the routes."""
    folder = loop.config.state_dir

    def now(model: str) -> tuple[Guard, Policy, str]:
        return loop.guard(model), loop.policy, model

    async def obeyed(commands: list[Command], by: str) -> Response:
        for command in commands:
            loop.obey(command, by[:MAX_NAME])
        await asyncio.to_thread(loop.store.flush, loop.wall())
        return await get_controls()

    async def pinned(x: float | None, by: str) -> Response | None:
        """Set or lift the pin; what is wrong, if something is."""
        at_s = loop.wall()
        try:
            pin = await asyncio.to_thread(put, folder, x, by[:MAX_NAME], iso(at_s))
        except OSError as error:
            return refused(500, Code.INTERNAL, f"the pin could not be written to {folder}: {error.strerror}")
        row = noticed(pin.pin, await asyncio.to_thread(loop.store.audits), at_s, by[:MAX_NAME])
        if row is not None:
            loop.store.audit(row)
        return None

    @app.get("/api/v1/controls")
    async def get_controls() -> Response:
        pin = await asyncio.to_thread(look, folder)
        return answered(
            {
                "models": {model: _model(loop, model) for model in known_models(loop)},
                "range": asdict(PriceRange()),
                "pin": pin_document(loop, pin, loop.monotonic()),
            }
        )

    @app.post("/api/v1/bounds")
    async def post_bounds(request: Request) -> Response:
        try:
            told = await body_as(request, MAX_BYTES, _Bounds)
            command = bounds(*now(one_model(loop, told.model)), told.low, told.high, PriceRange())
        except ValueError as error:
            return refused(400, Code.BAD_REQUEST, str(error))
        return await obeyed([command], told.by)

    @app.post("/api/v1/weights")
    async def post_weights(request: Request) -> Response:
        try:
            told = await body_as(request, MAX_BYTES, _Weights)
            command = weights(*now(one_model(loop, told.model)), told.wanted(), told.hold)
        except ValueError as error:
            return refused(400, Code.BAD_REQUEST, str(error))
        return await obeyed([command], told.by)

    @app.post("/api/v1/resume")
    async def post_resume(request: Request) -> Response:
        try:
            told = await body_as(request, MAX_BYTES, _Order)
            models = known_models(loop) if told.model is None else [one_model(loop, told.model)]
        except ValueError as error:
            return refused(400, Code.BAD_REQUEST, str(error))
        return await pinned(None, told.by) or await obeyed([resume(*now(model)) for model in models], told.by)

    @app.get("/api/v1/pin")
    async def get_pin() -> Response:
        pin = await asyncio.to_thread(look, folder)
        return answered(pin_document(loop, pin, loop.monotonic()))

    @app.post("/api/v1/pin")
    async def post_pin(request: Request) -> Response:
        try:
            told = await body_as(request, MAX_BYTES, _Pin)
        except ValueError as error:
            return refused(400, Code.BAD_REQUEST, str(error))
        if told.x is not None and not 0 <= told.x <= 1:
            return refused(400, Code.BAD_REQUEST, '"x" is the share of later turns that goes local, 0..1, or null')
        return await pinned(told.x, told.by) or await get_pin()

    @app.get("/api/v1/audit")
    async def get_audit(limit: int = Query(100, ge=1, le=1000)) -> Response:
        rows = await asyncio.to_thread(loop.store.audits, limit)
        return answered(
            {"audit": [{"at": iso(r.at_s), "actor": r.actor, "action": r.action, "detail": r.detail} for r in rows]}
        )


def known_models(loop: ControlLoop) -> list[str]:
    """Models of which a turn was seen, by this process or an earlier one."""
    return sorted(loop.intake.tallies.keys() | loop.guards.keys())


def one_model(loop: ControlLoop, model: str | None) -> str:
    """The model that is meant. Raises ValueError, naming those that there are."""
    known = known_models(loop)
    if model is None and len(known) == 1:
        return known[0]
    if not known:
        raise ValueError("no turn of any model has been seen yet")
    if model not in known:
        which = "which model?" if model is None else f"{model[:80]!r} is no model that was seen;"
        raise ValueError(f"{which} there are {', '.join(known)}")
    return model


def _model(loop: ControlLoop, model: str) -> dict[str, object]:
    guard, weights = loop.guard(model), loop.policy.weights_for(model)
    return {
        "state": guard.safety.state.value,
        "reason": guard.safety.reason.value,
        "why": WHY[guard.safety.reason],
        "since": iso(loop.since_s[model]) if model in loop.since_s else None,
        "price": number(weights.price),
        "weights": asdict(weights),
        "bounds": asdict(guard.bounds),
        "held": guard.held,
        "clips": guard.clips,
    }
