"""Asks rlaas, for each user id on standard input: may this request pass?"""

import math
import os
import sys

import grpc
from ratelimit_pb2 import CheckRequest, CheckResponse
from ratelimit_pb2_grpc import RateLimitServiceStub

# The longest that a request waits for its answer. Generous for a first try: in production, where
# connections are warm, 20 ms are plenty, and a late answer is worth no more than none.
DEADLINE_SECONDS = int(os.environ.get("DEADLINE_MS", "5000")) / 1000

# What a request meets when there is no answer. Yours to decide: let it pass, and there is no limit
# for that long, or turn it away, and an outage of the limits is an outage of yours.
PASSES_WITHOUT_ANSWER = True

# Bugs of ours: don't hide them behind the policy. Any other error, UNAVAILABLE and
# DEADLINE_EXCEEDED above all, is no answer.
BUGS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
}

OPTIONS = [
    # All addresses of the name take turns: the pods of a headless Service, for one.
    ("grpc.service_config", '{"loadBalancingConfig": [{"round_robin": {}}]}'),
    # A server that vanished without a word is noticed.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 1_000),
]


def ask(limits: RateLimitServiceStub, user_id: str) -> str:
    """Asks once. Never again for the same request: a call that was sent may have counted."""
    try:
        response = limits.Check(CheckRequest(user_id=user_id), timeout=DEADLINE_SECONDS)
    except grpc.RpcError as error:
        if error.code() in BUGS:
            raise
        outcome = "it passes" if PASSES_WITHOUT_ANSWER else "503 Service Unavailable"
        return f"no answer ({error.code().name}): {outcome}"
    if response.allowed:
        return f"allowed, {response.remaining} left"
    if response.HasField("retry_after"):
        wait = math.ceil(response.retry_after.ToTimedelta().total_seconds())
        return f"429 Too Many Requests, Retry-After: {wait}"
    # Waiting does not help: the cost is above the limit, or the limit is 0.
    return f"403 Forbidden, {CheckResponse.Reason.Name(response.reason)}"


def main() -> None:
    target = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051"
    # A path would be sent as the authority of a Unix domain socket: it is no valid one.
    beside = [("grpc.default_authority", "localhost")] if target.startswith("unix:") else []
    # One channel for the whole process, for all its threads: it connects again by itself.
    with grpc.insecure_channel(target, OPTIONS + beside) as channel:
        limits = RateLimitServiceStub(channel)
        for line in sys.stdin:
            user_id = line.rstrip("\n")
            print(f"{user_id}: {ask(limits, user_id)}", flush=True)


if __name__ == "__main__":
    main()
