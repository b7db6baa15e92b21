"""Checks of one engine by itself. Each takes a node that answers and says one thing of it, or None where it does not
apply. What vLLM's flags are called is that of 0.32."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from router.turn import Role

from .facts import Assumed, Facts, Node
from .findings import Finding, fail, ok, unknown, warn

TESTED = ("0.32",)
"""Releases that Trimtab has been run against."""
MAX_SKEW_S = 2.0
DECODES = (Role.DECODE, Role.REPLICA)
_ROLE_FIX = '--kv-transfer-config \'{{"kv_connector": "NixlConnector", "kv_role": "{0}"}}\''


def reachable(facts: Facts) -> Iterable[Finding]:
    """Every node answers its health check."""
    for node in facts.nodes:
        if node.problem:
            yield fail(node.problem, f"start the engine, or correct its address ({node.url})", node.name)
        else:
            yield ok("/health answers 200", node.name)


def open_door(node: Node, assumed: Assumed) -> Finding | None:
    """An engine's key is the router's, too."""
    if node.wants_key and assumed.keyed:
        if node.let_in:
            return ok("takes the router's key")
        return fail(
            "the engine takes another API key than the router's",
            "name the variable that holds the engine's --api-key in models.NAME.engine_key_env",
        )
    if node.wants_key:
        more = "" if node.let_in else "; without the right one (--api-key-env) the rest is not seen"
        return fail(
            f"the engine demands an API key, and the router has none{more}",
            "name the variable that holds it in models.NAME.engine_key_env; or start the engine without --api-key "
            "(VLLM_API_KEY) on a network that only the router reaches",
        )
    return ok("needs no API key")


def version(node: Node, assumed: Assumed) -> Finding | None:
    """A release that has been tested."""
    if node.version is None:
        return unknown("/version does not tell the release", f"Trimtab is tested with vLLM {', '.join(TESTED)}")
    if node.version.startswith(tuple(f"{tested}." for tested in TESTED)) or node.version in TESTED:
        return ok(f"vLLM {node.version}")
    return warn(f"vLLM {node.version} has not been tested", f"Trimtab is tested with vLLM {', '.join(TESTED)}")


def role(node: Node, assumed: Assumed) -> Finding | None:
    """What the engine shows of its connector agrees with what it is used for."""
    page = node.page
    if page is None:
        return None
    if node.role is None:
        return unknown("what it is for cannot be seen", "name its role: --prefill, --decode or --replica URL")
    taken = "" if node.role_given else f"taken for a {node.role.value} node: "
    if node.role is Role.REPLICA:
        return ok(f"{taken}{'a KV connector that nobody uses' if page.connector else 'no KV connector, none needed'}")
    wanted = "kv_producer" if node.role is Role.PREFILL else "kv_consumer"
    if not page.connector:
        return fail(f"{taken}it shows no KV connector, so nothing can be handed over", f"start it with {_fix(wanted)}")
    if page.consumer is (node.role is Role.DECODE):
        return ok(f"{taken}shows itself as {wanted}{' (or kv_both)' if page.consumer else ''}")
    shown = "kv_consumer or kv_both" if page.consumer else "kv_producer"
    return warn(f"used for {node.role.value}, shows itself as {shown}", f"start it with {_fix(wanted)}")


def _fix(kv_role: str) -> str:
    return _ROLE_FIX.format(kv_role)


def data_parallel(node: Node, assumed: Assumed) -> Finding | None:
    """One engine behind one address: nobody tells which rank holds a conversation."""
    if node.page is None or node.page.engines < 2:
        return None
    return warn(
        f"{node.page.engines} data parallel engines behind one address: the router cannot tell which one holds a "
        "conversation",
        "give each rank an address of its own (--data-parallel-external-lb or -hybrid-lb) and name them all",
    )


def prefix_caching(node: Node, assumed: Assumed) -> Finding | None:
    """Without it no later turn finds its KV."""
    cache = None if node.page is None else node.page.cache
    told = None if cache is None else cache.get("enable_prefix_caching")
    fix = "start it with --enable-prefix-caching"
    if told == "False":
        return fail("prefix caching is off, so every turn computes its whole prompt", fix)
    ask = node.ask
    if ask is not None and ask.details and ask.cached_again == 0:
        return fail("the same prompt sent twice was computed twice: nothing is cached", fix)
    if told == "True":
        seen = f", {ask.cached_again} of {ask.prompt_tokens} tokens found again" if ask and ask.cached_again else ""
        return ok(f"prefix caching is on{seen}")
    return unknown("whether prefix caching is on is not shown", fix)


def kv_memory(node: Node, assumed: Assumed) -> Finding | None:
    """Capacity and block size are known, and one full conversation fits."""
    page = node.page
    if page is None:
        return None
    if page.kv_tokens is None:
        return warn(
            "KV capacity and block size are not shown (vllm:cache_config_info): the router assumes blocks of 16 and "
            "does not guard the memory",
            "let /metrics through to the router as vLLM writes it",
        )
    told = f"{page.kv_tokens} tokens in blocks of {page.block_tokens}"
    longest = max((model.max_model_len or 0 for model in node.models or ()), default=0)
    if longest > page.kv_tokens:
        return warn(
            f"{told}: not enough for one request of {longest}",
            f"give it more memory (--gpu-memory-utilization) or --max-model-len {page.kv_tokens}",
        )
    return ok(told)


def usage_details(node: Node, assumed: Assumed) -> Finding | None:
    """Only these tell the router that what it believes cached is not."""
    ask = node.ask
    if node.role not in DECODES or ask is None or ask.error or not ask.usage:
        return None
    if ask.details:
        return ok("usage says how many prompt tokens were cached")
    return fail(
        "usage does not say how many prompt tokens were cached, so the router never learns of evictions",
        "start it with --enable-prompt-tokens-details",
    )


def stream_usage(node: Node, assumed: Assumed) -> Finding | None:
    """A stream ends with the usage that was asked for."""
    ask = node.ask
    if node.role not in DECODES or ask is None:
        return None
    if ask.error:
        return fail(f"a tiny streamed request failed: {ask.error}", "read the engine's log")
    if ask.usage:
        return ok("streams end with usage" + ("" if ask.chat else " (completions; chat is refused)"))
    return fail(
        "a stream that asked for usage (stream_options.include_usage) had none: the router cannot count its tokens",
        "use vLLM's own server, and no proxy that rewrites streams",
    )


def request_ids(node: Node, assumed: Assumed) -> Finding | None:
    """The router's id of a request is the engine's too."""
    ask = node.ask
    if ask is None or ask.error:
        return None
    if not ask.id_taken:
        return warn(
            "X-Request-Id is not taken over: a request cannot be found in the engine's log by the router's id",
            "let the header through to vLLM",
        )
    if ask.id_echoed:
        return ok("X-Request-Id is taken over and sent back")
    return ok("X-Request-Id is taken over (sending it back, --enable-request-id-headers, is not needed)")


def metrics(node: Node, assumed: Assumed) -> Finding | None:
    """What is read of /metrics is there."""
    if node.page is None:
        problem = node.page_problem or "cannot be read"
        say = fail if assumed.engine_signal else warn
        return say(f"/metrics: {problem}", "serve /metrics at the engine's address; do not set --disable-log-stats")
    scrape = node.page.scrape
    if scrape.missing:
        say = fail if assumed.engine_signal else warn
        held = "the law holds without them (control.signal: engine)" if assumed.engine_signal else "shown as alarms"
        names = ", ".join(f"vllm:{metric.value}" for metric in scrape.missing)
        return say(f"/metrics lacks {names}: {held}", f"use a tested release (vLLM {', '.join(TESTED)})")
    if scrape.older_names:
        names = ", ".join(sorted(scrape.older_names.values()))
        return warn(f"/metrics has older names with another meaning: {names}", "use a newer vLLM")
    return ok("/metrics has all that is read of it")


def keep_alive(node: Node, assumed: Assumed) -> Finding | None:
    """An idle connection outlives the router's patience with it; else requests are lost in the race."""
    if node.idle_watched_s is None:
        return None
    if node.idle_closed_s is not None and node.idle_closed_s < assumed.keep_alive_s:
        return fail(
            f"an idle connection is closed after {node.idle_closed_s:.1f} s, and the router keeps them for "
            f"{assumed.keep_alive_s:g} s: requests are lost in between",
            "set VLLM_HTTP_TIMEOUT_KEEP_ALIVE=5 or more in the engine's environment",
        )
    return ok(f"an idle connection stays open for {assumed.keep_alive_s:g} s")


