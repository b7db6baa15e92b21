"""Where nodes hand over: what is taken from a file or a flag, what follows by itself, and what a mistake is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slos.spec import SpecError
from trimtab.processes import read_settings, save_settings
from trimtab.settings import Settings
from trimtab.settings_file import parse_settings

P0, P1, D0, R0 = (f"http://10.0.0.{at}:8000" for at in (1, 2, 3, 4))
PLAIN = Settings(prefill=(P0, P1), decode=(D0,), replica=(R0,))
P2P = replace(
    PLAIN,
    connector="p2p_nccl",
    connector_addresses=((P0, "10.0.0.1:21001"), (P1, "10.0.0.2:21001"), (D0, "10.0.0.3:22001")),
)


def without(url: str) -> tuple[tuple[str, str], ...]:
    return tuple(pair for pair in P2P.connector_addresses if pair[0] != url)


def test_a_file_maps_engine_urls_to_addresses():
    text = (
        "version: 1\nmodels:\n  m:\n    prefill: [http://10.0.0.1:8000/]\n    decode: [http://10.0.0.3:8000]\n"
        "    connector: p2p_nccl\n    connector_addresses:\n"
        "      http://10.0.0.1:8000: 10.0.0.1:21001\n      http://10.0.0.3:8000/: 10.0.0.3:22001\n"
    )
    settings = parse_settings(text, "trimtab.yaml", Path(".")).checked()
    assert settings.addresses() == {P0: "10.0.0.1:21001", D0: "10.0.0.3:22001"}


@pytest.mark.parametrize(
    "value", ["[]", "[a, b]", "x", "{a: [1]}", "{a: {b: c}}", "{[a]: b}", "{a: b, a: c}", "{a: }", "!x {a: b, c: }"]
)
def test_what_is_no_mapping_of_texts_is_refused_with_its_line(value: str):
    text = f"version: 1\nmodels:\n  m:\n    connector_addresses: {value}\n"
    with pytest.raises(SpecError) as refused:
        parse_settings(text, "trimtab.yaml", Path("."))
    assert {problem.line for problem in refused.value.problems} == {4}


def test_nixl_needs_none_and_mooncake_takes_the_usual_port_on_ps_host():
    assert PLAIN.checked().addresses() == {}
    settings = replace(PLAIN, connector="mooncake").checked()
    assert settings.addresses() == {P0: "http://10.0.0.1:8998", P1: "http://10.0.0.2:8998"}
    other = replace(settings, connector_addresses=((P1 + "/", "http://10.0.0.9:9000"),)).checked()
    assert other.addresses() == {P0: "http://10.0.0.1:8998", P1: "http://10.0.0.9:9000"}
    six = replace(PLAIN, prefill=("http://[::1]:8000",), connector="mooncake").checked()
    assert six.addresses() == {"http://[::1]:8000": "http://[::1]:8998"}


def test_p2p_nccl_takes_one_for_every_p_and_d():
    assert P2P.checked().addresses() == dict(P2P.connector_addresses)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (replace(PLAIN, connector_addresses=((P0, "10.0.0.1:1"),)), ["nixl needs no addresses", "remove"]),
        (replace(P2P, connector_addresses=without(D0)), ["lacks decode node", D0, "10.0.0.1:21001"]),
        (replace(P2P, connector_addresses=without(P1)), ["lacks prefill node", P1]),
        (replace(P2P, connector_addresses=(*P2P.connector_addresses, (R0, "10.0.0.4:1"))), ["replica", R0, "none"]),
        (replace(P2P, connector_addresses=(*P2P.connector_addresses, (P0, "10.0.0.9:1"))), [P0, "twice"]),
        (replace(P2P, connector_addresses=((P0 + "1", "10.0.0.9:1"),)), ["no node here", P0]),
        (replace(P2P, connector_addresses=(*without(P1), (P1, "10.0.0.1:21001"))), [P0, P1, "both have"]),
        (replace(PLAIN, connector="nixle"), ["nixle", "nixl, mooncake, p2p_nccl"]),
        (
            replace(PLAIN, prefill=(P0, "http://10.0.0.1:8001"), connector="mooncake"),
            [P0, "http://10.0.0.1:8001", "both have 'http://10.0.0.1:8998'"],
        ),
        *(
            (replace(P2P, connector_addresses=(*without(P0), (P0, bad))), [repr(bad), "no address for p2p_nccl"])
            for bad in (
                "10.0.0.1",
                "10.0.0.1:",
                "10.0.0.1:0",
                "10.0.0.1:70000",
                "http://10.0.0.1:1",
                "a b:1",
                "a_b:1",
                "",
            )
        ),
        *(
            (
                replace(PLAIN, connector="mooncake", connector_addresses=((P0, bad),)),
                [repr(bad), "http://10.0.0.1:8998"],
            )
            for bad in ("10.0.0.1:8998", "https://10.0.0.1:8998", "http://10.0.0.1", "http://10.0.0.1:8998/query")
        ),
    ],
)
def test_a_mistake_is_told_with_what_to_change(settings: Settings, words: list[str]):
    with pytest.raises(ValueError, match="connector") as refused:
        settings.checked()
    said = str(refused.value)
    assert all(word in said for word in words), said


def test_the_child_processes_read_the_addresses(tmp_path: Path):
    settings = replace(P2P, state_dir=str(tmp_path)).checked()
    assert read_settings(save_settings(settings)) == settings
