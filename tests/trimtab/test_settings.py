"""trimtab.yaml: what a good file means, and what a bad one is told."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slos.files import load_slo_file
from slos.objective import Match, Signal, Slo
from slos.spec import SpecError
from trimtab.cli_serve import _settings
from trimtab.processes import StartError, installation_secret, read_settings, save_settings, secret_from_env
from trimtab.settings import Settings
from trimtab.settings_file import parse_settings

GOOD = """\
version: 1
listen: {host: 0.0.0.0, port: 8080}
admin: {port: 9401, token_env: ADMIN}
state_dir: /tmp/x
source: vllm-cpu
models:
  llama:
    prefill: [http://127.0.0.1:1]
    decode: [http://127.0.0.1:2, http://127.0.0.1:3]
    lease: 10s
    table: mine.json
    kv_events:
      http://127.0.0.1:2: tcp://127.0.0.1:5557
      http://127.0.0.1:3/: {endpoint: ipc:///run/d1, replay: tcp://127.0.0.1:5558}
slos:
  - name: later-ttft
    objective: p99(ttft) <= 2s
    match: {turn: ">=2"}
control: {law: aimd, price: 0.3, table: paper, signal: engine, webhook: "http://127.0.0.1:9/h", webhook_secret_env: S,
  alertmanagers: [http://am-0:9093, https://am-1/prefix], without_table_tokens: 0}
router: {conversation: md5_first_message, idle: 5m, gap_timeout: 10s, api_keys_env: KEYS}
"""


def parsed(text: str) -> Settings:
    return parse_settings(text, "trimtab.yaml", Path("/etc/trimtab"))


def complaints(text: str) -> list[str]:
    with pytest.raises(SpecError) as refused:
        parsed(text)
    return [str(problem) for problem in refused.value.problems]


def test_every_key_of_a_file_arrives_where_it_belongs():
    settings = parsed(GOOD).checked()
    assert (settings.host, settings.port, settings.admin_port, settings.admin_token_env) == (
        "0.0.0.0",
        8080,
        9401,
        "ADMIN",
    )
    assert (settings.model, settings.prefill, settings.lease_s) == ("llama", ("http://127.0.0.1:1",), 10.0)
    assert settings.decode == ("http://127.0.0.1:2", "http://127.0.0.1:3")
    assert settings.tables == ("/etc/trimtab/mine.json",)
    assert settings.kv_events == (
        ("http://127.0.0.1:2", "tcp://127.0.0.1:5557", ""),
        ("http://127.0.0.1:3", "ipc:///run/d1", "tcp://127.0.0.1:5558"),
    )
    assert settings.slos == (Slo("later-ttft", Signal.TTFT, 0.99, 2.0, Match(turn_min=2)),)
    assert (settings.price, settings.mode, settings.signal, settings.source) == (0.3, "paper", "engine", "vllm-cpu")
    assert (settings.conversation, settings.idle_s, settings.gap_timeout_s) == ("md5_first_message", 300.0, 10.0)
    assert settings.without_table_tokens == 0 and parsed("version: 1").without_table_tokens == 1536
    assert settings.alertmanagers == ("http://am-0:9093", "https://am-1/prefix")
    assert (settings.webhook, settings.webhook_secret_env, settings.api_keys_env) == (
        "http://127.0.0.1:9/h",
        "S",
        "KEYS",
    )


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("version: 1\nmodles: {}\n", 2, ["unknown key", "models"]),
        ("models: {m: {decode: [http://127.0.0.1:1]}}\n", 1, ["version is missing"]),
        ("version: 2\n", 1, ["not known", "write 1"]),
        ("version: 1\nlisten: {port: eighty}\n", 2, ["no port"]),
        ("version: 1\nmodels: {m: {lease: 30}}\n", 2, ["no unit", "30ms"]),
        ("version: 1\nmodels: {a: {decode: [x]}, b: {decode: x}}\n", 2, ["models.b.decode", "must be a list"]),
        ("version: 1\nmodels: {m: {aliases: n}}\n", 2, ["models.m.aliases", "must be a list"]),
        ("version: 1\nrouter: {forward_headers: traceparent}\n", 2, ["must be a list"]),
        ("version: 1\nmodels: []\n", 2, ["must map model names"]),
        ("version: 1\nmodels: {m: {connector: nixle}}\n", 2, ["nixle", "nixl"]),
        ("version: 1\nmodels: {m: {kv_events: tcp://d:5557}}\n", 2, ["must be a mapping", "http://127.0.0.1:8200"]),
        ("version: 1\nmodels: {m: {kv_events: {http://d:1: {replay: tcp://d:5558}}}}\n", 2, ["endpoint is missing"]),
        ("version: 1\nmodels: {m: {kv_events: {http://d:1: {endpoint: tcp://d:1, x: y}}}}\n", 2, ["unknown key"]),
        ("version: 1\ncontrol: {law: amid}\n", 2, ["amid", "aimd"]),
        ("version: 1\ncontrol: {price: cheap}\n", 2, ["no number"]),
        ("version: 1\ncontrol: {without_table_tokens: few}\n", 2, ["no whole number", "1536"]),
        ("version: 1\ncontrol: {without_table_tokens: 10.5}\n", 2, ["no whole number", "1536"]),
        ("version: 1\nslos: [{name: x, objective: p99(ttft) <= 2}]\n", 2, ["no unit"]),
        ("version: 1\nslo_file: nowhere.yaml\n", 2, ["nowhere.yaml"]),
        ("version: 1\nslos: [{name: x, objective: p99(ttft) <= 2s}]\nslo_file: a.yaml\n", 3, ["keep one"]),
        ("version: 1\nrouter: {idle: soon}\n", 2, ["soon"]),
    ],
)
def test_a_bad_file_names_the_line_and_the_fix(text, line, words):
    told = complaints(text)
    assert any(f"trimtab.yaml:{line}:" in item and all(word in item for word in words) for item in told), told


def test_all_problems_are_told_at_once():
    assert len(complaints("version: 3\nlisten: {port: x}\nwrong: 1\n")) == 3


@given(st.text(max_size=200))
def test_no_text_is_answered_with_a_traceback(text):
    with contextlib.suppress(SpecError):
        parsed(text)


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 40), st.text(max_size=6))
def test_no_damaged_file_is_answered_with_a_traceback(at, length, put):
    with contextlib.suppress(SpecError, ValueError):
        parsed(GOOD[:at] + put + GOOD[at + length :]).checked()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"decode": ()}, "nobody decodes"),
        ({"decode": ("https://x:1",)}, "no engine address"),
        ({"decode": ("http://x:1/v1",)}, "no engine address"),
        ({"decode": ("http://x:1",), "prefill": ("http://x:1/",)}, "named twice"),
        ({"port": 70000}, "no port"),
        ({"port": 9400}, "share port"),
        ({"price": -1.0}, "positive"),
        ({"pin_x": 1.5}, "share"),
        ({"without_table_tokens": -1}, r"control\.without_table_tokens must be 0 .*, got -1"),
        ({"lease_s": 1.0}, "lease"),
        ({"admin_host": "0.0.0.0"}, "token"),
        ({"forward_headers": ("Connection",)}, "connection is of one connection"),
        ({"forward_headers": ("a b",)}, "no header name"),
        ({"forward_headers": ("Authorization",), "engine_key_env": "E"}, "a key of their own"),
        ({"passthrough": ("/v1/../sleep",)}, "no route of engines"),
        ({"passthrough": ("http://other/v1/x",)}, "no route of engines"),
        ({"kv_events": (("http://127.0.0.1:9", "tcp://d:5557", ""),)}, "which is no node"),
        ({"kv_events": (("http://127.0.0.1:1", "tcp://d:5557", ""),) * 2}, "twice"),
        ({"kv_events": (("http://127.0.0.1:1", "tcp://*:5557", ""),)}, "nowhere to connect to"),
        ({"kv_events": (("http://127.0.0.1:1", "tcp://d", ""),)}, "nowhere to connect to"),
        ({"kv_events": (("http://127.0.0.1:1", "tcp://d:5557", "d:5558"),)}, "'d:5558' is nowhere"),
    ],
)
def test_settings_that_cannot_work_together_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(Settings(decode=("http://127.0.0.1:1",)), **change).checked()


def test_the_children_read_what_the_supervisor_wrote(tmp_path):
    settings = dataclasses.replace(parsed(GOOD), state_dir=str(tmp_path)).checked()
    assert read_settings(save_settings(settings)) == settings


def test_a_declaration_of_every_key_reaches_the_children_whole(tmp_path):
    example = Path(__file__).parents[2] / "examples" / "slo-full.yaml"
    declaration = load_slo_file(example)
    written = Settings(declaration=declaration, slo_path=str(example), state_dir=str(tmp_path))
    read = read_settings(save_settings(written))
    assert repr(read) == repr(written), "what equality leaves out (lines, descriptions, labels) included"


def test_a_damaged_settings_file_is_a_start_error(tmp_path):
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(StartError):
        read_settings(tmp_path / "settings.json")


def test_the_installations_secret_is_made_once_and_private(tmp_path):
    first = installation_secret(tmp_path)
    assert installation_secret(tmp_path) == first
    assert len(first) == 32
    assert (tmp_path / "secret").stat().st_mode & 0o077 == 0


def test_a_named_secret_that_is_not_set_is_said(monkeypatch):
    monkeypatch.delenv("TRIMTAB_X", raising=False)
    with pytest.raises(StartError, match="TRIMTAB_X"):
        secret_from_env("TRIMTAB_X")
    assert secret_from_env("") is None


@pytest.mark.parametrize("url", ["am-0:9093", "ftp://am", "http://", "'http://am:port'"])
def test_an_alertmanager_that_is_no_url_is_told_with_its_line_and_never_repeated(url: str):
    (problem,) = complaints(f"version: 1\ncontrol:\n  alertmanagers:\n    - {url}\n")
    assert problem.startswith("trimtab.yaml:4:") and "write http://HOST:9093" in problem and "am" not in problem[12:30]


TWO = """\
version: 1
models:
  big: {prefill: [http://127.0.0.1:1], decode: [http://127.0.0.1:2], aliases: [gpt-4o], lease: 12s, table: big.json}
  small: {replica: [http://127.0.0.1:3], engine_key_env: SMALL_KEY}
router: {api_keys_file: keys.txt, forward_headers: [Traceparent, x-team], passthrough: [/v1/load_lora_adapter]}
control: {price: 0.2}
"""


def test_models_have_pools_of_their_own_and_the_rest_in_common():
    settings = parsed(TWO).checked()
    big, small = settings.each_model
    assert (big.model, big.decode, big.aliases, big.lease_s) == ("big", ("http://127.0.0.1:2",), ("gpt-4o",), 12.0)
    assert (small.model, small.decode, small.replica) == ("small", (), ("http://127.0.0.1:3",))
    assert (small.lease_s, small.tables, small.aliases, small.engine_key_env) == (30.0, (), (), "SMALL_KEY")
    assert big.price == small.price == 0.2
    assert settings.api_keys_file == "/etc/trimtab/keys.txt"
    assert settings.forward_headers == ("traceparent", "x-team")
    assert settings.passthrough == ("/v1/load_lora_adapter",)
    assert [each.further for each in settings.each_model] == [(), ()]


def test_what_a_flag_changes_holds_for_every_model():
    settings = dataclasses.replace(parsed(TWO), host="127.0.0.2", pin_x=0.5, source="emulated", lease_s=20.0)
    assert [(each.host, each.pin_x, each.source) for each in settings.checked().each_model] == [
        ("127.0.0.2", 0.5, "emulated")
    ] * 2
    assert [each.lease_s for each in settings.each_model] == [20.0, 30.0]  # the first model's own


def test_where_one_model_finds_its_nodes_is_not_where_another_does():
    big, small = parsed(TWO.replace("table: big.json", "discover: {file: nodes.yaml}")).checked().each_model
    assert (bool(big.discover), bool(small.discover)) == (True, False)


def test_the_children_read_several_models_too(tmp_path):
    settings = dataclasses.replace(parsed(TWO), state_dir=str(tmp_path)).checked()
    path = save_settings(settings)
    assert read_settings(path) == settings
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("replica: [http://127.0.0.1:3]", "replica: [http://127.0.0.1:2]", "serves another model already"),
        ("engine_key_env: SMALL_KEY", "aliases: [big]", "names two models"),
        ("engine_key_env: SMALL_KEY", "aliases: [gpt-4o]", "names two models"),
        ("replica: [http://127.0.0.1:3]", "prefill: [http://127.0.0.1:3]", r"models\.small\.decode"),
    ],
)
def test_models_must_not_get_in_each_others_way(old, new, words):
    assert old in TWO
    with pytest.raises(ValueError, match=words):
        parsed(TWO.replace(old, new)).checked()


def test_conflicts_are_told_at_once():
    settings = dataclasses.replace(Settings(), price=-1.0, lease_s=0.0, admin_host="10.0.0.1")
    assert len(settings.conflicts()) == 4
    with pytest.raises(ValueError, match=r"(?s)admin\.host.*price.*nobody decodes"):
        settings.checked()


def test_observing_acts_as_pinned_to_x0_unless_another_share_is_given():
    plain = GOOD.replace("control: {law: aimd,", "control: {law: aimd, observe: true,").replace(
        "host: 0.0.0.0", "host: 127.0.0.1"
    )
    settings = parsed(plain)
    assert settings.observe and settings.pin_x is None
    assert settings.checked().pin_x == 0.0
    assert dataclasses.replace(settings, pin_x=0.5).checked().pin_x == 0.5
    assert dataclasses.replace(settings, observe=False).checked().pin_x is None
    (told,) = complaints(GOOD.replace("control: {law: aimd,", "control: {law: aimd, observe: maybe,"))
    assert "not a boolean" in told


def test_a_flag_decides_over_the_file_whether_anything_is_observed(tmp_path):
    path = tmp_path / "trimtab.yaml"
    path.write_text(
        "version: 1\nmodels: {m: {decode: ['http://127.0.0.1:1']}}\ncontrol: {observe: true, pin_x: 1}\n", "utf-8"
    )
    arguments: dict[str, object] = dict.fromkeys(inspect.signature(_settings).parameters)
    found = _settings(**{**arguments, "config": path})
    assert (found.observe, found.pin_x) == (True, 1.0)
    found = _settings(**{**arguments, "config": path, "observe": True, "pin_x": "x0"})
    assert (found.observe, found.pin_x) == (True, 0.0)
    found = _settings(**{**arguments, "config": path, "observe": False})
    assert (found.observe, found.pin_x) == (False, 1.0)
