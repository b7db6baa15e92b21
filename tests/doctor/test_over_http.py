"""The doctor on emulated engines over HTTP: good ones, and some that are spoiled on the way."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import AsyncExitStack

import pytest
from aiohttp import web
from typer.testing import CliRunner, Result

from router.turn import Role
from tests.doctor.proxy import Passed, Proxy, proxied
from tests.emulator_http.harness import MODEL, Client, fleet, in_loop
from trimtab.cli import app
from trimtab.doctor.checks import diagnose
from trimtab.doctor.facts import Assumed, Facts
from trimtab.doctor.findings import Finding, Level, failed
from trimtab.doctor.gather import Target
from trimtab.doctor.visit import Visit, visit

ROLES = {"P": Role.PREFILL, "D": Role.DECODE, "R": Role.REPLICA}
KEY = "sesame-is-a-secret"


@pytest.fixture(autouse=True)
def impatient_router(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the router kept idle connections shortly: watching one for 4 s is for one test of it."""
    monkeypatch.setattr("trimtab.doctor.visit.KEEPALIVE_S", 0.2)


async def examined(client: Client, *, role: bool = True, urls: dict[str, str] | None = None, **more: object) -> Facts:
    named = {**client.running.urls, **(urls or {})}
    targets = tuple(Target(url, ROLES[name[0]] if role else None) for name, url in named.items())
    options: dict[str, object] = {"watch_idle": False, "timeout_s": 5.0, "assumed": Assumed(), **more}
    return await visit(Visit(targets, **options))  # type: ignore[arg-type]


def bad(findings: list[Finding]) -> set[tuple[str, str]]:
    return {(row.check, " ".join(row.nodes)) for row in findings if row.level in (Level.FAIL, Level.WARN)}


async def command(*arguments: str) -> Result:
    """The command line, in a thread: it runs an event loop of its own."""
    return await asyncio.to_thread(CliRunner().invoke, app, ["doctor", *arguments])


# -- good engines ---------------------------------------------------------------------------------------------------


@in_loop
async def test_a_good_fleet_passes_and_roles_are_seen():
    async with fleet("2P_3D_1R") as client:
        facts = await examined(client, role=False)
        findings = diagnose(facts)
        assert bad(findings) == set() and not failed(findings)
        assert [node.name for node in facts.nodes] == ["P0", "P1", "D0", "D1", "D2", "R0"]
        assert {node.name: node.role for node in facts.nodes} == {n: ROLES[n[0]] for n in client.running.urls}
        assert [(over.prefill, over.decode) for over in facts.hand_overs] == [("P0", "D0"), ("P1", "D1"), ("P0", "D2")]
        assert all(over.pulled_tokens == over.prompt_tokens > 30 for over in facts.hand_overs)
        decodes = [node.ask for node in facts.nodes if node.role is Role.DECODE]
        assert all(ask and ask.cached_again and ask.cached_again >= ask.prompt_tokens - 16 for ask in decodes)
        assert client.running.fleet.poisoned_reads == 0 and client.running.fleet.open_leases == 0
        assert all(engine.alive for engine in client.running.fleet.engines.values())


@in_loop
async def test_reading_alone_sends_no_request_to_a_model():
    async with fleet("1P_1D") as client, proxied(Proxy(client.running.urls["D0"])) as proxy:
        facts = await examined(client, urls={"D0": proxy.url}, assumed=Assumed(probed=False))
        assert {path for path, _, _ in proxy.seen} == {
            "/health",
            "/v1/models",
            "/version",
            "/metrics",
            "/kv_event_sources",
            "/server_info",
        }
        findings = diagnose(facts)
        assert bad(findings) == set()
        assert [row.message for row in findings if row.check == "hand-over"] == ["no hand-over was tried"]


@in_loop
async def test_a_lease_is_measured_and_compared():
    async with fleet("1P_1D", speed=15.0) as client:  # 30 engine seconds are 2
        for lease_s, level in ((1.5, Level.OK), (4.0, Level.FAIL)):
            facts = await examined(client, measure_leases=True, assumed=Assumed(lease_s=lease_s, connector="none"))
            (lease,) = facts.leases
            assert lease.held_s is not None and 1.9 < lease.held_s < 4.0
            assert [row.level for row in diagnose(facts) if row.check == "lease"] == [level]


@in_loop
async def test_an_idle_connection_is_watched():
    async with fleet("1R") as client, proxied(Proxy(client.running.urls["R0"], keep_alive_s=0.3)) as proxy:
        for url, closed in ((client.running.urls["R0"], False), (proxy.url, True)):
            facts = await examined(client, urls={"R0": url}, watch_idle=True, assumed=Assumed(keep_alive_s=1.0))
            (node,) = facts.nodes
            assert node.idle_watched_s == 1.0 and (node.idle_closed_s is not None) is closed
            assert (("keep-alive", "R0") in bad(diagnose(facts))) is closed


