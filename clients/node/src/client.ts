/** The client: one verdict for each request, from the cache, the server or the policy. */

import { randomUUID } from "node:crypto";

import type { ServiceError } from "@grpc/grpc-js";

import { Channel, type ChannelOptions, checkNames } from "./channel.js";
import { RlaasError, fromServiceError, isNoRule, isRejection } from "./error.js";
import { Refusals } from "./refusals.js";
import {
  type CheckRequest,
  type RequestFields,
  type ReserveRequest,
  checkUnits,
  refusalKey,
  toMessage,
} from "./request.js";
import { type Extension, Held, type Reserved, type Settle } from "./reservation.js";
import { type Verdict, type VerdictMessage, byPolicy, fromMessage, noRule } from "./verdict.js";

/** Decides a request that the server has not answered: a function returns true to allow it. */
export type Policy = "allow" | "deny" | ((request: RequestFields, error: RlaasError) => boolean | Promise<boolean>);

/** Settings of a client. */
export interface ClientOptions extends ChannelOptions {
  /** Timeout of a call, by default 50. The first call has 1000 at least, to connect. */
  timeoutMs?: number;
  /** Policy for requests without an answer, by default to allow them. */
  onNoAnswer?: Policy;
  /** Retries of a check without an answer, within its timeout: 0, the default, to 5; none while many calls fail. */
  retries?: number;
  /** Longest time for which a refusal is remembered, by default 1000; 0 remembers none. */
  maxAgeMs?: number;
  /** Receives warnings, of each kind at most one a second; by default `console.warn`. */
  warn?: (message: string) => void;
}

// The names in ClientOptions.
export const OPTIONS = "timeoutMs onNoAnswer retries maxAgeMs warn tls token apiKey".split(" ");

