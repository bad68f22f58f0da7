"""What both clients need to open a channel."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Callable
from typing import Any, NamedTuple

import grpc
from google.protobuf.message_factory import GetMessageClass

from rlaas_client._proto import ratelimit_pb2, reservation_pb2

_OPTIONS: list[tuple[str, Any]] = [
    # Balances calls over all addresses of a name.
    ("grpc.service_config", json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})),
    # Detects a server that disappeared without closing the connection.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # By default a name is asked again after 30 seconds at the earliest, and a server after two minutes at the latest.
    ("grpc.dns_min_time_between_resolutions_ms", 2_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # A client has connections of its own, not those of another one that waits before it connects again.
    ("grpc.use_local_subchannel_pool", 1),
    # The connection stays without calls: the next one has no time to connect.
    ("grpc.client_idle_timeout_ms", 2**31 - 1),
]


class Endpoint(NamedTuple):
    """A target of gRPC, and the authority, certificate and key of TLS."""

    target: str
    tls: tuple[bytes | None, bytes | None, bytes | None] | None


class Channel(NamedTuple):
    """A channel, with its methods by their names."""

    channel: Any
    methods: dict[str, Callable[..., Any]]


def endpoint(address: str, ca: bytes | None, certificate: bytes | None, private_key: bytes | None) -> Endpoint:
    """Parses an address. Without a scheme it has TLS if certificates are set."""
    has_certificates = ca is not None or certificate is not None
    if (certificate is None) != (private_key is None):
        raise ValueError("certificate and private_key must be set together")
    form = re.fullmatch(r"(?:(https?)://|dns:///)?([^/\s]+:\d+)/?|(unix:.+)", address)
    if form is None:
        raise ValueError("address must be host:port, http(s)://host:port, dns:///name:port or unix:/path")
    if has_certificates and (form[1] == "http" or form[3]):
        raise ValueError("address must begin with https:// if certificates are set")
    for name, pem in (("ca", ca), ("certificate", certificate)):
        try:
            if pem is not None:
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem.decode("ascii", "ignore"))
        except (OSError, ValueError) as error:
            raise ValueError(f"{name} must be certificates in PEM") from error
    tls = (ca, private_key, certificate) if form[1] == "https" or has_certificates else None
    return Endpoint(form[3] or "dns:///" + form[2], tls)


def open_channel(module: Any, endpoint: Endpoint) -> Channel:
    """Opens a channel of `module`, which is grpc or grpc.aio. Starts gRPC, which does not survive a fork."""
    target, tls = endpoint
    # gRPC would send the path of a Unix socket as the authority, which is not valid.
    authority = [("grpc.default_authority", "localhost")] if target.startswith("unix:") else []
    options = _OPTIONS + authority
    if tls is None:
        channel = module.insecure_channel(target, options)
    else:
        channel = module.secure_channel(target, grpc.ssl_channel_credentials(*tls), options)
    services = [ratelimit_pb2.DESCRIPTOR.services_by_name, reservation_pb2.DESCRIPTOR.services_by_name]
    methods = {}
    for method in (method for named in services for service in named.values() for method in service.methods):
        request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        path = f"/{method.containing_service.full_name}/{method.name}"
        methods[method.name] = channel.unary_unary(path, request.SerializeToString, response.FromString)
    return Channel(channel, methods)
