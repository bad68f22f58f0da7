"""Checks the rate limit of each user id on standard input. Run: yes alice | head -6 | python examples/check.py

The argument is the address of the server. DEADLINE_MS is the timeout of a call, generous for a first try.
"""

import math
import os
import sys

from rlaas_client import Client, Verdict


def outcome(verdict: Verdict) -> str:
    if verdict.reason == "NO_ANSWER":
        return "no response: allowed"
    if verdict.reason in ("STORE_UNAVAILABLE", "NOT_READY", "OVERLOADED"):
        return f"503 Service Unavailable, {verdict.reason}"
    if verdict.allowed:
        return f"allowed, {verdict.remaining} left"
    if verdict.retry_after is not None:
        return f"429 Too Many Requests, Retry-After: {math.ceil(verdict.retry_after)}"
    # Waiting does not help: the cost is above the limit, or the limit is 0.
    return f"403 Forbidden, {verdict.reason}"


address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051"
timeout = int(os.environ.get("DEADLINE_MS", "5000")) / 1000
with Client(address, timeout=timeout, retries=1) as client:
    for line in sys.stdin:
        user = line.rstrip("\n")
        print(f"{user}: {outcome(client.check(user))}", flush=True)