/** Fewer than the server repeats a reply. */
const MAX_RETRIES = 5;
const FIRST_TIMEOUT_MS = 1000;
const WARNING_INTERVAL_MS = 1000;
/** A check is repeated while more than half of these are left, so that a server that fails gets few calls more. */
const MAX_RETRY_TOKENS = 10;
const TOKENS_PER_SUCCESS = 0.1;
/** A server that sheds load does not ask for more. */
const RETRYABLE = ["UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "UNKNOWN"];

/** A client with one channel to the server, for the whole program. It does not keep the process alive. */
export class Client {
  readonly #channel: Channel;
  readonly #timeoutMs: number;
  readonly #policy: Policy;
  readonly #retries: number;
  readonly #warn: (message: string) => void;
  readonly #refusals: Refusals;
  readonly #warnedAt = new Map<string, number>();
  /** Once a call has ended later ones need no time to connect. */
  #hasCalled = false;
  /** Source: gRPC proposal A6, "Throttling Retry Attempts and Hedged RPCs". */
  #retryTokens = MAX_RETRY_TOKENS;
  #unanswered = 0;

  /**
   * Begins to connect to `host:port`, `http(s)://host:port`, `dns:///name:port` or `unix:/path`. Throws if a setting
   * is not valid, and not if the server is away.
   */
  constructor(address: string, options: ClientOptions = {}) {
    checkNames(options, OPTIONS);
    const { timeoutMs = 50, onNoAnswer = "allow", retries = 0, maxAgeMs = 1000, warn = console.warn } = options;
    if (!(timeoutMs > 0 && timeoutMs < Infinity && maxAgeMs >= 0)) {
      throw new TypeError("timeoutMs must be above 0, and maxAgeMs not below");
    }
    if (!(Number.isInteger(retries) && retries >= 0 && retries <= MAX_RETRIES)) {
      throw new TypeError(`retries must be 0 to ${MAX_RETRIES}`);
    }
    if (typeof onNoAnswer !== "function" && onNoAnswer !== "allow" && onNoAnswer !== "deny") {
      throw new TypeError("onNoAnswer must be allow, deny or a function");
    }
    this.#channel = new Channel(address, options);
    this.#timeoutMs = timeoutMs;
    this.#policy = onNoAnswer;
    this.#retries = retries;
    this.#warn = warn;
    this.#refusals = new Refusals(maxAgeMs);
  }

  /** The number of requests that the policy decided, for a metric. */
  get unanswered(): number {
    return this.#unanswered;
  }

  /** Decides a request. Rejects with a `RlaasError` for a mistake of the program, whatever the policy is. */
  async check(request: CheckRequest): Promise<Verdict> {
    const message = toMessage(request);
    const key = refusalKey(message);
    const refusal = key && this.#refusals.get(key);
    if (refusal) {
      return refusal;
    }
    if (this.#retries > 0) {
      message.requestId ||= randomUUID();
    }
    const askedAt = performance.now();
    try {
      const hasTokens = () => this.#retryTokens > MAX_RETRY_TOKENS / 2;
      const mayRetry = (error: RlaasError) => RETRYABLE.includes(error.code) && hasTokens();
      // A call that is not to be repeated has the whole timeout.
      const retries = hasTokens() ? this.#retries : 0;
      const response = this.#call<VerdictMessage>("Check", message, this.#deadlineMs(), retries, mayRetry);
      const verdict = fromMessage(await response);
      if (key) {
        this.#refusals.insert(key, askedAt, verdict);
      }
      return verdict;
    } catch (error) {
      return this.#withoutResponse(message, error);
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
      return this.#withoutResponse(message, error);
    }
  }

  /**
   * Holds the cost of a request while work is done. A refused request does not call the work: look at `allowed` of
   * the result. If the work ends well and has settled nothing itself, what is held is charged. If it throws nothing
   * is charged, and its error is thrown again.
   */
  async reserve<T>(request: ReserveRequest, work: (held: Held) => T | Promise<T>): Promise<Reserved<T>> {
    const held = await this.#hold(request);
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

  /** Closes the channel. Further requests get the verdict of the policy. */
  close(): void {
    this.#channel.close();
  }

  /** @internal Returns the verdict of the policy. */
  async byPolicy(request: RequestFields, error: RlaasError): Promise<Verdict> {
    this.#unanswered += 1;
    const policy = this.#policy;
    const allowed = typeof policy === "function" ? await policy(request, error) : policy === "allow";
    const outcome = `request ${allowed ? "allowed" : "refused"} (${this.#unanswered} so far)`;
    this.warn("check", `rlaas: check failed, ${outcome}: ${error.message}`);
    return byPolicy(allowed);
  }

  /** @internal */
  warn(kind: string, message: string): void {
    const now = performance.now();
    if (now - (this.#warnedAt.get(kind) ?? -Infinity) >= WARNING_INTERVAL_MS) {
      this.#warnedAt.set(kind, now);
      this.#warn(message);
    }
  }

  async #hold(request: ReserveRequest): Promise<Held> {
    const message = toMessage(request);
    const { holdMs } = typeof request === "string" ? {} : request;
    checkUnits(holdMs);
    // With the request, work that lasted longer than the hold is charged all the same.
    const settle: Settle = (method, fields) =>
      this.#settle(method, method === "Commit" ? { ...fields, request: message } : fields);
    const send = (method: string, fields: object) =>
      this.#call<{ verdict: VerdictMessage; reservationId: string }>(method, fields, this.#deadlineMs());
    let reservationId = "";
    const extend = async ({ cost, holdMs }: Extension) =>
      fromMessage((await send("Extend", { reservationId, cost, ttl: duration(holdMs) })).verdict);
    try {
      const response = await send("Reserve", { request: message, ttl: duration(holdMs) });
      reservationId = response.reservationId;
      return new Held(fromMessage(response.verdict), reservationId, settle, extend);
    } catch (error) {
      return new Held(await this.#withoutResponse(message, error), "", settle, extend);
    }
  }

  async #settle(method: string, message: object): Promise<boolean> {
    try {
      await this.#callTwice(method, message);
      return true;
    } catch (error) {
      this.warn("settle", `rlaas: reservation not settled: ${error}`);
      if (error instanceof RlaasError && !isRejection(error)) {
        return false;
      }
      throw error;
    }
  }

  /** Returns the verdict of the policy, or throws the error of a call that the server rejected. */
  async #withoutResponse(message: RequestFields, error: unknown): Promise<Verdict> {
    if (!(error instanceof RlaasError)) {
      throw error;
    }
    if (isNoRule(error)) {
      return noRule();
    }
    if (isRejection(error)) {
      throw error;
    }
    return this.byPolicy(message, error);
  }

  #deadlineMs(): number {
    return this.#hasCalled ? this.#timeoutMs : Math.max(this.#timeoutMs, FIRST_TIMEOUT_MS);
  }

  /** Calls with the whole timeout, and once more without an answer. */
  #callTwice<T>(method: string, message: object): Promise<T> {
    const mayRetry = (error: RlaasError) => !isRejection(error) && error.code !== "RESOURCE_EXHAUSTED";
    return this.#call(method, message, 2 * this.#deadlineMs(), 1, mayRetry);
  }

  /** Calls, and again as `mayRetry` allows it. The attempts share the time that is left equally. */
  async #call<T>(
    method: string,
    message: object,
    timeoutMs: number,
    retries = 0,
    mayRetry = (_: RlaasError) => true,
  ): Promise<T> {
    const until = performance.now() + timeoutMs;
    for (let left = retries; ; left--) {
      try {
        const response = await this.#channel.call<T>(method, message, (until - performance.now()) / (1 + left));
        this.#retryTokens = Math.min(this.#retryTokens + TOKENS_PER_SUCCESS, MAX_RETRY_TOKENS);
        return response;
      } catch (cause) {
        const error = fromServiceError(cause as ServiceError);
        this.#retryTokens = Math.max(this.#retryTokens - (isRejection(error) ? 0 : 1), 0);
        if (left === 0 || !mayRetry(error)) {
          throw error;
        }
      } finally {
        this.#hasCalled = true;
      }
    }
  }
}

/** Returns a google.protobuf.Duration. */
function duration(ms: number | undefined): object | undefined {
  return ms === undefined ? undefined : { seconds: Math.floor(ms / 1000), nanos: (ms % 1000) * 1e6 };
}
