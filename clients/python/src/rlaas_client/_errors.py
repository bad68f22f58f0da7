"""Errors of gRPC: their reasons, and what they mean to who runs the program."""

from __future__ import annotations

import re
from typing import Any

import grpc
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from rlaas_client._proto.ratelimit_pb2 import CheckResponse, CheckResult
from rlaas_client._request import Error

_CODES: dict[int, str] = {code.value[0]: code.name for code in grpc.StatusCode}

_NO_GRPC = "{0} does not answer gRPC: address must be one of server.listen, "
_UNTRUSTED = "the certificate of {0} is not trusted: "
# What gRPC says where a setting is wrong, and what to say. {1} is the address without its scheme, {2} the group.
_MISTAKES = {
    "^(?:UNAUTHENTICATED|PERMISSION_DENIED): (.*)": "{0} refuses token, api_key or certificate: {2}",
    "CERTIFICATE_VERIFY_FAILED: ([^:]*)": _UNTRUSTED + "{2}, ca must be that of its authority",
    "Hostname Verification": _UNTRUSTED + "it is for another host name",
    "WRONG_VERSION_NUMBER": "{0} does not speak TLS: try http://{1}",
    "security handshaker": "private_key must be that of certificate, in PEM",
    "TSI_|andshake": _NO_GRPC + "with certificate and private_key if it requires a client certificate",
    "last error.*(?:Socket closed|http1)": _NO_GRPC + "https://{1} with ca if it requires TLS",
}


def from_grpc(error: grpc.RpcError) -> Error:
    """Converts the error of a call."""
    # The type differs between the two clients, and from its stub.
    metadata: Any = error.trailing_metadata()
    details = next((value for name, value in metadata or () if name == "grpc-status-details-bin"), b"")
    return Error(error.code().name, error.details() or "", _reason(Status.FromString(details)))


def from_result(result: CheckResult) -> CheckResponse | Error:
    """Returns the response to a request of a batch, or converts its error."""
    status = result.error
    if result.HasField("response"):
        return result.response
    return Error(_CODES.get(status.code, "UNKNOWN"), status.message, _reason(status))


def _reason(status: Status) -> str:
    info = ErrorInfo()
    found = any(detail.Unpack(info) for detail in status.details)
    return info.reason if found and info.domain == "rlaas" else ""


def explain(error: Error, address: str) -> tuple[str, bool]:
    """Returns the text for the log, and whether the cause is a wrong setting."""
    for pattern, text in _MISTAKES.items():
        if found := re.search(pattern, str(error)):
            return text.format(address, address.rpartition("/")[2], *found.groups()), True
    if "Connection refused" in error.message:
        return f"no server at {address}: connection refused (is `rlaas serve` running?)", False
    return f"no answer from {address}: {error}", False
