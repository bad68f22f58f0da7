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
  /** The resource of calls that name none, by default `/v1/chat/completions`. */
  resource?: string;
  /** Attributes of all calls. They also have `model`, if it is known. */
  attributes?: Record<string, string>;
  /** Output tokens to hold for a call that does not bound its answer, by default 4096. */
  defaultOutput?: number;
  /** Time to hold, extended while the call lasts; by default that of the rules. */
  holdMs?: number;
  /** Estimates the tokens of a prompt, by default one for four bytes of its JSON, without files. */
  estimate?: (prompt: unknown) => number;
  /** Returns the price of a usage of a model, rounded up, for the rule `money`. */
  price?: (model: string, usage: Usage) => number;
  /** The name of the rule of prices, by default `money`. */
  money?: string;
  /** The names of the rules that the headers of a refusal are about, by default `tokens` and `requests`. */
  tokens?: string;
  requests?: string;
  /** Receives what each call is charged. */
  onSettled?: (usage: ChargedUsage, request: RequestFields) => void;
}

/** What is known of a call before it is made. */
export interface CallEstimate {
  /** Tokens of the prompt. */
  estimate: number;
  /** The most tokens of the answer, by default `defaultOutput`. */
  maxTokens?: number | undefined;
  model?: string;
}

const OPTIONS = "resource attributes defaultOutput holdMs estimate price money tokens requests onSettled".split(" ");
const RESOURCE = "/v1/chat/completions";
const DEFAULT_OUTPUT = 4096;
/** The server shortens it to the time of the rules. */
const LONGEST_HOLD_MS = 86_400_000;
/** A call whose answer nobody reads, and nobody cancels, holds no longer than this. */
const MAX_CALL_MS = 3_600_000;
/** Without an answer a settlement is repeated for so long. The server knows for 10 minutes what it has settled. */
const REPEAT_MS = 300_000;
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
    const { resource = RESOURCE, holdMs, defaultOutput = DEFAULT_OUTPUT, price, money = "money" } = options;
    const fields = typeof request === "string" ? { userId: request } : request;
    const attributes = { ...options.attributes, ...(model && { model }), ...fields.attributes };
    const costsOf = (usage: Usage) => {
      const prices = price && { [money]: units(price(model, usage)) };
      return { cost: units(usage.total), costs: { ...fields.costs, ...prices } };
    };
    const most = toUsage({ input: estimate, output: maxTokens ?? defaultOutput });
    const whole = { resource, ...fields, attributes, ...costsOf(most) };
    const held = await client.hold({ ...whole, holdMs }, REPEAT_MS);
    if (!held.verdict.allowed) {
      throw new BudgetError(held.verdict, options);
    }
    const settle = async (reader: UsageReader) => {
      const usage = reader.charged(most.input);
      const { cost, costs } = costsOf(usage);
      await (isUncounted(held) ? client.report({ ...whole, cost, costs }) : held.commit(cost, costs));
      options.onSettled?.(usage, whole);
    };
    return new BudgetCall(client, held, holdMs ?? LONGEST_HOLD_MS, settle);
  }

  /** @internal Estimates the tokens of a prompt. */
  estimate(prompt: unknown): number {
    const { estimate = (value) => tokensOf(Buffer.byteLength(JSON.stringify(value, withoutFiles))) } = this.options;
    return estimate(prompt);
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
    holdMs: number,
    private readonly settle: (reader: UsageReader) => Promise<void>,
  ) {
    if (held.id) {
      const half = Math.max(Math.min(holdMs, held.lastsMs) / 2, MIN_HALF_MS);
      const until = performance.now() + MAX_CALL_MS;
      this.#timer = setInterval(() => this.#extend(holdMs, until), half).unref();
    }
  }

  /** The verdict that allowed the call. */
  get verdict(): Verdict {
    return this.held.verdict;
  }

  /** Charges this usage, or without it what is known: the estimate of the prompt, and what was streamed. Never rejects. */
  end(usage?: Usage): Promise<void> {
    this.reader.usage = usage ?? this.reader.usage;
    return this.#once(() => this.settle(this.reader));
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
          passed.forEach((chunk) => controller.enqueue(chunk));
          if (done) {
            await this.end();
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

  #extend(holdMs: number, until: number): void {
    if (performance.now() >= until) {
      return clearInterval(this.#timer);
    }
    this.held.extend({ holdMs }).catch((error) => {
      // An extension that a settlement overtakes finds nothing.
      this.#settlement || this.client.warn("extend", `rlaas: reservation not extended: ${error}`);
    });
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
    { tokens = "tokens", requests = "requests" }: BudgetOptions,
  ) {
    const { rule, reason, retryAfterMs, decisions } = verdict;
    const wait = retryAfterMs === null ? "" : `, try again in ${wholeSeconds(retryAfterMs)} s`;
    super(`${rule ? `budget exceeded (${rule}: ${reason})` : `no decision (${reason})`}${wait}`);
    this.status = rule ? 429 : reason === "NO_RULE" ? 403 : 503;
    this.retryAfterMs = retryAfterMs;
    this.isRetryable = retryAfterMs !== null && retryAfterMs <= MAX_WAIT_MS;
    this.headers = Object.fromEntries(limitHeaders(verdict).map(([name, value]) => [name.toLowerCase(), value]));
    if (retryAfterMs !== null) {
      this.headers["retry-after"] = `${wholeSeconds(retryAfterMs)}`;
      this.headers["retry-after-ms"] = `${Math.ceil(retryAfterMs)}`;
    }
    if (!this.isRetryable) {
      this.headers["x-should-retry"] = "false";
    }
    for (const { rule, limit, remaining, resetAfterMs } of decisions) {
      const unit = rule === tokens ? "tokens" : "requests";
      if ([tokens, requests].includes(rule) && limit < Infinity) {
        this.headers[`x-ratelimit-limit-${unit}`] = `${limit}`;
        this.headers[`x-ratelimit-remaining-${unit}`] = `${Math.max(remaining, 0)}`;
        this.headers[`x-ratelimit-reset-${unit}`] = clockTime(wholeSeconds(resetAfterMs ?? 0));
      }
    }
  }
}

/** Returns true if nothing is held since nobody could hold it; then the cost is reported. */
function isUncounted({ id, verdict }: Held): boolean {
  const isStoreAway = verdict.decisions.some(({ reason }) => reason === "STORE_UNAVAILABLE");
  return id === "" && (verdict.answeredBy === "policy" || isStoreAway);
}

/** Returns a time as OpenAI writes it, such as 6m0s. */
function clockTime(seconds: number): string {
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
  return `${hours ? `${hours}h` : ""}${seconds >= 60 ? `${minutes}m` : ""}${seconds % 60}s`;
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
