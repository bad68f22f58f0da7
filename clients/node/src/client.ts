/** The client: one verdict for each request, from the cache, the server or the policy. */

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

import { Channel, type ChannelOptions, type StatusMessage, checkNames, fromStatus } from "./channel.js";
import { RlaasError, isOverload, isRejection, overloaded } from "./error.js";
import { CheckQueue, type Outcome } from "./queue.js";
import { Refusals } from "./refusals.js";
import type { CheckRequest, RequestFields, ReserveRequest } from "./request.js";
import { checkUnits, toMessage, toQuestion } from "./request.js";
import { type Extension, Held, type Reserved, type Settle } from "./reservation.js";
import type { Duration, Reason, Verdict, VerdictMessage } from "./verdict.js";
import { fromMessage, milliseconds, undecided } from "./verdict.js";

/** Decides a request that the server has not answered: a function returns true to allow it. */
export type Policy = "allow" | "deny" | ((request: RequestFields, error: RlaasError) => boolean | Promise<boolean>);

/** Settings of a client. */
export interface ClientOptions extends ChannelOptions {
  /** Timeout of a call from when it is sent, by default 250. The first call has 1000 at least, to connect. */
  timeoutMs?: number;
  /** Policy for requests without an answer, by default to allow them. */
  onNoAnswer?: Policy;
  /** Policy for requests that an overloaded server, or client, does not decide, by default to deny them. */
  onOverload?: Policy;
  /** Retries of a check without an answer, within its timeout: 0, the default, to 5; none while many calls fail. */
  retries?: number;
  /** Longest time for which a refusal is remembered, by default 1000; 0 remembers none. */
  maxAgeMs?: number;
  /** Receives warnings, of each kind at most one a second; by default `console.warn`. */
  warn?: (message: string) => void;
}

// The names in ClientOptions.
export const OPTIONS = "timeoutMs onNoAnswer onOverload retries maxAgeMs warn tls token apiKey".split(" ");

