"""The SLOs of a process follow their file: good ones at once, bad ones never, and everybody is told."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from slos.policy import Declaration
from slos.problem import SpecError
from slos.spec import load_slos
from trimtab import reload
from trimtab.keys import doors_of
from trimtab.processes import StartError
from trimtab.reload import Reloader, ReloadState, difference, fresh, read_declared
from trimtab.settings import Settings
from trimtab.settings_file import load_settings

GOOD = "version: 1\nslos:\n  - {name: ttft, objective: p99(ttft) <= 2s}\n"
OTHER = GOOD.replace("2s", "1s") + "  - {name: answers, objective: success >= 99%}\n"
BAD = GOOD.replace("2s", "2").replace("name: ttft", "name: T")


class Follower:
    """A reloader on a clock of its own, and what it did."""

    def __init__(self, path: Path, **changes: object) -> None:
        settings = replace(Settings(), declaration=load_slos(GOOD, str(path)), slo_path=str(path), **changes)  # type: ignore[arg-type]
        self.path = path
        self.applied: list[Declaration] = []
        self.told: list[ReloadState] = []
        self.reloader = Reloader(settings, self.applied.append, wall=lambda: 1000.0)
        self.reloader.hooks.append(self.told.append)

    def write(self, text: str) -> None:
        partial = self.path.with_suffix(".part")
        partial.write_text(text, encoding="utf-8")
        partial.replace(self.path)

    def look(self, times: int = 2) -> None:
        async def looks() -> None:
            for _ in range(times):
                await self.reloader.look()

        asyncio.run(looks())


@pytest.fixture
def follower(tmp_path: Path) -> Follower:
    found = Follower(tmp_path / "slo.yaml")
    found.write(GOOD)
    found.look()
    return found


def test_a_file_that_says_what_is_in_force_changes_nothing(follower: Follower):
    follower.look(5)
    os.utime(follower.path)
    follower.look(5)
    assert (follower.applied, follower.told) == ([], [])
    assert follower.reloader.state.reloads == 0


def test_a_good_file_is_applied_once_it_has_come_to_rest(follower: Follower):
    follower.write(OTHER)
    follower.look(1)
    assert follower.applied == []
    follower.look(3)
    assert [[slo.name for slo in each.slos] for each in follower.applied] == [["ttft", "answers"]]
    assert follower.reloader.state == ReloadState(str(follower.path), 1000.0, reloads=1)
    assert len(follower.told) == 1


def test_a_file_changed_in_place_is_noticed_too(follower: Follower):
    follower.path.write_text(OTHER, encoding="utf-8")
    follower.look()
    assert len(follower.applied) == 1


def test_a_bad_file_keeps_the_old_one_says_all_of_its_problems_and_tells_once(follower: Follower, caplog):
    with caplog.at_level(logging.ERROR):
        follower.write(BAD)
        follower.look(5)
    assert follower.applied == []
    (state,) = follower.told
    assert state.failed_at_s == 1000.0
    assert [line.split(" ")[1] for line in state.problems] == ["E105", "E203"]
    assert "cannot be used" in state.words and "(and 1 more)" in state.words
    assert all(problem in caplog.text for problem in state.problems)
    follower.write(OTHER)
    follower.look()
    assert len(follower.applied) == 1
    assert follower.told[-1].words == "" and follower.told[-1].failures == 1


def test_a_bad_file_that_is_put_back_is_well_again_without_a_reload(follower: Follower):
    follower.write(BAD)
    follower.look()
    follower.write(GOOD)
    follower.look()
    assert follower.applied == []
    assert [bool(state.words) for state in follower.told] == [True, False]


def test_a_file_that_is_gone_is_a_bad_one(follower: Follower):
    follower.path.unlink()
    follower.look()
    assert follower.applied == []
    assert "E110" in follower.told[0].words


def test_a_signal_reads_the_file_at_once(follower: Follower):
    follower.write(OTHER)
    asyncio.run(follower.reloader.look(now=True))
    assert len(follower.applied) == 1


def test_the_loop_wakes_up_for_a_signal(follower: Follower):
    follower.reloader._look_s = 3600.0

    async def scene() -> None:
        running = asyncio.create_task(follower.reloader.run())
        await asyncio.sleep(0)
        follower.write(OTHER)
        follower.reloader.kick()
        while not follower.applied:
            await asyncio.sleep(0.01)
        running.cancel()

    asyncio.run(asyncio.wait_for(scene(), 20.0))


def test_one_who_waits_for_reloads_and_goes_wrong_keeps_nobody_else_from_it(follower: Follower):
    def wrong(state: ReloadState) -> None:
        raise RuntimeError("a hook")

    follower.reloader.hooks.insert(0, wrong)
    follower.write(OTHER)
    follower.look()
    assert len(follower.told) == 1


def test_a_tenant_whom_the_configuration_does_not_name_is_refused_at_a_reload_too(tmp_path: Path):
    follower = Follower(tmp_path / "slo.yaml", tenants=(("assistants", "KEYS"),))
    follower.write(GOOD.replace("2s", "2s, match: {tenant: batch}"))
    follower.look()
    assert follower.applied == [] and "E211" in follower.told[0].words
    follower.write(GOOD.replace("2s", "2s, match: {tenant: assistants}"))
    follower.look()
    assert len(follower.applied) == 1


def test_without_a_file_a_signal_changes_nothing(caplog):
    reloader = Reloader(Settings(), lambda declaration: pytest.fail("nothing is declared"))
    asyncio.run(reloader.look(now=True))
    assert "no SLO file" in caplog.text


INLINE = """\
version: 1
models: {m: {decode: [http://127.0.0.1:1]}}
labels: {team: chat}
slos:
  - {name: ttft, objective: p99(ttft) <= 2s}
alerts: {min_bad_events: 7}
router: {tenants: {assistants: KEYS}}
"""


def test_slos_inside_a_trimtab_yaml_are_followed_and_its_other_keys_are_not(tmp_path: Path):
    path = tmp_path / "trimtab.yaml"
    path.write_text(INLINE, encoding="utf-8")
    settings = load_settings(path).checked()
    assert (settings.slo_path, settings.slo_inline) == (str(path), True)
    assert settings.declaration.labels == (("team", "chat"),)
    assert settings.declaration.alerts.min_bad_events == 7
    path.write_text(INLINE.replace("2s", "1s").replace("127.0.0.1:1", "127.0.0.1:9"), encoding="utf-8")
    later = fresh(settings)
    assert later.slos[0].threshold_s == 1.0
    assert later.decode == settings.decode


def test_an_slo_file_that_a_trimtab_yaml_names_is_followed(tmp_path: Path):
    (tmp_path / "slo.yaml").write_text(GOOD, encoding="utf-8")
    path = tmp_path / "trimtab.yaml"
    path.write_text("version: 1\nmodels: {m: {decode: [http://127.0.0.1:1]}}\nslo_file: slo.yaml\n", encoding="utf-8")
    settings = load_settings(path).checked()
    assert (settings.slo_path, settings.slo_inline) == (str(tmp_path / "slo.yaml"), False)
    (tmp_path / "slo.yaml").write_text(OTHER, encoding="utf-8")
    assert len(read_declared(settings).slos) == 2


def test_a_process_that_starts_again_takes_the_file_as_it_is_now_unless_it_is_bad(tmp_path: Path):
    path = tmp_path / "slo.yaml"
    path.write_text(OTHER, encoding="utf-8")
    settings = replace(Settings(), declaration=load_slos(GOOD, "x"), slo_path=str(path))
    assert len(fresh(settings).slos) == 2
    path.write_text(BAD, encoding="utf-8")
    assert fresh(settings) == settings
    with pytest.raises(SpecError):
        read_declared(settings)


def test_a_reload_is_told_by_the_names_of_what_changed():
    before = load_slos(GOOD + "  - {name: gone, objective: success >= 99%}\n", "x")
    after = load_slos(OTHER + "  - {name: same, objective: success >= 90%}\n", "x")
    assert difference(before, after) == "new answers, same; changed ttft; gone gone; 0 as before"
    assert difference(after, after) == "3 as before"


# -- SIGHUP ------------------------------------------------------------------------------------------------------------


def hang_up(monkeypatch: pytest.MonkeyPatch, *, terminals: list[bool], ignored: bool = False) -> tuple[int, int]:
    """(times the file was read, times the process was told to end) of one SIGHUP. `terminals`: whether there is one, at
    the start and when the signal comes."""
    read, ended = [], []
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    answers = iter(terminals)
    monkeypatch.setattr(reload, "has_terminal", lambda: next(answers))
    monkeypatch.setattr(reload, "end_process", lambda: ended.append(1))

    async def scene() -> None:
        with reload.on_hangup(lambda: read.append(1)):
            os.kill(os.getpid(), signal.SIGHUP)
            while not read and not ended:
                await asyncio.sleep(0.01)

    try:
        asyncio.run(asyncio.wait_for(scene(), 20.0))
    finally:
        signal.signal(signal.SIGHUP, before)
    return len(read), len(ended)


@pytest.mark.parametrize(
    ("terminals", "ignored", "read"),
    [
        ([False, False], False, True),  # a service
        ([True, True], False, True),  # kill -HUP from elsewhere
        ([True, False], False, False),  # the terminal closed
        ([True, False], True, True),  # nohup
    ],
)
def test_a_hangup_reads_the_file_unless_it_is_that_of_the_terminal(monkeypatch, terminals, ignored, read: bool):
    assert hang_up(monkeypatch, terminals=terminals, ignored=ignored) == ((1, 0) if read else (0, 1))


# -- tenants -----------------------------------------------------------------------------------------------------------


def test_keys_of_tenants_come_from_the_environment_and_into_no_message(monkeypatch):
    monkeypatch.setenv("A", "sk-1, sk-2")
    monkeypatch.setenv("B", "sk-3")
    settings = Settings(tenants=(("assistants", "A"), ("batch", "B")))
    doors, _ = doors_of(settings)
    told = [doors.caller({b"authorization": f"Bearer {key}".encode()}).tenant for key in ("sk-1", "sk-2", "sk-3")]
    assert told == ["assistants", "assistants", "batch"]
    said = []
    for keys, why in (("sk-2", "assistants and batch have a key in common"), ("web:sk-4", "without another name")):
        monkeypatch.setenv("B", keys)
        with pytest.raises(StartError, match=why) as refused:
            doors_of(settings)
        said.append(str(refused.value))
    monkeypatch.delenv("B")
    with pytest.raises(StartError, match="variable B") as missing:
        doors_of(settings)
    assert "sk-" not in "".join(said) + str(missing.value)


def test_a_key_of_a_tenant_may_also_stand_in_the_file_of_keys(monkeypatch, tmp_path: Path):
    (tmp_path / "keys.txt").write_text("assistants:sk-2\nweb:sk-3\n", encoding="utf-8")
    monkeypatch.setenv("A", "sk-1")
    doors, kept = doors_of(Settings(tenants=(("assistants", "A"),), api_keys_file=str(tmp_path / "keys.txt")))
    told = [doors.caller({b"authorization": f"Bearer {key}".encode()}).tenant for key in ("sk-1", "sk-2", "sk-3")]
    assert kept is not None and told == ["assistants", "assistants", ""]


def test_a_tenant_that_nobody_names_is_refused_at_its_line(tmp_path: Path):
    text = INLINE.replace("2s}", "2s, match: {tenant: [assistants, asistants]}}")
    path = tmp_path / "trimtab.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SpecError) as refused:
        load_settings(path)
    (problem,) = refused.value.problems
    assert (problem.line, problem.code, problem.fix) == (5, "E211", "did you mean assistants?")
    settings = replace(
        Settings(decode=("http://h:1",)), declaration=load_slos(GOOD.replace("2s", "2s, match: {tenant: t}"), "x")
    )
    with pytest.raises(ValueError, match=r"router\.tenants"):
        settings.checked()
