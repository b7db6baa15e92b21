"""Checks of engines beside each other: what has to be equal, and whether a prompt really goes from P to D."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import product

from router.turn import Role

from .facts import Facts, HandOver, Node
from .findings import Finding, fail, ok, unknown, warn
from .node_checks import host_of, loopback

LEASE_SLACK_S = 1.0
"""What a measured lease may lack: it is looked at twice a second, and P counts from the end of the prefill."""


def topology(facts: Facts) -> Iterable[Finding]:
    """Somebody decodes, somebody prefills."""
    counts = {role: sum(node.role is role for node in facts.nodes) for role in Role}
    if not counts[Role.DECODE] and not counts[Role.REPLICA]:
        yield fail("nobody decodes", "name at least one --decode or --replica URL")
    elif not counts[Role.PREFILL] and not counts[Role.REPLICA]:
        yield warn("no prefill node: every turn is local, so there is nothing to decide", "name one with --prefill URL")
    elif counts[Role.PREFILL] and not counts[Role.DECODE]:
        yield warn("prefill nodes and no decode node to hand over to", "name one with --decode URL")
    else:
        yield ok("_".join(f"{n}{role.value[0].upper()}" for role, n in counts.items() if n))


def same_model(facts: Facts) -> Iterable[Finding]:
    """One name that every node serves, of the same weights."""
    served = {node.name: {model.id for model in node.models} for node in facts.up if node.models}
    for node in facts.up:
        if not node.models and not node.wants_key:
            yield fail("/v1/models lists no model", "wait until it is loaded, or read the engine's log", node.name)
    if not served:
        return
    common = set.intersection(*served.values())
    wanted = facts.assumed.model
    if wanted != "*":
        for name, ids in served.items():
            if wanted not in ids:
                yield fail(f"does not serve {wanted!r} but {_listed(ids)}", f"--served-model-name {wanted}", name)
        if any(wanted not in ids for ids in served.values()):
            return
        common = {wanted}
    if not common:
        for name, ids in served.items():
            yield fail(
                f"serves {_listed(ids)}: no name is served by all", "give all the same --served-model-name", name
            )
        return
    roots = {
        node.name: next(model.root for model in node.models if model.id in common) for node in facts.up if node.models
    }
    if len(set(roots.values())) > 1:
        yield warn(
            f"{_listed(common)} is loaded from different places ({', '.join(f'{n} {r}' for n, r in roots.items())}): "
            "NIXL takes that for another model",
            "give all engines the same --model",
            *roots,
        )
        return
    yield ok(f"all serve {_listed(common)}", *served)


def same_length(facts: Facts) -> Iterable[Finding]:
    """A P that takes less than D fails D's long turns."""
    lengths = {node.name: max(model.max_model_len or 0 for model in node.models) for node in facts.up if node.models}
    lengths = {name: length for name, length in lengths.items() if length}
    if not lengths:
        yield unknown("max_model_len is not shown")
    elif len(set(lengths.values())) == 1:
        yield ok(f"max_model_len is {next(iter(lengths.values()))}", *lengths)
    else:
        longest = max(lengths.values())
        for name, length in lengths.items():
            if length < longest:
                yield fail(
                    f"takes {length} tokens, others up to {longest}: longer turns fail where they come to it",
                    f"--max-model-len {longest} here, or {min(lengths.values())} on all",
                    name,
                )


def _equal(facts: Facts, read: Callable[[Node], object], what: str, problem: str, fix: str) -> Iterable[Finding]:
    """One value on all nodes that hand over to each other."""
    pages = [node for node in facts.of(Role.PREFILL, Role.DECODE) if node.page is not None]
    values: Mapping[str, object] = {node.name: read(node) for node in pages if read(node) is not None}
    different = set(values.values())
    if len(different) == 1 and len(values) > 1:
        yield ok(f"{what} is {different.pop()}", *values)
    elif different and len(values) > 1:
        told = ", ".join(f"{name} {value}" for name, value in values.items())
        yield fail(f"{what} differs ({told}): {problem}", fix, *values)


def same_block(facts: Facts) -> Iterable[Finding]:
    """The router checks that P's blocks cover the prompt, in P's size."""
    return _equal(
        facts,
        lambda node: node.page.block_tokens if node.page else None,
        "block size",
        "the router counts P's blocks, and too few of them end D's engine",
        "start all with the same --block-size",
    )


def same_dtype(facts: Facts) -> Iterable[Finding]:
    """Part of NIXL's compatibility hash."""
    return _equal(
        facts,
        lambda node: node.page.cache.get("cache_dtype") if node.page and node.page.cache else None,
        "KV dtype",
        "NIXL refuses such a hand-over",
        "start all with the same --kv-cache-dtype",
    )