# -- spoiled ones ---------------------------------------------------------------------------------------------------


def without_details(passed: Passed) -> None:
    passed.body = passed.body.replace(b'"prompt_tokens_details"', b'"something"')


def without_usage(passed: Passed) -> None:
    if passed.headers.get("Content-Type", "").startswith("text/event-stream"):
        events = passed.body.split(b"\n\n")
        passed.body = b"\n\n".join(event for event in events if b'"usage":{' not in event)


def without_params(passed: Passed) -> None:
    passed.body = passed.body.replace(b'"kv_transfer_params"', b'"something"')


def without_blocks(passed: Passed) -> None:
    if b'"remote_block_ids"' in passed.body:
        answer = json.loads(passed.body)
        answer["kv_transfer_params"]["remote_block_ids"] = [[1]]
        passed.body = json.dumps(answer).encode()


def uncached(passed: Passed) -> None:
    passed.body = passed.body.replace(b'enable_prefix_caching="True"', b'enable_prefix_caching="False"')


def without_tpot(passed: Passed) -> None:
    if passed.path == "/metrics":
        name = b"vllm:request_time_per_output_token_seconds"
        passed.body = b"".join(line for line in passed.body.splitlines(True) if name not in line)


def other_model(passed: Passed) -> None:
    if passed.path == "/v1/models":
        passed.body = passed.body.replace(MODEL.encode(), b"another")


def shorter(passed: Passed) -> None:
    if passed.path == "/v1/models":
        answer = json.loads(passed.body)
        answer["data"][0]["max_model_len"] = 2048
        passed.body = json.dumps(answer).encode()


def older_release(passed: Passed) -> None:
    if passed.path == "/version":
        passed.body = passed.body.replace(b"0.32.0", b"0.11.2")


def failing(passed: Passed) -> None:
    if passed.path.startswith("/v1/chat"):
        passed.status, passed.body = 500, b'{"error": {"message": "out of\\n luck"}}'


def silent_metrics(passed: Passed) -> None:
    if passed.path == "/metrics":
        passed.status, passed.body = 404, b""


def local(path: str, body: bytes) -> bytes:
    """D never hears of the hand-over, as an engine without a connector."""
    if not body:
        return body
    asked = json.loads(body)
    asked.pop("kv_transfer_params", None)
    return json.dumps(asked).encode()


SPOILED: dict[str, tuple[str, Proxy, set[tuple[str, str]]]] = {
    "no details in usage": ("D0", Proxy("", reply=without_details), {("usage-details", "D0")}),
    "no usage in streams": ("D0", Proxy("", reply=without_usage), {("usage-in-streams", "D0")}),
    "no hand-over by P": ("P0", Proxy("", reply=without_params), {("hand-over", "P0 D0")}),
    "too few blocks by P": ("P0", Proxy("", reply=without_blocks), {("hand-over", "P0 D0")}),
    "a D that computes itself": ("D0", Proxy("", local), {("hand-over", "P0 D0")}),
    "no prefix caching": ("D0", Proxy("", reply=uncached), {("prefix-caching", "D0")}),
    "no TPOT in metrics": ("D0", Proxy("", reply=without_tpot), {("metrics", "D0")}),
    "another model": ("D0", Proxy("", reply=other_model), {("model", "P0"), ("model", "D0")}),
    "a shorter context": ("P0", Proxy("", reply=shorter), {("max-model-len", "P0")}),
    "an older release": ("D0", Proxy("", reply=older_release), {("version", "D0"), ("same-version", "P0 D0")}),
    "a D that fails": ("D0", Proxy("", reply=failing), {("usage-in-streams", "D0"), ("hand-over", "P0 D0")}),
    "a P that fails": ("P0", Proxy("", reply=failing), {("hand-over", "P0 D0")}),
    "no metrics": ("D0", Proxy("", reply=silent_metrics), {("metrics", "D0")}),
}


@pytest.mark.parametrize("case", SPOILED)
def test_a_spoiled_engine_is_found_and_survives(case: str):
    @in_loop
    async def story() -> None:
        name, proxy, expected = SPOILED[case]
        async with fleet("1P_1D") as client:
            proxy.engine = client.running.urls[name]
            async with proxied(proxy):
                facts = await examined(client, urls={name: proxy.url})
                findings = diagnose(facts)
                assert expected <= bad(findings), [row.line() for row in findings]
                assert all(row.fix for row in findings if row.level is Level.FAIL)
            assert all(engine.alive for engine in client.running.fleet.engines.values())
            assert client.running.fleet.poisoned_reads == 0

    story()


