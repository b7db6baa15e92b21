"""Words of PromQL: durations, numbers, selectors, and the names of what is counted and recorded."""

from collections.abc import Iterable

VALID = "trimtab_slo_valid_events_total"
BAD = "trimtab_slo_bad_events_total"
EVALUATED = "trimtab_slo_last_evaluation_timestamp_seconds"
CONTROLLER = "trimtab_control_info"
DRIFTED = "trimtab_table_drifted"

_UNITS_MS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))


def duration(seconds: float) -> str:
    """90 s as 1m30s, as Prometheus reads it; at least a millisecond."""
    left = max(1, round(seconds * 1000.0))
    parts = []
    for unit, size in _UNITS_MS:
        if left >= size:
            parts.append(f"{left // size}{unit}")
            left %= size
    return "".join(parts)


def number(value: float) -> str:
    """Without the noise of binary arithmetic: 0.1344 and not 0.13440000000000002."""
    return f"{value:.10g}"


def selector(*labels: tuple[str, str]) -> str:
    """{a="b"}; the values may hold anything."""
    return "{" + ",".join(f"{name}={_quoted(value)}" for name, value in labels) + "}"


def one_of(label: str, names: Iterable[str]) -> str:
    """A matcher for names of a-z, 0-9 and dashes, which mean themselves in a regular expression."""
    found = tuple(names)
    return f'{label}="{found[0]}"' if len(found) == 1 else f'{label}=~"{"|".join(found)}"'


def also(selected: str, matcher: str) -> str:
    """A selector with one matcher more."""
    return f"{selected[:-1]},{matcher}}}"


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def increase(counter: str, selected: str, window_s: float) -> str:
    """Of all routers together, by SLO."""
    return f"sum by (slo) (increase({counter}{selected}[{duration(window_s)}]))"


def error_ratio(window_s: float) -> str:
    """The share of turns that were bad."""
    return f"slo:error_ratio:rate{duration(window_s)}"


def bad_events(window_s: float) -> str:
    """How many turns were bad."""
    return f"slo:bad_events:increase{duration(window_s)}"


def valid_events(window_s: float) -> str:
    """How many turns were judged."""
    return f"slo:valid_events:increase{duration(window_s)}"


def over(window_s: float) -> str:
    """The share of the budget's unit, turns or slices, that was bad in its period."""
    return f"slo:budget_error_ratio:over{duration(window_s)}"


BUDGET_LEFT = "slo:budget_left:ratio"
BAD_LEFT = "slo:budget_left:events"
EVIDENCE = "slo:breach_evidence:nats"
SLICE_MEASURED = "slo:slice:measured"
SLICE_BAD = "slo:slice:bad"
