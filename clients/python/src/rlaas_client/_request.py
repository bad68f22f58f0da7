"""Requests, whose bounds are those of ratelimit.proto.

They are checked before they are sent: the policy must not decide one that no server would.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any

from rlaas_client._proto.ratelimit_pb2 import CheckRequest

Attributes = Mapping[str, str] | None
Costs = Mapping[str, int] | None


class Error(Exception):
    """A call is not valid, or the server rejected it; or, as an argument of a policy, did not answer it."""

    def __init__(self, code: str, message: str, reason: str = "") -> None:
        super().__init__(code, message, reason)
        # The reason is that of the server's ErrorInfo. The code OVERLOADED is of the client itself.
        self.code, self.message, self.reason = code, message, reason

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


def new_request(
    user_id: str,
    resource: str,
    attributes: Attributes,
    cost: int,
    costs: Costs = None,
    request_id: str = "",
    at_least: int = 0,
) -> CheckRequest:
    """Creates a request. Raises `Error` if a field is out of its bounds."""
    _check_text("user_id", user_id, 1, 1024)
    _check_text("resource", resource, 0, 1024)
    for name, value in _entries("attributes", attributes, 32):
        _check_text("attributes: name", name, 1, 64)
        _check_text("attributes: value", value, 0, 1024)
    check_units("cost", cost)
    check_costs("costs", costs)
    check_units("at_least", at_least)
    if at_least > cost:
        raise Error("INVALID_ARGUMENT", "at_least must be 0 to the cost")
    _check_text("request_id", request_id, 0, 64)
    return CheckRequest(
        user_id=user_id,
        resource=resource,
        attributes=attributes,
        cost=cost,
        costs=costs,
        request_id=request_id,
        at_least=at_least,
    )


def check_units(field: str, units: int) -> None:
    """Raises `Error` if a number of units is out of its bounds."""
    if not isinstance(units, Integral) or isinstance(units, bool) or not 0 <= units < 2**32:
        raise Error("INVALID_ARGUMENT", f"{field} must be a whole number from 0 to {2**32 - 1}")


def check_costs(field: str, costs: Costs) -> None:
    """Raises `Error` if units by rule are out of their bounds."""
    for rule, units in _entries(field, costs, 64):
        _check_text(f"{field}: rule", rule, 0, 1024)
        check_units(field, units)


def _check_text(field: str, text: str, least: int, most: int) -> None:
    try:
        size = len(text.encode())
    except (AttributeError, UnicodeEncodeError):
        size = -1
    if not least <= size <= most:
        raise Error("INVALID_ARGUMENT", f"{field} must be text of {least} to {most} bytes of UTF-8")


def _entries(field: str, entries: Mapping[str, Any] | None, most: int) -> Iterable[tuple[str, Any]]:
    if entries is None:
        return ()
    if not isinstance(entries, Mapping) or len(entries) > most:
        raise Error("INVALID_ARGUMENT", f"{field} must be a mapping of at most {most} entries")
    return entries.items()