@in_loop
async def test_engines_that_are_not_there_or_not_engines_are_named():
    async def page(request: web.Request) -> web.Response:
        return web.Response(text="<html>welcome</html>", content_type="text/html")

    async def hang(request: web.Request) -> web.Response:
        await asyncio.sleep(30)
        return web.Response()

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        async with AsyncExitStack() as stack:
            urls = [f"http://127.0.0.1:{free.getsockname()[1]}"]
            for handler in (page, hang):
                web_app = web.Application()
                web_app.router.add_route("*", "/{path:.*}", handler)
                runner = web.AppRunner(web_app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
                await runner.setup()
                stack.push_async_callback(runner.cleanup)
                await web.TCPSite(runner, "127.0.0.1", 0).start()
                urls.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
            plan = Visit(tuple(Target(url, Role.DECODE) for url in urls), Assumed(), 0.5, watch_idle=False)
            findings = diagnose(await visit(plan))
    told = {row.nodes: row.message for row in findings if row.check == "reachable"}
    assert told[("D0",)].startswith("no connection") and told[("D2",)] == "no answer within 0.5 s"
    assert ("model", "D1") in bad(findings) and ("metrics", "D1") in bad(findings)


# -- the command line -----------------------------------------------------------------------------------------------


@in_loop
async def test_the_command_prints_a_line_a_finding_and_ends_with_0():
    async with fleet("1P_1D") as client:
        urls = client.running.urls
        result = await command("--prefill", urls["P0"], "--decode", urls["D0"])
        assert result.exit_code == 0, result.output
        lines = result.stdout.splitlines()
        assert lines[0].split() == ["P0", urls["P0"], "prefill"]
        assert all(line.split()[0] in [*Level, "P0", "D0", "17", "18", "19", "20"] for line in lines), lines
        assert ", 0 WARN, 0 FAIL, " in lines[-1]


@in_loop
async def test_json_names_engines_and_findings_and_a_fail_ends_with_1():
    async with fleet("1P_1D") as client, proxied(Proxy(client.running.urls["D0"], reply=without_details)) as proxy:
        result = await command("--json", "--prefill", client.running.urls["P0"], "--decode", proxy.url)
        assert result.exit_code == 1
        told = json.loads(result.stdout)
        assert told["ok"] is False and [node["role"] for node in told["nodes"]] == ["prefill", "decode"]
        (row,) = [row for row in told["findings"] if row["level"] == "FAIL"]
        assert row["check"] == "usage-details" and row["nodes"] == ["D0"]
        assert "--enable-prompt-tokens-details" in row["fix"]


@in_loop
async def test_the_engines_of_a_configuration_are_looked_at_with_its_lease(tmp_path):
    async with fleet("1P_1D") as client:
        config = tmp_path / "trimtab.yaml"
        urls = client.running.urls
        pools = f"{{prefill: [{urls['P0']}], decode: [{urls['D0']}], lease: 12s}}"
        config.write_text(f"version: 1\nmodels:\n  {MODEL}: {pools}\n")
        result = await command("--config", str(config), "--no-probe")
        assert result.exit_code == 0, result.output
        assert "the router believes 12 s" in result.stdout


@in_loop
async def test_a_key_opens_the_engines_and_is_never_shown(monkeypatch):
    monkeypatch.setenv("ENGINES_KEY", KEY)
    monkeypatch.setenv("WRONG_KEY", KEY + "?")
    async with fleet("1R", api_key=KEY) as client:
        url = client.running.urls["R0"]
        for name, seen in (("ENGINES_KEY", True), ("WRONG_KEY", False)):
            for more in ((), ("--json",)):
                result = await command(url, "--api-key-env", name, *more)
                assert result.exit_code == 1, "the router sends no key"
                assert KEY not in result.output
                assert ("streams end with usage" in result.output) is seen
        assert "--api-key-env" in (await command(url)).output


def test_bad_usage_ends_with_2_and_says_what_to_write(tmp_path, monkeypatch):
    monkeypatch.delenv("ENGINES_KEY", raising=False)
    good = "http://127.0.0.1:1"
    missing = str(tmp_path / "no.yaml")
    for arguments, words in (
        ((), "name engines"),
        (("127.0.0.1:8000",), "write http://HOST:PORT"),
        (("https://127.0.0.1:8000",), "write http://HOST:PORT"),
        (("http://127.0.0.1:99999",), "write http://HOST:PORT"),
        ((good, "--decode", good + "/"), "named twice"),
        ((good, "--api-key-env", "ENGINES_KEY"), "ENGINES_KEY"),
        ((good, "--lease", "--no-probe"), "--no-probe"),
        (("--config", missing), "cannot be read"),
    ):
        result = CliRunner().invoke(app, ["doctor", *arguments])
        assert result.exit_code == 2 and words in result.stderr and "Traceback" not in result.output, arguments


def test_a_password_in_an_address_is_refused_and_not_repeated():
    result = CliRunner().invoke(app, ["doctor", "http://user:hunter2@127.0.0.1:8000"])
    assert result.exit_code == 2 and "hunter2" not in result.output
