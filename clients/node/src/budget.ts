/** Budgets of tokens: the most that a call of a language model can cost is held, and what it did cost is charged. */

import { checkNames } from "./channel.js";
import type { Client } from "./client.js";
import { limitHeaders, wholeSeconds } from "./headers.js";
import type { CheckRequest, RequestFields } from "./request.js";
import type { Held } from "./reservation.js";
import { type ChargedUsage, type Usage, UsageReader, toUsage, tokensOf } from "./usage.js";
import type { Verdict } from "./verdict.js";

/** Settings of a budget. */
export interface BudgetOptions {
  /** The resource of calls that name none. */
  resource?: string;
  /** Attributes of all calls. They also have `model`, if it is known. */
  attributes?: Record<string, string>;
  /** Output tokens to hold for a call that does not bound its answer, by default 4096. */
  defaultOutput?: number;
  /** Time to hold, extended while the call lasts; by default that of the rules. */
  holdMs?: number;
  /** Estimates the tokens of a prompt, by default one for four bytes of its JSON, without files. */
  estimate?: (prompt: unknown) => number;
  /** Returns the cost for single rules, by name, such as the price for a rule of money. */
  price?: (usage: Usage, model: string) => Record<string, number>;
  /** Receives what each call is charged. */
  onSettled?: (usage: ChargedUsage, request: RequestFields) => void;
  /** Names of the rules that the headers of a refusal are about, by default `tokens` and `requests`. */
  headerRules?: { tokens?: string; requests?: string };
}

/** What is known of a call before it is made. */
export interface CallEstimate {
  /** Tokens of the prompt. */
  estimate: number;
  /** The most tokens of the answer, by default `defaultOutput`. */
  maxTokens?: number | undefined;
  model?: string;
}

const OPTIONS = "resource attributes defaultOutput holdMs estimate price onSettled headerRules".split(" ");
const DEFAULT_OUTPUT = 4096;
/** The server shortens it to the time of the rules. */
const LONGEST_HOLD_MS = 86_400_000;
/** A call whose answer nobody reads, and nobody cancels, holds no longer than this. */
const MAX_CALL_MS = 3_600_000;
/** Half of the shortest time that the server holds. */
const MIN_HALF_MS = 50;
const MAX_UNITS = 2 ** 32 - 1;
/** What SDKs wait for at most before they try again. */
const MAX_WAIT_MS = 60_000;

/** A budget of tokens, for one client. */
export class Budget {
  constructor(
    readonly client: Client,
    readonly options: BudgetOptions = {},
  ) {
    checkNames(options, OPTIONS);
  }

  /**
   * Holds the estimate and the most tokens of an answer. Settle the call, whatever happens: it is extended until then.
   * Rejects with a `BudgetError` if the request is refused, and with a `RlaasError` as a reservation does.
   */
  async call(request: CheckRequest, { estimate, maxTokens, model = "" }: CallEstimate): Promise<BudgetCall> {
    const { client, options } = this;
    const { resource, holdMs, headerRules } = options;
    const fields = typeof request === "string" ? { userId: request } : request;
    const attributes = { ...options.attributes, ...(model && { model }), ...fields.attributes };
    const usage = toUsage({ input: estimate, output: maxTokens ?? this.defaultOutput });
    const costs = { ...fields.costs, ...this.#costs(usage, model) };
    const whole = { resource, ...fields, attributes, cost: units(usage.total), costs };
    const held = await client.hold({ ...whole, holdMs });
    if (!held.verdict.allowed) {
      throw new BudgetError(held.verdict, headerRules);
    }
    const settle = async (charged: ChargedUsage) => {
      const [cost, prices] = [units(charged.total), { ...fields.costs, ...this.#costs(charged, model) }];
      await (isUncounted(held) ? client.report({ ...whole, cost, costs: prices }) : held.commit(cost, prices));
      options.onSettled?.(charged, whole);
    };
    return new BudgetCall(client, held, usage.input, holdMs, settle);
  }

  /** @internal */
  get defaultOutput(): number {
    return this.options.defaultOutput ?? DEFAULT_OUTPUT;
  }

  /** @internal Estimates the tokens of a prompt. */
  estimate(prompt: unknown): number {
    const { estimate = (value) => tokensOf(Buffer.byteLength(JSON.stringify(value, withoutFiles))) } = this.options;
    return estimate(prompt);
  }

  #costs(usage: Usage, model: string): Record<string, number> {
    const prices = Object.entries(this.options.price?.(usage, model) ?? {});
    return Object.fromEntries(prices.map(([rule, price]) => [rule, units(price)]));
  }
}

/** A call of a language model, for which units are held until its first settlement. */
export class BudgetCall {
  /** @internal */
  readonly reader = new UsageReader();
  #timer: NodeJS.Timeout | undefined;
  #settlement: Promise<void> | undefined;

  /** @internal */
  constructor(
    private readonly client: Client,
    private readonly held: Held,
    private readonly estimate: number,
    private readonly holdMs: number | undefined,
    private readonly settle: (charged: ChargedUsage) => Promise<void>,
  ) {
    if (held.id) {
      const [half, startedAt] = [Math.min(holdMs ?? LONGEST_HOLD_MS, held.lastsMs) / 2, performance.now()];
      this.#timer = setInterval(() => this.#extend(startedAt), Math.max(half, MIN_HALF_MS)).unref();
    }
  }

  /** The verdict that allowed the call. */
  get verdict(): Verdict {
    return this.held.verdict;
  }

  /** Charges this usage, or without it what is known: the estimate of the prompt, and what was streamed. Never rejects. */
  end(usage?: Usage): Promise<void> {
    this.reader.usage = usage ?? this.reader.usage;
    return this.#once(() => this.settle(this.reader.charged(this.estimate)));
  }

  /** Charges nothing, as for a call that the provider has refused. Never rejects. */
  cancel(): Promise<void> {
    return this.#once(() => this.held.cancel());
  }

  /** @internal Ends the call if its answer is not an error of the provider; such an answer has no tokens. */
  fail(status: unknown): Promise<void> {
    return typeof status === "number" && status >= 400 ? this.cancel() : this.end();
  }

  /**
   * @internal Passes a stream on, and ends the call with it, by an error of either side too. The function reads each
   * chunk, and undefined at the end, and returns what to pass on.
   */
  stream<T>(source: ReadableStream<T>, pass: (chunk: T | undefined) => T[] | Promise<T[]>): ReadableStream<T> {
    const reader = source.getReader();
    const pull = async (controller: ReadableStreamDefaultController<T>) => {
      try {
        for (let passed: T[] = []; passed.length === 0;) {
          const { done, value } = await reader.read();
          passed = await pass(value);
          if (done) {
            await this.end();
          }
          passed.forEach((chunk) => controller.enqueue(chunk));
          if (done) {
            return controller.close();
          }
        }
      } catch (error) {
        await this.end();
        controller.error(error);
      }
    };
    const cancel = async (reason: unknown) => {
      await Promise.all([reader.cancel(reason), this.end()]);
    };
    return new ReadableStream({ pull, cancel }, { highWaterMark: 0 });
  }

  #once(settle: () => Promise<unknown>): Promise<void> {
    clearInterval(this.#timer);
    this.#settlement ??= settle().then(
      () => {},
      (error) => this.client.warn("settle", `rlaas: call not settled: ${error}`),
    );
    return this.#settlement;
  }

  #extend(startedAt: number): void {
    if (performance.now() - startedAt >= MAX_CALL_MS) {
      return clearInterval(this.#timer);
    }
    const extended = this.held.extend({ holdMs: this.holdMs ?? LONGEST_HOLD_MS });
    extended.catch((error) => this.client.warn("extend", `rlaas: reservation not extended: ${error}`));
  }
}

/** A refused call. `status` is 429, without a decision 503, and where no rule matches 403. */
export class BudgetError extends Error {
  override readonly name = "BudgetError";
  readonly status: 403 | 429 | 503;
  readonly retryAfterMs: number | null;
  /** True if SDKs may try again after the wait. */
  readonly isRetryable: boolean;
  /** The headers that SDKs read. */
  readonly headers: Record<string, string>;