def clock(node: Node, assumed: Assumed) -> Finding | None:
    """Logs of two machines can be laid side by side."""
    if node.skew_s is None:
        return unknown("the engine's answers carry no Date")
    if abs(node.skew_s) <= MAX_SKEW_S:
        return ok(f"its clock agrees with this host's, to {MAX_SKEW_S:g} s")
    where = "ahead of" if node.skew_s > 0 else "behind"
    return warn(
        f"its clock is {abs(node.skew_s):.0f} s {where} this host's: logs do not line up (leases are not affected)",
        "run NTP on both",
    )


def kv_events(node: Node, assumed: Assumed) -> Finding | None:
    """Where they are published somebody has to reach them."""
    if not node.event_sources:
        return None
    deaf = [source for source, listens in node.event_sources.items() if listens is False]
    if deaf:
        return warn(
            f"publishes KV events at {', '.join(deaf)}, which cannot be reached from here",
            "open the port between router and engine",
        )
    calls = [source for source, listens in node.event_sources.items() if listens is None]
    if calls:
        return ok(f"publishes KV events to {', '.join(calls)}, where their reader has to listen")
    return ok(f"KV events are published at {', '.join(node.event_sources)}")


def development_mode(node: Node, assumed: Assumed) -> Finding | None:
    """Its endpoints let anybody reset and stop the engine."""
    if node.config is None:
        return None
    return warn(
        "development mode is on: whoever reaches the port can reset caches and put the engine to sleep",
        "unset VLLM_SERVER_DEV_MODE",
    )


def load_failure(node: Node, assumed: Assumed) -> Finding | None:
    """What D does when it cannot fetch."""
    if node.role is not Role.DECODE:
        return None
    policy = None if node.config is None else node.config.load_failure_policy
    if policy == "fail":
        return ok("kv_load_failure_policy is fail: the router plans such a turn again")
    if policy == "recompute":
        return warn(
            "kv_load_failure_policy is recompute: a hand-over that fails is computed on D, unseen by the router",
            'set "kv_load_failure_policy": "fail" in --kv-transfer-config',
        )
    return unknown(
        "kv_load_failure_policy is not shown outside development mode",
        'fail, the default, is wanted in --kv-transfer-config; "recompute" hides failed hand-overs',
    )


def loopback(host: str) -> bool:
    """An address that means another machine on every machine."""
    return host == "localhost" or host.startswith("127.") or host == "::1"


def host_of(node: Node) -> str:
    """Of its address."""
    return urlsplit(node.url).hostname or ""
