"""Checks the rate limit of each user id on standard input."""

import json
import math
import os
import sys
import uuid

import grpc
from ratelimit_pb2 import CheckRequest, CheckResponse
from ratelimit_pb2_grpc import RateLimitServiceStub

# Deadline of a call. The default is generous for a first try. In production, with established
# connections, 20 ms is enough.
DEADLINE_SECONDS = int(os.environ.get("DEADLINE_MS", "5000")) / 1000

# What to do without a response. True allows the request: during an outage of rlaas there is no
# limit. False rejects it: an outage of rlaas is an outage of your service.
FAIL_OPEN = True

# Errors caused by this client: raise them. After any other error, usually UNAVAILABLE or
# DEADLINE_EXCEEDED, FAIL_OPEN applies.
CLIENT_ERRORS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
}

SERVICE_CONFIG = {
    # Balance calls over all addresses of the name, such as the pods of a headless Service.
    "loadBalancingConfig": [{"round_robin": {}}],
    # Repeat a call without an answer within its deadline. The request id makes that safe.
    # (gRPC for Python has no hedging.)
    "methodConfig": [
        {
            "name": [{"service": "ratelimit.v1.RateLimitService", "method": "Check"}],
            "retryPolicy": {
                "maxAttempts": 3,
                "initialBackoff": "0.005s",
                "maxBackoff": "0.02s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ],
    # If many calls fail, repeat none.
    "retryThrottling": {"maxTokens": 10, "tokenRatio": 0.1},
}

OPTIONS = [
    ("grpc.service_config", json.dumps(SERVICE_CONFIG)),
    # Detect a server that disappeared without closing the connection.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 1_000),
]


def check(limits: RateLimitServiceStub, user_id: str) -> str:
    """Sends one call, with a new request id: however often gRPC repeats it, it takes one unit.

    Make the id here. Never copy it from a client of yours, who could then pass without paying.
    """
    request = CheckRequest(user_id=user_id, request_id=uuid.uuid4().hex)
    try:
        response = limits.Check(request, timeout=DEADLINE_SECONDS)
    except grpc.RpcError as error:
        if error.code() in CLIENT_ERRORS:
            raise
        outcome = "allowed" if FAIL_OPEN else "503 Service Unavailable"
        return f"no response ({error.code().name}): {outcome}"
    if response.allowed:
        return f"allowed, {response.remaining} left"
    if response.HasField("retry_after"):
        wait = math.ceil(response.retry_after.ToTimedelta().total_seconds())
        return f"429 Too Many Requests, Retry-After: {wait}"
    # Waiting does not help: the cost is above the limit, or the limit is 0.
    return f"403 Forbidden, {CheckResponse.Reason.Name(response.reason)}"


def main() -> None:
    target = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051"
    # gRPC would send the path of a Unix domain socket as the authority, which is not valid.
    authority = [("grpc.default_authority", "localhost")] if target.startswith("unix:") else []
    # One channel for all threads of the process. It reconnects automatically.
    with grpc.insecure_channel(target, OPTIONS + authority) as channel:
        limits = RateLimitServiceStub(channel)
        for line in sys.stdin:
            user_id = line.rstrip("\n")
            print(f"{user_id}: {check(limits, user_id)}", flush=True)


if __name__ == "__main__":
    main()
