"""What the processes of one installation share: settings on disk, the installation's secret, sockets,
logging."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import secrets
import socket
import sys
import tempfile
from pathlib import Path

from pydantic import TypeAdapter

from .settings import Settings

log = logging.getLogger("trimtab")

BACKLOG = 2048
EXIT_SETTINGS = 3
"""A child that ends with this code was told something that a restart does not mend."""


class StartError(Exception):
    """A process cannot start; the message says what to change."""


def state_dir(settings: Settings) -> Path:
    """The installation's folder, made if need be."""
    folder = Path(settings.state_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StartError(f"state directory {folder}: {error.strerror}; give another with --state-dir") from None
    return folder


def save_settings(settings: Settings) -> Path:
    """Write the effective settings for the child processes. They hold no secrets but what an operator has put into a
    URL, so nobody else may read them. Where the state directory takes nothing (full, read-only) they go to a folder of
    this start."""
    path = state_dir(settings) / "settings.json"
    text = json.dumps(dataclasses.asdict(settings), indent=1) + "\n"
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            os.fchmod(handle, 0o600)
            file.write(text)
        return path
    except OSError as error:
        log.error("%s: %s; serving all the same, and nothing will outlive this start", path, error.strerror)
    spare = Path(tempfile.mkdtemp(prefix="trimtab-")) / "settings.json"
    try:
        spare.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StartError(f"{path} and {spare}: {error.strerror}; free the disk") from None
    return spare


def read_settings(path: Path) -> Settings:
    """What `save_settings` wrote."""
    try:
        return TypeAdapter(Settings).validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise StartError(f"{path}: not the settings of an installation ({type(error).__name__})") from None


def installation_secret(folder: Path) -> bytes:
    """The key of this installation's hashes; made once, readable by its owner only. Without one that lasts, a fresh one
    serves: then conversations are not recognised after a restart."""
    path = folder / "secret"
    fresh = secrets.token_bytes(32)
    try:
        known = path.read_bytes()
        if len(known) == 32:
            return known
        log.error("%s is damaged; another key takes its place, conversations begin anew", path)
    except FileNotFoundError:
        pass
    except OSError as error:
        log.error("%s: %s; a key of this process alone serves, conversations begin anew", path, error.strerror)
        return fresh
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(fresh)
    except OSError as error:
        log.error("%s: %s; conversations are not recognised after a restart", path, error.strerror)
    return fresh


def secret_from_env(name: str) -> str | None:
    """A secret by the name of its variable; None if none is named. Raises StartError if it is named and
    missing."""
    if not name:
        return None
    value = os.environ.get(name)
    if not value:
        raise StartError(f"the environment variable {name} is named in the settings and not set")
    return value


def admin_url(settings: Settings) -> str:
    """Where the control process listens."""
    host = f"[{settings.admin_host}]" if ":" in settings.admin_host else settings.admin_host
    return f"http://{host}:{settings.admin_port}"


def bound_socket(host: str, port: int, what: str) -> socket.socket:
    """A listening address, or a StartError that says who is in the way."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)  # now: two processes can bind one port, only one can listen
    except OSError as error:
        listener.close()
        raise StartError(f"{what} cannot listen on {host}:{port}: {error.strerror}; choose another port") from None
    return listener


def set_up_logging(process: str) -> None:
    """One line an event on standard error."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format=f"%(asctime)s {process} %(levelname)s %(name)s: %(message)s",
    )
    for noisy in ("uvicorn.access", "apscheduler", "httpx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
