"""What vLLM's web server counts, ahead of the engine: requests by path, method and class of status, sizes, durations;
and what its parser of tool calls found.

`http_*` come from a library that vLLM mounts, and so they have other names, and no model label. Doors that are asked
all the time (health, metrics, ...) are left out, as there.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, Summary, generate_latest

_UNCOUNTED = frozenset({"/metrics", "/metrics/", "/health", "/load", "/ping", "/version"})
_FINE = (0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60)


class WebCounts:
    """Of one process."""

    def __init__(self, model: str) -> None:
        self._registry = CollectorRegistry()
        self._model = model
        self._parsed = Counter(
            "vllm:tool_call_parser_invocations",
            "Requests whose answer the parser of tool calls has read.",
            ("model_name", "request_type", "mode", "outcome"),
            registry=self._registry,
        )
        for route in ("chat_completions", "responses", "other"):
            for mode in ("streaming", "non_streaming"):
                for outcome in ("tool_call", "no_tool_call"):
                    self._parsed.labels(model, route, mode, outcome)
        self._requests = Counter(
            "http_requests",
            "Total number of requests by method, status and handler.",
            ("method", "status", "handler"),
            registry=self._registry,
        )
        self._received = Summary(
            "http_request_size_bytes",
            "Content length of incoming requests by handler.",
            ("handler",),
            registry=self._registry,
        )
        self._sent = Summary(
            "http_response_size_bytes",
            "Content length of outgoing responses by handler.",
            ("handler",),
            registry=self._registry,
        )
        self._finely = Histogram(
            "http_request_duration_highr_seconds",
            "Latency with many buckets but no labels.",
            buckets=_FINE,
            registry=self._registry,
        )
        self._coarsely = Histogram(
            "http_request_duration_seconds",
            "Latency with few buckets by handler.",
            ("method", "handler"),
            buckets=(0.1, 0.5, 1),
            registry=self._registry,
        )

    def answered(self, path: str | None, method: str, status: int, received: int, sent: int, took_s: float) -> None:
        """One request; `path` None: of no route. `took_s` is the client's time."""
        if path in _UNCOUNTED:
            return
        handler = path or "none"
        self._requests.labels(method, f"{status // 100}xx", handler).inc()
        self._received.labels(handler).observe(received)
        self._sent.labels(handler).observe(sent)
        self._finely.observe(took_s)
        self._coarsely.labels(method, handler).observe(took_s)

    def parsed(self, streaming: bool, called: bool) -> None:
        """The answer to a chat with tools is out."""
        mode, outcome = "streaming" if streaming else "non_streaming", "tool_call" if called else "no_tool_call"
        self._parsed.labels(self._model, "chat_completions", mode, outcome).inc()

    def page(self) -> str:
        """Their part of /metrics."""
        return generate_latest(self._registry).decode()
