"""A shell: a prompt goes from P to D, made of the router's own connector and bodies, so that nothing reaches a D that
the router would not send there; and a prompt is left at P, to see how long it is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from router.body import Answer, Api, ClientRequest, decode_body, parse_answer, prefill_body
from router.connectors import CONNECTORS
from router.connectors.nixl import PREFILL_PARAMS
from router.connectors.protocol import ConnectorOptions, HandshakeError, LegReply
from router.placement import Placement
from router.turn import ConversationKey, NodeId, Route, Turn

from .facts import Assumed, HandOver, Lease, Node, Page
from .http import Http, NoAnswer
from .page import COMPUTED, PULLED
from .requests import new_id, page_of, request, unique

COUNTED_S = 5.0
"""Engines count a request a moment after its answer."""
POLL_S = 0.25
LEASE_POLL_S = 0.5
LEASE_MARGIN_S = 10.0


async def hand_over(http: Http, p: Node, d: Node, assumed: Assumed) -> HandOver:
    """One turn, exactly as the router sends it; none between engines that differ in what can end D's."""
    found = HandOver(p.name, d.name)
    if different := unlike(p, d):
        return replace(found, failed="untried", detail=" and ".join(different))
    clock = asyncio.get_running_loop().time
    began_s = clock()
    api = Api.COMPLETIONS if d.ask is not None and not d.ask.chat else Api.CHAT
    client = request(p.name_for(assumed.model), api, unique(p), 1, stream=False)
    request_id = new_id()
    block = None if p.page is None else p.page.block_tokens
    turn = Turn(request_id, ConversationKey("", client.model, request_id), 1, 1, False, began_s)
    placement = Placement(NodeId(p.name), NodeId(d.name), Route.PREFILL_TRANSFER, block)
    steps = CONNECTORS[assumed.connector](ConnectorOptions(lease_s=assumed.lease_s)).handshake(turn, placement)
    leg = next(steps)
    before = await page_of(http, d)
    try:
        answer = await prefill(http, p, client, request_id, leg.kv_transfer_params or {})
    except NoAnswer as error:
        return replace(found, failed="prefill", detail=str(error))
    usage, params = answer.usage, answer.kv_transfer_params
    prompt_tokens = 0 if usage is None else usage.prompt_tokens
    try:
        steps.send(LegReply(200, prompt_tokens, None, params, clock()))
    except StopIteration as done:
        leg = done.value
    except HandshakeError as error:
        return replace(found, failed="handshake", detail=str(error).partition(": ")[2])
    params = params or {}
    found = replace(
        found,
        prompt_tokens=prompt_tokens,
        side_channel=f"{params.get('remote_host', '')}:{params.get('remote_port', '')}",
    )
    try:
        reply = await http.post(
            d.url + client.api.value, decode_body(client, leg.kv_transfer_params), {"X-Request-Id": request_id}
        )
    except NoAnswer as error:
        return replace(found, failed="decode", detail=str(error))
    found = replace(found, took_s=clock() - began_s)
    if reply.status != 200:
        return replace(found, failed="decode", detail=reply.refusal)
    return await _counted(http, d, before, found)


async def _counted(http: Http, d: Node, before: Page | None, found: HandOver) -> HandOver:
    """What D's counters rose by, once they have."""
    if before is None or not before.prompt_tokens:
        return found
    clock = asyncio.get_running_loop().time
    until_s = clock() + COUNTED_S
    while True:
        page = await page_of(http, d)
        if page is not None and page.prompt_tokens:
            rise = {name: page.prompt_tokens.get(name, 0.0) - was for name, was in before.prompt_tokens.items()}
            if sum(rise.values()) >= found.prompt_tokens or clock() > until_s:
                transfers = (page.failed_transfers or 0.0) - (before.failed_transfers or 0.0)
                return replace(
                    found,
                    pulled_tokens=min(rise.get(PULLED, 0.0), found.prompt_tokens),
                    computed_tokens=rise.get(COMPUTED, 0.0),
                    failed_transfers=transfers,
                )
        elif clock() > until_s:
            return found
        await asyncio.sleep(POLL_S)


def unlike(p: Node, d: Node) -> list[str]:
    """In what two engines differ so that a hand-over would fail, or end D's engine: D trusts what it is given."""
    found = []
    if p.page is None or d.page is None:
        return ["what their /metrics say"]
    if not (p.page.connector and d.page.connector):
        found.append("KV connector")
    if p.version != d.version:
        found.append("release")
    if {model.root for model in p.models or ()}.isdisjoint(model.root for model in d.models or ()):
        found.append("model")
    if p.page.block_tokens != d.page.block_tokens:
        found.append("block size")
    if (p.page.cache or {}).get("cache_dtype") != (d.page.cache or {}).get("cache_dtype"):
        found.append("KV dtype")
    return found


async def lease(http: Http, p: Node, assumed: Assumed) -> Lease:
    """Lets a P prefill something that nobody fetches, and waits until it says that it gave that up."""
    clock = asyncio.get_running_loop().time
    watch_s = assumed.lease_s + LEASE_MARGIN_S
    before = await page_of(http, p)
    if before is None or before.expired_leases is None:
        return Lease(p.name, None, 0.0, "P does not count leases that expire (vllm:nixl_num_kv_expired_reqs_total)")
    client = request(p.name_for(assumed.model), Api.CHAT, unique(p), 1, stream=False)
    try:
        answer = await prefill(http, p, client, new_id(), PREFILL_PARAMS)
    except NoAnswer as error:
        return Lease(p.name, None, 0.0, str(error))
    if not answer.kv_transfer_params:
        return Lease(p.name, None, 0.0, "P hands nothing over")
    began_s = clock()
    while clock() - began_s < watch_s:
        await asyncio.sleep(LEASE_POLL_S)
        page = await page_of(http, p)
        if page is not None and (page.expired_leases or 0.0) > before.expired_leases:
            return Lease(p.name, clock() - began_s, watch_s)
    return Lease(p.name, None, watch_s)


async def prefill(http: Http, p: Node, client: ClientRequest, request_id: str, params: Mapping[str, object]) -> Answer:
    """P's leg. Raises NoAnswer."""
    reply = await http.post(p.url + client.api.value, prefill_body(client, params), {"X-Request-Id": request_id})
    answer = parse_answer(reply.body) if reply.status == 200 else None
    if answer is None:
        raise NoAnswer(reply.refusal if reply.status != 200 else "an answer that is no completion")
    return answer
