/** What is held for a request while its work is done. */

import { checkUnits } from "./request.js";
import type { Verdict } from "./verdict.js";

/** The result of a reservation: that of the work, or a refusal without it. */
export type Reserved<T> =
  | { readonly allowed: true; readonly verdict: Verdict; readonly value: T }
  | { readonly allowed: false; readonly verdict: Verdict; readonly value?: undefined };

/** Settles a reservation. The result is false if the server does not answer. */
export type Settle = (method: "Commit" | "Cancel", message: object) => Promise<boolean>;

/** Units and time to add to a reservation; those that are not set leave it as it is. */
export interface Extension {
  cost?: number | undefined;
  /** From now on. */
  holdMs?: number | undefined;
}

/** A reservation. Its first settlement counts. */
export class Held {
  #settlement: Promise<boolean> | undefined;

  /** @internal */
  constructor(
    /** The verdict that allowed the work. */
    readonly verdict: Verdict,
    /** The id of the reservation. Empty if nothing is held: no rule holds, or the policy decided. */
    readonly id: string,
    private readonly settle: Settle,
    private readonly sendExtension: (id: string, extension: Extension) => Promise<Verdict>,
    /** @internal The time until it ends, by the clock of this machine. */
    readonly lastsMs = Infinity,
  ) {}

  /**
   * Charges the actual cost, by default what is held, and returns the rest; `actuals` has that of single rules, by
   * name. The result is false if nothing is held, as after another settlement, or the server does not answer; the hold
   * then ends by itself.
   */
  commit(actual?: number, actuals: Record<string, number> = {}): Promise<boolean> {
    [actual, ...Object.values(actuals)].forEach(checkUnits);
    return this.end("Commit", { actual, actuals });
  }

  /**
   * Holds more units, or for longer, or both. A refusal leaves what is held as it was. Rejects without an answer,
   * whatever the policy is, and is not repeated, as that might add twice. If nothing is held nothing is sent, and the
   * result is the verdict on the request.
   */
  async extend(extension: Extension): Promise<Verdict> {
    checkUnits(extension.cost);
    checkUnits(extension.holdMs);
    return this.id ? this.sendExtension(this.id, extension) : this.verdict;
  }

  /** Returns all that is held. The result is that of `commit`. */
  cancel(): Promise<boolean> {
    return this.end("Cancel", {});
  }

  private end(method: "Commit" | "Cancel", message: object): Promise<boolean> {
    // Nothing is held, or no longer. Work that does not wait for its settlement leaves that to `reserve`.
    const ended = this.id ? this.#settlement?.catch(() => {}) : Promise.resolve();
    if (ended) {
      return ended.then(() => false);
    }
    this.#settlement = this.settle(method, { reservationId: this.id, ...message });
    this.#settlement.catch(() => {});
    return this.#settlement;
  }
}
