/** Refusals that are remembered, so that a caller that repeats a refused request causes no calls. */

import { type Verdict, later } from "./verdict.js";

const MAX_REFUSALS = 10_000;

interface Refusal {
  /** When the request was sent. The decision was made then or later. */
  askedAt: number;
  holdsUntil: number;
  verdict: Verdict;
}

export class Refusals {
  readonly #maxAgeMs: number;
  /** The oldest is first. */
  readonly #refusals = new Map<string, Refusal>();

  constructor(maxAgeMs: number) {
    this.#maxAgeMs = maxAgeMs;
  }

  /** Returns the refusal of a request, with the waits that are left, if it still holds. */
  get(key: string): Verdict | undefined {
    const refusal = this.#refusals.get(key);
    const now = performance.now();
    return refusal && now < refusal.holdsUntil ? later(refusal.verdict, now - refusal.askedAt) : undefined;
  }

  /** Remembers a refusal by a limit. Units that are held may be free at any time: HELD is not remembered. */
  insert(key: string, askedAt: number, verdict: Verdict): void {
    const wait = Math.min(verdict.retryAfterMs ?? 0, this.#maxAgeMs);
    if (verdict.allowed || verdict.reason !== "OVER_LIMIT" || wait <= 0) {
      return;
    }
    this.#refusals.delete(key);
    const now = performance.now();
    for (const [oldest, { holdsUntil }] of this.#refusals) {
      if (now < holdsUntil && this.#refusals.size < MAX_REFUSALS) {
        break;
      }
      this.#refusals.delete(oldest);
    }
    this.#refusals.set(key, { askedAt, holdsUntil: askedAt + wait, verdict });
  }
}
