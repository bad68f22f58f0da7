/** Requests that wait in place of a refusal. */

import { setTimeout as sleep } from "node:timers/promises";

import type { Verdict } from "./verdict.js";

/** Most requests of a route that wait. */
const MAX_WAITING = 1000;
/** Pause of a request that is refused for what others hold, who may settle at any time. */
const HELD_PAUSE_MS = 50;

/** The requests of a route that wait, those with one key in turn. */
export class Turns {
  #waiting = 0;
  // The last turn of each key ends after those before it.
  readonly #last = new Map<string, Promise<unknown>>();

  /** Attempts a decision, and again until the request is allowed, for at most this time to wait. */
  async decide<D extends { verdict: Verdict }>(waitMs: number, key: string, attempt: () => Promise<D>): Promise<D> {
    if (this.#waiting >= MAX_WAITING) {
      return attempt();
    }
    const before = this.#last.get(key);
    const mine = attemptInTurn(before, waitMs, attempt);
    const ended = Promise.allSettled([before, mine]);
    this.#last.set(key, ended);
    this.#waiting += 1;
    try {
      return await mine;
    } finally {
      this.#waiting -= 1;
      if (this.#last.get(key) === ended) {
        this.#last.delete(key);
      }
    }
  }
}

async function attemptInTurn<D extends { verdict: Verdict }>(
  before: Promise<unknown> | undefined,
  waitMs: number,
  attempt: () => Promise<D>,
): Promise<D> {
  const until = performance.now() + waitMs;
  if (before) {
    await Promise.race([before, sleep(waitMs, undefined, { ref: false })]);
  }
  for (;;) {
    const decided = await attempt();
    const pause = pauseMs(decided.verdict, until - performance.now());
    if (pause <= 0) {
      return decided;
    }
    await sleep(pause, undefined, { ref: false });
  }
}

/** Returns the time after which to ask again; zero or less where that is too late, or does not help. */
function pauseMs({ reason, retryAfterMs }: Verdict, leftMs: number): number {
  const wait = retryAfterMs ?? 0;
  if (reason === "HELD") {
    return Math.min(wait, HELD_PAUSE_MS, leftMs);
  }
  return reason === "OVER_LIMIT" && wait <= leftMs ? wait : 0;
}
