"""Measures what ten users at once are charged: with reservations, and with looks and reports.

Usage: load.py [SECONDS [ADDRESS OF RLAAS]]. Exit code 1 if reservations overspend.
"""

import asyncio
import json
import random
import sys
import time
import uuid

from gateway import Gateway, Message
from limits import RESOURCE, Completion, Limits, Reservation, check_request, check_verdict, connect

# The bucket of load.yaml.
RATE = 500
BURST = 1000
HOLD_SECONDS = 4
USERS = 10


class LooksAndReports(Limits):
    """Limits without reservations: a look before the work, a report after it."""

    async def reserve(self, completion: Completion) -> Reservation:
        look = check_request(completion, completion.usage(0))
        look.cost = 0
        look.costs.clear()
        check_verdict(await self.checks.Check(look))
        return Reservation(self, completion)


class Load:
    """Users who ask the gateway again and again, and the tokens that they are charged."""

    def __init__(self, limits: Limits, seconds: float) -> None:
        self._gateway = Gateway(limits)
        self._project = uuid.uuid4().hex  # New, so its bucket is full.
        self._start = time.monotonic()
        self._end = self._start + seconds
        self.charged = 0
        self.ahead = 0.0

    async def run(self) -> None:
        """Lets users ask until the end, then waits for the completions that were let in."""
        await asyncio.gather(*(self._ask(f"user{number}") for number in range(USERS)))

    async def _ask(self, user_id: str) -> None:
        numbers = random.Random(user_id)
        asked = 0
        while time.monotonic() < self._end:
            answered, tokens = await self._complete(user_id, asked, numbers.randint(100, 900))
            asked += 1
            if tokens == 0:
                # Nobody waits for Retry-After: the hardest load.
                await asyncio.sleep(numbers.uniform(0.05, 0.15))
            elif answered < self._end:
                self.charged += tokens
                granted = BURST + RATE * (time.monotonic() - self._start)
                self.ahead = max(self.ahead, self.charged - granted)

    async def _complete(self, user_id: str, number: int, max_tokens: int) -> tuple[float, int]:
        """Calls the gateway as a server does. Returns when it answered, and the tokens."""
        content = {"messages": [{"content": f"{user_id} {number}"}], "max_tokens": max_tokens}
        requests = [{"type": "http.request", "body": json.dumps(content).encode()}]
        answered, tokens = 0.0, 0

        async def receive() -> Message:
            if not requests:
                await asyncio.Event().wait()
            return requests.pop()

        async def send(message: Message) -> None:
            nonlocal answered, tokens
            if message["type"] == "http.response.start":
                answered = time.monotonic()
            elif b'"usage"' in message["body"]:
                usage = json.loads(message["body"].removeprefix(b"data: "))["usage"]
                tokens = usage["total_tokens"]

        headers = [(b"x-user-id", user_id.encode()), (b"x-project", self._project.encode())]
        scope = {"type": "http", "method": "POST", "path": RESOURCE, "headers": headers}
        await self._gateway(scope, receive, send)
        return answered, tokens


async def main() -> None:
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    granted = BURST + RATE * seconds
    async with connect(sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1:50051") as channel:
        reserved = Load(Limits(channel, HOLD_SECONDS), seconds)
        looked = Load(LooksAndReports(channel, HOLD_SECONDS), seconds)
        await asyncio.gather(reserved.run(), looked.run())
    print(f"{seconds} s of the bucket: {granted} tokens")
    for name, load in [("with reservations", reserved), ("looks and reports", looked)]:
        print(f"{name}: {load.charged} charged, {load.ahead:.0f} ahead of the bucket at most")
    if reserved.charged > granted or reserved.ahead > 0:
        sys.exit("reservations have overspent")


if __name__ == "__main__":
    asyncio.run(main())
