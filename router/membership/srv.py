"""Asks for SRV records, which the system's resolver has no call for, through dnspython.

Needs `pip install 'trimtab[dns]'`; who follows none need not import this module. Servers and search domains are those
of /etc/resolv.conf.
"""

from __future__ import annotations

from collections.abc import Sequence

import dns.asyncresolver
import dns.exception
import dns.resolver

from .dns import TIMEOUT_S, Srv


class SrvResolver:
    """Of one process."""

    def __init__(self, resolver: dns.asyncresolver.Resolver | None = None) -> None:
        self._resolver = resolver

    async def records(self, name: str) -> Sequence[Srv]:
        """The SRV records of a name. Raises OSError."""
        try:
            if self._resolver is None:
                self._resolver = dns.asyncresolver.Resolver()
            found = await self._resolver.resolve(name, "SRV", lifetime=TIMEOUT_S, search=True)
        except dns.exception.DNSException as error:
            raise OSError(0, _told(error)) from None
        return [Srv(each.priority, each.weight, each.port, each.target.to_text()) for each in found]


def _told(error: dns.exception.DNSException) -> str:
    if isinstance(error, dns.resolver.NXDOMAIN):
        return "there is no such name"
    if isinstance(error, dns.resolver.NoAnswer):
        return "it has no SRV records"
    if isinstance(error, dns.exception.Timeout):
        return f"no answer in {TIMEOUT_S:g} s"
    return f"no server can tell ({type(error).__name__})"
