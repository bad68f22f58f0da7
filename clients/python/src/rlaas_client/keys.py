"""Keys by which the middleware limits requests: the client, and what else rules match.

A key function gets a request and returns a `Key`, or the user id alone, or None for a request that is exempt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any


@dataclass(frozen=True, slots=True)
class Request:
    """A request of HTTP, whether it came by ASGI or WSGI."""

    method: str
    path: str
    peer: str | None  # Address of the peer; None if it has none, as on a Unix socket.
    header_lines: Callable[[str], list[str]]  # Values of all header lines with a name in lower case.
    raw: Mapping[str, Any]  # Scope of ASGI or environ of WSGI.

    def header(self, name: str) -> str | None:
        """Returns the value of the first header line with a name."""
        return next(iter(self.header_lines(name.lower())), None)


@dataclass(frozen=True, slots=True)
class Key:
    """The parts of a request that rules match."""

    user_id: str
    resource: str | None = None  # By default the path.
    attributes: Mapping[str, str] = field(default_factory=dict)
    cost: int = 1


KeyFunction = Callable[[Request], Key | str | None]


class NoKey(Exception):
    """A request lacks what has the key. It is refused as invalid."""


class NoPeer(Exception):
    """A request has no address to limit by: its connection has ended, or the server listens on a Unix socket."""


def address(proxies: int = 0, forwarded_header: str = "x-forwarded-for") -> KeyFunction:
    """Limits by the address of the client; an IPv6 address by its /64, which is one site.

    Each of `proxies` trusted proxies appends the address of its own peer to a header. What clients wrote into it
    themselves is ignored. Without any the header is not read.
    """

    def key(request: Request) -> str:
        lines = ",".join(request.header_lines(forwarded_header.lower())) if proxies else ""
        entries = lines.split(",")
        client = _ip(entries[-proxies].strip()) if 0 < proxies <= len(entries) else None
        if client is None:
            if not request.peer:
                raise NoPeer("the peer has no address: set proxies, or limit by another key")
            client = _ip(request.peer)
        # A server may have names for peers, as those of tests have.
        return _network(client) if client is not None else str(request.peer)

    return key


PEER = address()


def header(name: str) -> KeyFunction:
    """Limits by the value of a header. A request without it is refused as invalid."""

    def key(request: Request) -> str:
        value = request.header(name)
        if not value or not value.isascii() or not value.isprintable():
            raise NoKey(f"header {name.lower()} must be present, in visible ASCII")
        return value

    return key


def _ip(text: str) -> IPv4Address | IPv6Address | None:
    """Parses an IP address, with or without a port."""
    with_port = re.fullmatch(r"(?:\[(.+)\]|([^:]+)):\d{1,5}", text)
    try:
        return ip_address((with_port[1] or with_port[2]) if with_port else text)
    except ValueError:
        return None


def _network(client: IPv4Address | IPv6Address) -> str:
    of_version_4 = client if isinstance(client, IPv4Address) else client.ipv4_mapped
    return f"{IPv6Address(int(client) >> 64 << 64)}/64" if of_version_4 is None else str(of_version_4)
