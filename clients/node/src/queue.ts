/** The queue of checks: which of them go to the server, and what those that wait are told. */

import { type RlaasError, isAnswer, isOverload, overloaded } from "./error.js";
import type { Refusals } from "./refusals.js";
import type { Question, RequestFields } from "./request.js";
import { type Verdict, later } from "./verdict.js";

// Calls at once; each may be a batch.
const MAX_IN_FLIGHT = 8;
const MAX_WAITING = 10_000;
// A flood of one request leaves room for others.
const MAX_WAITING_OF_KEY = MAX_WAITING / 4;
const MAX_WAIT_MS = 1000;
const MAX_BATCH = 100;
const MAX_BATCH_BYTES = 256 * 1024;
// The requests of a batch that is rejected so may be valid alone.
const BATCH_REJECTIONS = ["INVALID_ARGUMENT", "UNIMPLEMENTED", "OUT_OF_RANGE", "RESOURCE_EXHAUSTED"];

export type Outcome = Verdict | RlaasError;

interface Item extends Question {
  resolve: (verdict: Verdict) => void;
  reject: (error: RlaasError) => void;
  isAlone?: boolean;
  timer?: NodeJS.Timeout;
}

/** Bounds the calls in flight. Of those that wait, keys are served in turn, and several requests go in one call. */
export class CheckQueue {
  #inFlight = 0;
  #waitingCount = 0;
  #maxBatch = MAX_BATCH;
  // Why no call is answered at present, and when one was last.
  outage: RlaasError | undefined;
  #answeredAt = -Infinity;
  // The requests that wait. The first key is the next.
  readonly #waiting = new Map<string, Set<Item>>();
  // The keys in flight of those that were refused within the last second.
  readonly #asking = new Set<string>();
  // The batches in flight.
  readonly #batches = new Set<Item[]>();

  constructor(
    // Sends requests in one call, and returns the outcome of each.
    private readonly send: (messages: RequestFields[]) => Promise<Outcome[]>,
    private readonly refusals: Refusals,
    private readonly timeoutMs: number,
  ) {}

  /** Returns the verdict of the server. Rejects without an answer, or if too many wait. */
  ask(question: Question): Promise<Verdict> {
    return new Promise((resolve, reject) => {
      const item = { ...question, resolve, reject };
      const { size = 0 } = this.#waiting.get(item.key) ?? {};
      if (this.#inFlight < MAX_IN_FLIGHT && this.#mayAsk(item.key)) {
        void this.#ask([item]);
      } else if (this.outage) {
        reject(this.outage);
      } else if (this.#waitingCount >= MAX_WAITING || size >= MAX_WAITING_OF_KEY) {
        reject(overloaded("too many checks wait for the server"));
      } else {
        this.#enqueue(item);
      }
    });
  }

  /** Rejects all that wait, and those in flight that have waited: they have no time left. */
  fail(error: RlaasError): void {
    const items = [...this.#waiting.values(), ...this.#batches].flatMap((items) => [...items]);
    items.forEach((item) => (this.#remove(item), item.reject(error)));
  }

  // Returns false if the same request was refused within the last second, and is asked again already.
  #mayAsk(key: string): boolean {
    const isRecent = this.refusals.isRecent(key);
    const mayAsk = !isRecent || !this.#asking.has(key);
    if (isRecent) {
      this.#asking.add(key);
    }
    return mayAsk;
  }

  async #ask(items: Item[]): Promise<void> {
    this.#inFlight += 1;
    const sentAt = performance.now();
    const outcomes = await this.send(items.map(({ message }) => message));
    this.#inFlight -= 1;
    this.#batches.delete(items);
    this.note(outcomes);
    const isRejected = items.length > 1 && outcomes.every((outcome) => outcome === outcomes[0]);
    items.forEach((item, index) => {
      const outcome = outcomes[index]!;
      this.#asking.delete(item.key);
      if (!(outcome instanceof Error)) {
        this.#answer(item, outcome, sentAt);
      } else if (isRejected && !outcome.info && BATCH_REJECTIONS.includes(outcome.code)) {
        this.#maxBatch = outcome.code === "UNIMPLEMENTED" ? 1 : this.#maxBatch;
        this.#enqueue({ ...item, isAlone: true });
      } else {
        item.reject(outcome);
      }
    });
    for (let next; this.#inFlight < MAX_IN_FLIGHT && (next = this.#nextBatch()).length > 0;) {
      this.#batches.add(next);
      void this.#ask(next);
    }
  }

  // Notes whether the server answers a call. If it answers neither this one nor others, nobody waits for it.
  note(outcomes: Outcome[]): void {
    const [first] = outcomes;
    const isSilent = this.#answeredAt <= performance.now() - this.timeoutMs;
    if (outcomes.some((outcome) => !(outcome instanceof Error) || isAnswer(outcome))) {
      this.#answeredAt = performance.now();
      this.outage = undefined;
    } else if (isSilent && first instanceof Error && !isOverload(first)) {
      this.outage = first;
      this.fail(first);
    }
  }

  // Passes a verdict on. A refusal is also that of the same requests that wait.
  #answer(item: Item, verdict: Verdict, sentAt: number): void {
    item.resolve(verdict);
    if (item.isRepeatable && this.refusals.insert(item.key, sentAt, verdict)) {
      const refusal = later(verdict, performance.now() - sentAt);
      for (const other of [...(this.#waiting.get(item.key) ?? [])]) {
        this.#remove(other);
        other.resolve(refusal);
      }
    }
  }

  #enqueue(item: Item): void {
    this.#waiting.set(item.key, (this.#waiting.get(item.key) ?? new Set()).add(item));
    this.#waitingCount += 1;
    // A call without an answer ends first. The first one of a client has a second, to connect.
    const wait = Math.max(this.#answeredAt > 0 ? MAX_WAIT_MS : 2 * MAX_WAIT_MS, 1.5 * this.timeoutMs);
    const expire = () => this.#remove(item) && item.reject(overloaded(`the check has waited for ${wait} ms`));
    // Answers that have arrived by then are read first.
    item.timer = setTimeout(() => setImmediate(expire), wait);
  }

  // Returns false if the request does not wait. Others of its key wait until all keys had their turn.
  #remove(item: Item): boolean {
    clearTimeout(item.timer);
    const items = this.#waiting.get(item.key);
    if (!items?.delete(item)) {
      return false;
    }
    this.#waitingCount -= 1;
    this.#waiting.delete(item.key);
    if (items.size > 0) {
      this.#waiting.set(item.key, items);
    }
    return true;
  }

  #nextBatch(): Item[] {
    const batch: Item[] = [];
    let bytes = 0;
    // A key that has had its turn is inserted again, and comes again.
    for (const [key, [next]] of this.#waiting as Map<string, Iterable<Item>>) {
      bytes += next!.bytes;
      const isFull = batch.length === this.#maxBatch || bytes > MAX_BATCH_BYTES;
      if (batch.length > 0 && (isFull || next!.isAlone || batch[0]!.isAlone)) {
        break;
      }
      if (this.#mayAsk(key)) {
        this.#remove(next!);
        batch.push(next!);
      }
    }
    return batch;
  }
}
