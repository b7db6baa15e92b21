"""The API keys of an installation's clients, from what its settings name: variables, and a file that may change."""

from __future__ import annotations

import logging
import secrets
from pathlib import Path

from router.doors import BadKeys, Doors, read_keys, read_tenant_keys
from router.key_file import KeyFile

from .processes import StartError, secret_from_env
from .settings import Settings

log = logging.getLogger("trimtab.keys")


def doors_of(settings: Settings) -> tuple[Doors, KeyFile | None]:
    """The keys in force, and what keeps them as their file says. Raises StartError, which shows none."""
    try:
        fixed = []
        text = secret_from_env(settings.api_keys_env)
        if text:
            fixed += read_keys(text, settings.api_keys_env)
        for tenant, variable in settings.tenants:
            fixed += read_tenant_keys(secret_from_env(variable) or "", tenant, variable)
        doors = Doors(fixed, secrets.token_bytes(32), [tenant for tenant, _ in settings.tenants])
        if not settings.api_keys_file:
            return doors, None
        key_file = KeyFile(Path(settings.api_keys_file), doors, fixed)
        key_file.load()
    except BadKeys as error:
        raise StartError(str(error)) from None
    log.info("%s: API keys in force: %d", settings.api_keys_file, len(doors))
    return doors, key_file