// Reasons of a server that has answered, and not decided.
const UNDECIDED = ["STORE_UNAVAILABLE", "NOT_READY", "NO_RULE"];
const MAX_RESERVING = 128;
/** Fewer than the server repeats a reply. */
const MAX_RETRIES = 5;
const FIRST_TIMEOUT_MS = 1000;
const WARNING_INTERVAL_MS = 1000;
/** A check is repeated while more than half of these are left, so that a server that fails gets few calls more. */
const MAX_RETRY_TOKENS = 10;
const TOKENS_PER_SUCCESS = 0.1;
/** Pauses between attempts of a settlement in the background. */
const FIRST_PAUSE_MS = 100;
const MAX_PAUSE_MS = 10_000;
/** A server that sheds load does not ask for more. */
const RETRYABLE = ["UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "UNKNOWN"];

const NO_RESULT: StatusMessage = { code: 13, message: "the batch has no result for the request" };
// ReserveResponse and CheckBatchResponse of the proto.
type ReserveMessage = { verdict: VerdictMessage; reservationId: string; expiresAt: Duration | null };
type BatchMessage = { results: { response: VerdictMessage | null; error: StatusMessage | null }[] };

/** A client with one channel to the server, for the whole program. It does not keep the process alive. */
export class Client {
  readonly #channel: Pick<Channel, "call" | "close">;
  readonly #options: Required<Pick<ClientOptions, "timeoutMs" | "onNoAnswer" | "onOverload" | "retries" | "warn">>;
  readonly #refusals: Refusals;
  readonly #queue: CheckQueue;
  readonly #warnedAt = new Map<string, number>();
  /** Once a call has ended later ones need no time to connect. */
  #hasCalled = false;
  /** Source: gRPC proposal A6, "Throttling Retry Attempts and Hedged RPCs". */
  #retryTokens = MAX_RETRY_TOKENS;
  #unanswered = 0;
  #reserving = 0;
  #isClosed = false;
  // The messages since the last answer.
  readonly #logged = new Set<string>();

  /**
   * Begins to connect to `host:port`, `http(s)://host:port`, `dns:///name:port` or `unix:/path`. Throws if a setting
   * is not valid, and not if the server is away.
   */
  constructor(address: string, options?: ClientOptions);
  /** @internal */
  constructor(address: string, options: ClientOptions, channel: Pick<Channel, "call" | "close">);
  constructor(address: string, options: ClientOptions = {}, channel?: Pick<Channel, "call" | "close">) {
    checkNames(options, OPTIONS);
    const { timeoutMs = 250, retries = 0, maxAgeMs = 1000, warn = console.warn } = options;
    const { onNoAnswer = "allow", onOverload = "deny" } = options;
    if (!(timeoutMs > 0 && timeoutMs < Infinity && maxAgeMs >= 0)) {
      throw new TypeError("timeoutMs must be above 0, and maxAgeMs not below");
    }
    if (!(Number.isInteger(retries) && retries >= 0 && retries <= MAX_RETRIES)) {
      throw new TypeError(`retries must be 0 to ${MAX_RETRIES}`);
    }
    const isPolicy = (value: unknown) => typeof value === "function" || value === "allow" || value === "deny";
    if (!isPolicy(onNoAnswer) || !isPolicy(onOverload)) {
      throw new TypeError("onNoAnswer and onOverload must be allow, deny or a function");
    }
    this.#channel = channel ?? new Channel(address, options);
    this.#options = { timeoutMs, onNoAnswer, onOverload, retries, warn };
    this.#refusals = new Refusals(maxAgeMs);
    this.#queue = new CheckQueue((messages) => this.#send(messages), this.#refusals, timeoutMs);
  }

  /** The number of requests that the policy decided, for a metric. */
  get unanswered(): number {
    return this.#unanswered;
  }

  /** Decides a request. Rejects with a `RlaasError` for a mistake of the program, whatever the policy is. */
  async check(request: CheckRequest): Promise<Verdict> {
    const message = toMessage(request);
    let question = toQuestion(message);
    const refusal = question.isRepeatable && this.#refusals.get(question.key);
    if (refusal) {
      return refusal;
    }
    if (this.#options.retries > 0) {
      message.requestId ||= randomUUID();
    }
    for (let left = this.#retriesLeft(); ; left--) {
      try {
        return await this.#queue.ask(question);
      } catch (error) {
        const isRetryable = error instanceof RlaasError && RETRYABLE.includes(error.code);
        if (!isRetryable || left === 0 || this.#retriesLeft() === 0) {
          return this.#withoutDecision(message, error);
        }
        // The units may have been taken: by its id it is a question of its own, which no other refusal answers.
        question = toQuestion(message);
      }
    }
  }

  /** Counts a cost that has arisen, whatever is left, in rules with `post_paid` or `reservable`. */
  async report(request: CheckRequest): Promise<Verdict> {
    const message = toMessage(request);
    message.requestId ||= randomUUID();
    try {
      const response = await this.#callTwice<{ verdict: VerdictMessage }>("Report", { request: message });
      return fromMessage(response.verdict);
    } catch (error) {
      return this.#withoutDecision(message, error);
    }
  }

  /**
   * Holds the cost of a request while work is done. A refused request does not call the work: look at `allowed` of
   * the result. If the work ends well and has settled nothing itself, what is held is charged. If it throws nothing
   * is charged, and its error is thrown again.
   */
  async reserve<T>(request: ReserveRequest, work: (held: Held) => T | Promise<T>): Promise<Reserved<T>> {
    const held = await this.hold(request);
    const { verdict } = held;
    if (!verdict.allowed) {
      return { allowed: false, verdict };
    }
    try {
      const value = await work(held);
      // What the work has done is not lost by a settlement that fails, of which there is a warning.
      await held.commit().catch(() => {});
      return { allowed: true, verdict, value };
    } catch (error) {
      await held.cancel().catch(() => {});
      throw error;
    }
  }

  /** Closes the channel. Requests that wait, and further ones, get the verdict of the policy. */
  close(): void {
    this.#isClosed = true;
    this.#channel.close();
    this.#queue.fail(new RlaasError("CANCELLED", "the client is closed"));
  }

  /** @internal Returns the verdict of the policy for requests without an answer, or that for an overload. */
  async byPolicy(request: RequestFields, error: RlaasError): Promise<Verdict> {
    const isOverloaded = isOverload(error);
    this.#unanswered += isOverloaded ? 0 : 1;
    const policy = this.#options[isOverloaded ? "onOverload" : "onNoAnswer"];
    const allowed = typeof policy === "function" ? await policy(request, error) : policy === "allow";
    this.warn("check", `rlaas: check failed, request ${allowed ? "allowed" : "refused"}: ${error.message}`);
    const answeredBy = error.info === "OVERLOADED" && !allowed ? "server" : "policy";
    return undecided(allowed, isOverloaded ? "OVERLOADED" : "NO_ANSWER", answeredBy);
  }

  /** @internal Logs a message once until a call is answered, and of each kind at most one a second. */
  warn(kind: string, message: string): void {
    const now = performance.now();
    if (!this.#logged.has(message) && now - (this.#warnedAt.get(kind) ?? -Infinity) >= WARNING_INTERVAL_MS) {
      this.#warnedAt.set(kind, now);
      this.#logged.add(message);
      this.#options.warn(message);
    }
  }

  /**
   * @internal Holds the cost of a request, whose settlement is that of the caller. Without an answer a settlement is
   * repeated in the background for this time.
   */
  async hold(request: ReserveRequest, repeatMs = 0): Promise<Held> {
    const message = toMessage(request);
    const { holdMs } = typeof request === "string" ? {} : request;
    checkUnits(holdMs);
    // With the request, work that lasted longer than the hold is charged all the same.
    const settle: Settle = (method, fields) =>
      this.#settle(method, method === "Commit" ? { ...fields, request: message } : fields, repeatMs);
    const send = (method: string, fields: object) => this.#once<ReserveMessage>(method, fields, this.#deadlineMs());
    const extend = async (reservationId: string, { cost, holdMs }: Extension) =>
      fromMessage((await send("Extend", { reservationId, cost, ttl: duration(holdMs) })).verdict);
    try {
      if (this.#reserving >= MAX_RESERVING) {
        throw this.#queue.outage ?? overloaded("too many reservations wait for the server");
      }
      this.#reserving += 1;
      const reserved = send("Reserve", { request: message, ttl: duration(holdMs) });
      const response = await reserved.finally(() => (this.#reserving -= 1));
      const verdict = fromMessage(response.verdict);
      this.#queue.note([verdict]);
      const endsAt = milliseconds(response.expiresAt) ?? Infinity;
      return new Held(verdict, response.reservationId, settle, extend, endsAt - Date.now());
    } catch (error) {
      this.#queue.note([error as RlaasError]);
      return new Held(await this.#withoutDecision(message, error), "", settle, extend);
    }
  }

  async #settle(method: string, message: object, repeatMs: number): Promise<boolean> {
    try {
      await this.#callTwice(method, message);
      return true;
    } catch (error) {
      this.warn("settle", `rlaas: reservation not settled: ${error}`);
      if (error instanceof RlaasError && !isRejection(error)) {
        void this.#settleLater(method, message, performance.now() + repeatMs);
        return false;
      }
      throw error;
    }
  }

  /** Repeats a settlement until there is an answer, or the client is closed. It counts once. */
  async #settleLater(method: string, message: object, until: number): Promise<void> {
    let [pauseMs, isAnswered] = [FIRST_PAUSE_MS, false];
    while (!isAnswered && performance.now() < until) {
      await sleep(pauseMs, undefined, { ref: false });
      pauseMs = Math.min(2 * pauseMs, MAX_PAUSE_MS);
      const sent = this.#isClosed || this.#once(method, message, this.#deadlineMs());
      isAnswered = await Promise.resolve(sent).then(() => true, isRejection);
    }
  }

  /** Returns the verdict on a request without a decision, or throws the error of a call that the server rejected. */
  async #withoutDecision(message: RequestFields, error: unknown): Promise<Verdict> {
    if (!(error instanceof RlaasError)) {
      throw error;
    }
    if (UNDECIDED.includes(error.info)) {
      return undecided(false, error.info as Reason, "server");
    }
    if (isRejection(error)) {
      throw error;
    }
    return this.byPolicy(message, error);
  }

  #deadlineMs(): number {
    return Math.max(this.#options.timeoutMs, this.#hasCalled ? 0 : FIRST_TIMEOUT_MS);
  }

  #retriesLeft(): number {
    return this.#retryTokens > MAX_RETRY_TOKENS / 2 ? this.#options.retries : 0;
  }

  // Sends checks in one call. If they may be repeated the attempts share the timeout equally.
  async #send(messages: RequestFields[]): Promise<Outcome[]> {
    const timeoutMs = this.#deadlineMs() / (1 + this.#retriesLeft());
    try {
      if (messages.length === 1) {
        return [fromMessage(await this.#once<VerdictMessage>("Check", messages[0]!, timeoutMs))];
      }
      const { results } = await this.#once<BatchMessage>("CheckBatch", { requests: messages }, timeoutMs);
      return messages.map((_, index) => {
        const { response, error } = results[index] ?? { response: null, error: null };
        return response ? fromMessage(response) : fromStatus(error ?? NO_RESULT);
      });
    } catch (error) {
      return messages.map(() => error as RlaasError);
    }
  }

  /** Calls with the whole timeout, and once more without an answer. */
  #callTwice<T>(method: string, message: object): Promise<T> {
    return this.#once<T>(method, message, this.#deadlineMs()).catch((error: RlaasError) => {
      if (isRejection(error) || error.code === "RESOURCE_EXHAUSTED") {
        throw error;
      }
      return this.#once<T>(method, message, this.#deadlineMs());
    });
  }

  async #once<T>(method: string, message: object, timeoutMs: number): Promise<T> {
    try {
      const response = await this.#channel.call<T>(method, message, timeoutMs);
      this.#retryTokens = Math.min(this.#retryTokens + TOKENS_PER_SUCCESS, MAX_RETRY_TOKENS);
      this.#logged.clear();
      return response;
    } catch (cause) {
      const error = cause instanceof RlaasError ? cause : new RlaasError("CANCELLED", `${cause}`, { cause });
      this.#retryTokens = Math.max(this.#retryTokens - (isRejection(error) ? 0 : 1), 0);
      throw error;
    } finally {
      this.#hasCalled = true;
    }
  }
}

/** Returns a google.protobuf.Duration. */
export function duration(ms: number | undefined): Duration | undefined {
  return ms === undefined ? undefined : { seconds: Math.floor(ms / 1000), nanos: (ms % 1000) * 1e6 };
}
