"""The programs as a test runs them: each on a free port of the loopback, in a folder of its own, ended at the end."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any, TypeVar

import yaml

from trimtab.installation import free_port

READY_S = 40.0
T = TypeVar("T")


@dataclass(frozen=True)
class Programs:
    """Paths."""

    prometheus: str
    promtool: str
    alertmanager: str
    amtool: str
    home: Path
    """Where Alertmanager is started, for unpacked it looks for its templates there."""

    def check_rules(self, path: Path) -> str:
        """What promtool says of a rule file; fails the test where it finds something, be it a warning."""
        done = run(self.promtool, "check", "rules", str(path))
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def test_rules(self, path: Path) -> None:
        """Run a file of promtool's unit tests."""
        done = run(self.promtool, "test", "rules", str(path))
        assert done.returncode == 0, done.stdout + done.stderr


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def until(ask: Callable[[], T], within_s: float, what: str) -> T:
    """What `ask` returns as soon as it is something; fails with `what` if that takes too long."""
    ends = monotonic() + within_s
    while True:
        found = ask()
        if found:
            return found
        assert monotonic() < ends, f"not within {within_s:g} s: {what}"
        sleep(0.2)


def get(url: str) -> tuple[int, bytes]:
    """Status (0: nobody answers) and body."""
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError:
        return 0, b""


@dataclass(frozen=True)
class Prometheus:
    """One that runs."""

    url: str

    def ask(self, path: str, **parameters: str) -> Any:
        """`data` of an answer of its API."""
        status, body = get(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}")
        document = json.loads(body or b"{}")
        assert status == 200 and document["status"] == "success", (path, parameters, body[:500])
        return document["data"]

    def query(self, expr: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each sample now."""
        found = self.ask("query", query=expr)["result"]
        return [(sample["metric"], float(sample["value"][1])) for sample in found]

    def value(self, expr: str) -> float:
        """Of the one sample that there has to be."""
        found = self.query(expr)
        assert len(found) == 1, (expr, found)
        return found[0][1]


@dataclass(frozen=True)
class Alertmanager:
    """One that runs."""

    url: str
    amtool: str

    def alerts(self, *matchers: str) -> list[dict[str, Any]]:
        """As amtool shows them."""
        done = run(self.amtool, "alert", "query", *matchers, f"--alertmanager.url={self.url}", "--output=json")
        assert done.returncode == 0, done.stderr
        return list(json.loads(done.stdout or "[]"))

    def post(self, alerts: object) -> tuple[int, str]:
        """Alerts to its API, version 2: status and answer."""
        body = json.dumps(alerts).encode()
        request = urllib.request.Request(
            f"{self.url}/api/v2/alerts", body, {"Content-Type": "application/json"}, method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@contextmanager
def prometheus(programs: Programs, folder: Path, config: Mapping[str, object]) -> Iterator[Prometheus]:
    """Runs on `config`, exemplars kept."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(dict(config), sort_keys=False), encoding="utf-8")
    url = f"http://127.0.0.1:{free_port()}"
    command = [
        programs.prometheus,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={url.removeprefix('http://')}",
        "--enable-feature=exemplar-storage",
    ]
    with _running(command, folder / "prometheus.log", f"{url}/-/ready"):
        yield Prometheus(url)


@contextmanager
def alertmanager(programs: Programs, folder: Path, config: Mapping[str, object]) -> Iterator[Alertmanager]:
    """Runs on `config`, alone."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(dict(config), sort_keys=False), encoding="utf-8")
    url = f"http://127.0.0.1:{free_port()}"
    command = [
        programs.alertmanager,
        f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={folder / 'data'}",
        f"--web.listen-address={url.removeprefix('http://')}",
        "--cluster.listen-address=",
    ]
    with _running(command, folder / "alertmanager.log", f"{url}/-/ready", programs.home):
        yield Alertmanager(url, programs.amtool)


@contextmanager
def _running(command: list[str], log: Path, ready: str, folder: Path | None = None) -> Iterator[None]:
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=folder)
    try:
        ends = monotonic() + READY_S
        while get(ready)[0] != 200:
            alive = process.poll() is None and monotonic() < ends
            assert alive, f"{command[0]} did not become ready:\n{log.read_text(errors='replace')[-3000:]}"
            sleep(0.1)
        yield
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
