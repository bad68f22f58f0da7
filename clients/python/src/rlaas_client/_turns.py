"""Requests that wait in place of a refusal."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rlaas_client._base import BaseClient, Steps
from rlaas_client.verdict import Verdict

# Most requests of a route that wait.
MAX_WAITING = 100
# Pause of a request that is refused for what others hold, who may settle at any time.
HELD_PAUSE = 0.05
# Pause of a request for each one before it.
TURN_PAUSE = 0.01


class Turns:
    """The requests of a route that wait, those with one key in turn."""

    def __init__(self) -> None:
        # Appending and removing are atomic.
        self._waiting: list[tuple[bytes, object]] = []

    async def decide(
        self, client: BaseClient[Any, Any], wait: float, key: bytes, attempt: Callable[[], Steps[Verdict]]
    ) -> Verdict:
        """Attempts a decision, and again until the request is allowed, for at most this time to wait."""
        if len(self._waiting) >= MAX_WAITING:
            return await attempt()
        until, mine = time.monotonic() + wait, (key, object())
        self._waiting.append(mine)
        try:
            while (left := until - time.monotonic()) > 0 and (before := self._before(mine)):
                await client._pause(min(TURN_PAUSE * before, left))
            while True:
                verdict = await attempt()
                pause = _pause(verdict, until - time.monotonic())
                if pause <= 0:
                    return verdict
                await client._pause(pause)
        finally:
            self._waiting.remove(mine)

    def _before(self, mine: tuple[bytes, object]) -> int:
        waiting = self._waiting.copy()
        return sum(key == mine[0] for key, _ in waiting[: waiting.index(mine)])


def _pause(verdict: Verdict, left: float) -> float:
    """Returns the time after which to ask again; zero or less where that is too late, or does not help."""
    wait = verdict.retry_after or 0.0
    if verdict.reason == "HELD":
        return min(wait, HELD_PAUSE, left)
    return wait if verdict.reason == "OVER_LIMIT" and wait <= left else 0.0
