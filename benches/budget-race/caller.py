"""A caller, which asks until it was refused twice in a row. Writes its refusals to standard output.

Usage: caller.py SETTINGS, which are JSON: number, seed, gateways, model, adapter (whether it holds by itself, and the
gateways are rlaas), and die: the number of a call and the point in it where this process kills itself.
"""

import asyncio
import json
import os
import random
import signal
import sys
import time

import httpx
from model import TOKENS_OF_MESSAGE

from rlaas_client import AsyncClient
from rlaas_client.llm import AsyncBudget, Refused

MAX_TOKENS = (2000, 8000, 16000)
REFUSALS = 2
# Longer than a hold of 30 s. Whoever is told to wait for longer tries again after a second.
MAX_WAIT = 35
FAILURES = 100


class Refusal(Exception):
    """A call that the budget does not allow, with the seconds to wait."""


class Caller:
    """The plans of a caller, by its number and the seed, and how it makes its calls."""

    def __init__(self, settings):
        self.number, self.die = settings["number"], settings.get("die")
        self.random = random.Random(f"{settings['seed']}/{self.number}")
        self.gateways, self.model = settings["gateways"], settings["model"]
        self.gateway = self.number % len(self.gateways)
        self.calls = 0
        self.http = httpx.AsyncClient(timeout=60)
        self.budgets = []
        if settings["adapter"]:
            clients = [AsyncClient(address, timeout=5, on_no_answer="deny") for address in self.gateways]
            self.budgets = [AsyncBudget(client) for client in clients]

    async def run(self):
        refusals = failures = 0
        while refusals < REFUSALS and failures < FAILURES:
            self.calls += 1
            self.plan()
            try:
                await (self.ask_by_adapter() if self.budgets else self.ask(f"{self.gateways[self.gateway]}/v1"))
                refusals = failures = 0
            except Refusal as refusal:
                refusals += 1
                self.tell("refused")
                wait = refusal.args[0]
                await asyncio.sleep(wait if 0 < wait <= MAX_WAIT else self.random.uniform(0.5, 1.5))
            except (OSError, httpx.HTTPError):
                failures += 1
                self.tell("failed")
                self.gateway = (self.gateway + 1) % len(self.gateways)
                await asyncio.sleep(0.2)
        self.tell("ended")

    def plan(self):
        draw = self.random
        words, self.most, is_long = draw.randint(100, 500), draw.choice(MAX_TOKENS), draw.random() < 0.3
        output = int(self.most * (draw.uniform(0.5, 1) if is_long else draw.uniform(0.05, 0.5)))
        self.estimate, self.actual = words + TOKENS_OF_MESSAGE, words + TOKENS_OF_MESSAGE + output
        content = " ".join([f"{self.number}-{self.calls}:{output}", *["word"] * (words - 1)])
        self.body = {"model": "fake", "messages": [{"role": "user", "content": content}], "max_tokens": self.most}
        if draw.random() < 0.75:
            self.body |= {"stream": True, "stream_options": {"include_usage": True}}

    async def ask_by_adapter(self):
        budget = self.budgets[self.gateway]
        attributes = {"team": "race"}
        try:
            async with budget.call(
                "race", estimate=self.estimate, max_tokens=self.most, attributes=attributes
            ) as call:
                await self.ask(f"{self.model}/v1", call)
        except Refused as refused:
            if refused.status == 429:
                raise Refusal(refused.retry_after or 0) from refused
            raise OSError(str(refused)) from refused

    async def ask(self, base, call=None):
        headers = {"authorization": "Bearer sk-race"}
        self.die_at("begin", call is not None)
        async with self.http.stream("POST", f"{base}/chat/completions", json=self.body, headers=headers) as response:
            self.die_at("begin")
            if response.status_code == 429:
                raise Refusal(float(response.headers.get("retry-after", 0)))
            if response.status_code != 200:
                raise OSError(response.status_code)
            if not self.body.get("stream"):
                answer = json.loads(await response.aread())
                if call is not None:
                    call.usage(answer)
            else:
                chunks = response.aiter_bytes()
                async for _ in call.stream(chunks) if call is not None else chunks:
                    self.die_at("middle")
            self.die_at("end")

    def die_at(self, point, is_there=True):
        if self.die and is_there and self.calls >= self.die[0] and point == self.die[1]:
            self.tell("died")
            os.kill(os.getpid(), signal.SIGKILL)

    def tell(self, event):
        told = {"event": event, "at": time.time(), "actual": self.actual, "most": self.estimate + self.most}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    asyncio.run(Caller(json.loads(sys.argv[1])).run())