  /** @internal */
  constructor(
    readonly verdict: Verdict,
    { tokens = "tokens", requests = "requests" }: NonNullable<BudgetOptions["headerRules"]> = {},
  ) {
    const { rule, reason, retryAfterMs, decisions } = verdict;
    const wait = retryAfterMs === null ? "" : `, try again in ${wholeSeconds(retryAfterMs)} s`;
    super(rule ? `budget exceeded (${rule}: ${reason})${wait}` : `no decision (${reason})${wait}`);
    this.status = rule ? 429 : reason === "NO_RULE" ? 403 : 503;
    this.retryAfterMs = retryAfterMs;
    this.isRetryable = retryAfterMs !== null && retryAfterMs <= MAX_WAIT_MS;
    const headers = limitHeaders(verdict);
    if (retryAfterMs !== null) {
      headers.push(
        ["retry-after", `${wholeSeconds(retryAfterMs)}`],
        ["retry-after-ms", `${Math.ceil(retryAfterMs)}`],
      );
    }
    // Source: the SDKs of OpenAI and Anthropic.
    headers.push(["x-should-retry", `${this.isRetryable}`]);
    for (const [kind, name] of Object.entries({ tokens, requests })) {
      const state = decisions.find((decision) => decision.rule === name);
      const reset = state && (state.retryAfterMs ?? state.resetAfterMs);
      if (state && Number.isFinite(state.limit)) {
        headers.push([`x-ratelimit-limit-${kind}`, `${state.limit}`]);
        headers.push([`x-ratelimit-remaining-${kind}`, `${Math.max(state.remaining, 0)}`]);
      }
      if (typeof reset === "number") {
        headers.push([`x-ratelimit-reset-${kind}`, `${wholeSeconds(reset)}s`]);
      }
    }
    this.headers = Object.fromEntries(headers.map(([name, value]) => [name.toLowerCase(), value]));
  }
}

/** Returns true if nothing is held since nobody could hold it; then the cost is reported. */
function isUncounted({ id, verdict }: Held): boolean {
  const isStoreAway = verdict.decisions.some(({ reason }) => reason === "STORE_UNAVAILABLE");
  return id === "" && (verdict.answeredBy === "policy" || isStoreAway);
}

/** Returns whole units that the server has. */
function units(count: number): number {
  return Math.min(Math.ceil(count), MAX_UNITS);
}

/** Leaves the contents of files out of JSON, whose tokens are not those of their bytes. */
function withoutFiles(key: string, value: unknown): unknown {
  const isData = key === "data" && (typeof value === "string" || Array.isArray(value));
  return isData || ArrayBuffer.isView(value) || (typeof value === "string" && value.startsWith("data:")) ? "" : value;
}
