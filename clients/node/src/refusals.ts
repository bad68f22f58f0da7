/** Refusals that are remembered, so that a caller that repeats a refused request causes no calls. */

import { type Verdict, later } from "./verdict.js";

const MAX_REFUSALS = 10_000;

// Time for which a request that was refused is asked one at a time.
const RECENT_MS = 1000;

interface Refusal {
  /** When the request was sent. The decision was made then or later. */
  askedAt: number;
  holdsUntil: number;
  recentUntil: number;
  verdict: Verdict;
}

export class Refusals {
  /** The oldest is first. */
  readonly #refusals = new Map<string, Refusal>();

  constructor(private readonly maxAgeMs: number) {}

  /** Returns the refusal of a request, with the waits that are left, if it still holds. */
  get(key: string): Verdict | undefined {
    const refusal = this.#refusals.get(key);
    const now = performance.now();
    return refusal && now < refusal.holdsUntil ? later(refusal.verdict, now - refusal.askedAt) : undefined;
  }

  // Returns true if the request was refused within the last second.
  isRecent(key: string): boolean {
    return performance.now() < (this.#refusals.get(key)?.recentUntil ?? 0);
  }

  /** Remembers a refusal, and returns true then. Units that are held may be free at any time: HELD is none. */
  insert(key: string, askedAt: number, verdict: Verdict): boolean {
    if (verdict.allowed || verdict.reason === "HELD") {
      return false;
    }
    this.#refusals.delete(key);
    const now = performance.now();
    for (const [oldest, { holdsUntil, recentUntil }] of this.#refusals) {
      if (now < Math.max(holdsUntil, recentUntil) && this.#refusals.size < MAX_REFUSALS) {
        break;
      }
      this.#refusals.delete(oldest);
    }
    const wait = verdict.reason === "OVER_LIMIT" ? Math.min(verdict.retryAfterMs ?? 0, this.maxAgeMs) : 0;
    this.#refusals.set(key, { askedAt, holdsUntil: askedAt + wait, recentUntil: now + RECENT_MS, verdict });
    return true;
  }
}
