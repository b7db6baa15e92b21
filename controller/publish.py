"""A policy becomes a publication: one immutable object with the next version, which routers swap by
reference."""

from __future__ import annotations

from dataclasses import replace

from router.policy import Policy, Publication


def published(before: Publication, policy: Policy) -> Publication:
    """The next publication, with `policy` as its main arm. Everything else stays as it was."""
    return replace(before, version=before.version + 1, arms={**before.arms, "main": policy})