def same_version(facts: Facts) -> Iterable[Finding]:
    """Part of NIXL's compatibility hash too."""
    told = {node.name: node.version for node in facts.of(Role.PREFILL, Role.DECODE) if node.version}
    if len(set(told.values())) > 1:
        yield fail(
            f"releases differ ({', '.join(f'{name} {version}' for name, version in told.items())}): NIXL refuses such "
            "a hand-over",
            "run the same vLLM on P and D",
            *told,
        )


def hand_over(facts: Facts) -> Iterable[Finding]:
    """A tiny prompt, computed on P, is pulled by D, and D's own counters say so."""
    pairs = list(product(facts.of(Role.PREFILL), facts.of(Role.DECODE)))
    if pairs and not facts.hand_overs:
        if facts.assumed.connector != "nixl":
            yield unknown(f"hand-overs by {facts.assumed.connector} are not tried by this command")
        elif not facts.assumed.probed:
            yield unknown("no hand-over was tried", "leave out --no-probe")
    for found in facts.hand_overs:
        yield _judged(found, facts)


def _judged(found: HandOver, facts: Facts) -> Finding:
    pair = (found.prefill, found.decode)
    if found.failed == "untried":
        return unknown(f"not tried: they differ in {found.detail}, and such a hand-over can end D's engine", "", *pair)
    if found.failed == "prefill":
        return fail(f"P did not compute a tiny prompt: {found.detail}", "read P's log", *pair)
    if found.failed == "handshake":
        return fail(
            f"P's answer is no hand-over: {found.detail}",
            'start P with --kv-transfer-config \'{"kv_connector": "NixlConnector", "kv_role": "kv_producer"}\'',
            *pair,
        )
    fix = _side_channel_fix(found, facts)
    if found.failed == "decode":
        return fail(f"D did not answer what P handed over: {found.detail}", fix, *pair)
    if found.pulled_tokens is None:
        return unknown("D answered; its counters do not tell whether it pulled the KV (vLLM before 0.32)", "", *pair)
    if found.pulled_tokens < found.prompt_tokens - 1:
        how = " after a transfer that failed" if found.failed_transfers else ""
        return fail(
            f"D answered and computed the prompt itself{how}: {found.pulled_tokens:.0f} of {found.prompt_tokens} "
            "tokens were pulled",
            fix,
            *pair,
        )
    return ok(f"{found.pulled_tokens:.0f} prompt tokens pulled from P over {found.side_channel}", *pair)


def _side_channel_fix(found: HandOver, facts: Facts) -> str:
    host = found.side_channel.rpartition(":")[0]
    by_name = {node.name: node for node in facts.nodes}
    apart = {host_of(by_name[name]) for name in (found.prefill, found.decode) if name in by_name}
    if loopback(host) and len(apart) > 1:
        return (
            f"P tells D to fetch at {found.side_channel}, which is D itself: set VLLM_NIXL_SIDE_CHANNEL_HOST on P to "
            "its address as D sees it"
        )
    return (
        f"D must reach P's side channel {found.side_channel or '(not told)'} and UCX ports "
        "(VLLM_NIXL_SIDE_CHANNEL_HOST/_PORT, UCX_NET_DEVICES), and be a kv_consumer of the same connector, model and "
        "release"
    )


def lease(facts: Facts) -> Iterable[Finding]:
    """P keeps a prompt for as long as the router believes, or longer."""
    assumed_s = facts.assumed.lease_s
    told = f"the router believes {assumed_s:g} s (models.NAME.lease)"
    fix = (
        f'"kv_connector_extra_config": {{"kv_lease_duration": {assumed_s:g}}} in P\'s --kv-transfer-config, or the '
        "smaller value in models.NAME.lease"
    )
    measured = {found.node: found for found in facts.leases}
    for node in facts.of(Role.PREFILL):
        found = measured.get(node.name)
        configured_s = None if node.config is None else node.config.lease_s
        held_s = found.held_s if found is not None and not found.detail else configured_s
        if found is not None and found.detail:
            yield unknown(f"the lease could not be measured: {found.detail}", "", node.name)
        elif found is not None and found.held_s is None:
            yield ok(f"P keeps a prompt for more than {found.watched_s:.0f} s; {told}", node.name)
        elif held_s is None:
            yield unknown(f"how long P keeps a prompt is not shown; {told}", "--lease measures it", node.name)
        elif held_s < assumed_s - LEASE_SLACK_S:
            yield fail(f"P keeps a prompt for {held_s:.1f} s and {told}: D reads what is gone", fix, node.name)
        else:
            yield ok(f"P keeps a prompt for {held_s:.1f} s; {told}", node.name)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names)[:3])
