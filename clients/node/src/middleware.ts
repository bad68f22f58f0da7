/** What the middleware of all frameworks does. */

import type { ServerResponse } from "node:http";

import { checkNames } from "./channel.js";
import { Client, type ClientOptions, OPTIONS } from "./client.js";
import { RlaasError } from "./error.js";
import { type Header, type HeaderStyle, type Rejection, limitHeaders, overLimit, problem } from "./headers.js";
import { type HttpRequest, type KeyFunction, byAddress } from "./key.js";
import type { RequestFields } from "./request.js";
import type { Held } from "./reservation.js";
import { Turns } from "./turns.js";
import type { Verdict } from "./verdict.js";

/** No server would decide these requests. Allowing them would be a way past every limit. */
const INVALID = ["INVALID_ARGUMENT", "FAILED_PRECONDITION", "OUT_OF_RANGE"];

// Without a rule these are not a limit: no decision is possible at present.
const UNAVAILABLE = ["NO_ANSWER", "STORE_UNAVAILABLE", "OVERLOADED", "NOT_READY"];

/** Settings of a middleware: those of its own client, or a client that others use too; and the key. */
export type RateLimitOptions<R> = (({ address: string } & ClientOptions) | { client: Client }) & {
  /** What requests are limited by. By default the address of the peer: count your proxies, see `byAddress`. */
  key?: KeyFunction<R>;
  /** The resource of requests whose key has none, in the place of the path, or the route. */
  resource?: string | ((request: R) => string);
  /** Units of requests whose key has no cost, by default 1. */
  cost?: number | ((request: R) => number);
  /** Exempts the requests for which it returns true. */
  skip?: (request: R) => boolean | Promise<boolean>;
  /** Headers of responses, by default `draft`; `legacy` are RateLimit-Limit, -Remaining and -Reset. */
  headers?: HeaderStyle;
  /** The rule that is to limit these requests. The first decision without it is logged. */
  rule?: string;
  /** Answers such requests with status 500. */
  strict?: boolean;
  /**
   * Has only responses with a status of at least 400 counted, or only the others: the units are reserved, and then
   * charged or returned. `rule` must be set, and `reservable`: else the status is 500.
   */
  count?: "failures" | "successes";
  /**
   * How long requests wait in place of a refusal, if they can be allowed by then. Those with one key wait in turn, and
   * at most 1000 of a route.
   */
  waitMs?: number;
};

const OWN = "key resource cost skip headers rule strict count waitMs".split(" ");

/** The headers to add to a response, and the rejection of the request if it is one. */
export interface Admission {
  headers: Header[];
  rejection?: Rejection;
  /** The verdict, unless the request is exempt or not valid. */
  verdict?: Verdict;
  /** What is held until the response ends. */
  held?: Held;
}

/** Decides requests by their keys. */
export class Admitter<R extends HttpRequest> {
  readonly client: Client;
  /** True if the client is that of the middleware alone. */
  readonly ownsClient: boolean;
  readonly #key: KeyFunction<R>;
  readonly #options: Omit<RateLimitOptions<R>, "client" | "address">;
  readonly #turns = new Turns();
  #hasLogged = false;

  constructor(options: RateLimitOptions<R>) {
    this.ownsClient = !("client" in options);
    checkNames(options, [...OWN, ...(this.ownsClient ? ["address", ...OPTIONS] : ["client"])]);
    if ("client" in options) {
      this.client = options.client;
    } else {
      const { address, key, resource, cost, skip, headers, rule, strict, count, waitMs, ...settings } = options;
      this.client = new Client(address, settings);
    }
    if (options.count && !(["failures", "successes"].includes(options.count) && options.rule)) {
      throw new TypeError("count must be failures or successes, with the name of a reservable rule");
    }
    if (!["draft", "legacy", "none"].includes(options.headers ?? "draft")) {
      throw new TypeError("headers must be draft, legacy or none");
    }
    this.#options = options;
    this.#key = options.key ?? byAddress();
  }

  /** Decides a request to a path. An error of the key function is that of the application. */
  async admit(request: R, path: string): Promise<Admission> {
    const { resource, cost, skip, headers } = this.#options;
    let fields: RequestFields | undefined;
    try {
      if (await skip?.(request)) {
        return { headers: [] };
      }
      const key = await this.#key(request);
      if (key === null || key === undefined) {
        return { headers: [] };
      }
      fields = typeof key === "string" ? { userId: key } : { ...key };
      fields.resource ??= (typeof resource === "function" ? resource(request) : resource) ?? path;
      fields.cost ??= typeof cost === "function" ? cost(request) : cost;
      const { verdict, held } = await this.#decide(fields);
      if (this.#isMistaken(verdict, fields)) {
        await held?.cancel().catch(() => {});
        return reject(problem(500, "a rule is missing"));
      }
      return { ...toAdmission(verdict, headers), ...(held?.id && { held }) };
    } catch (error) {
      // Only `byAddress` throws INTERNAL: no call rejects with it.
      if (error instanceof RlaasError && [...INVALID, "INTERNAL"].includes(error.code)) {
        this.client.warn(error.code, `rlaas: request rejected: ${error.message}`);
        return reject(problem(error.code === "INTERNAL" ? 500 : 400, error.detail));
      }
      // For other mistakes of the program the policy decides: a wrong token does not take a site down.
      if (error instanceof RlaasError && fields) {
        return toAdmission(await this.client.byPolicy(fields, error), headers);
      }
      throw error;
    }
  }

  /** Settles what is held when a response ends. One that has not begun by then is a failure. */
  settle(held: Held, response: ServerResponse): void {
    const end = () => {
      const isFailure = !response.headersSent || response.statusCode >= 400;
      const isCounted = isFailure === (this.#options.count === "failures");
      // There is a warning.
      (isCounted ? held.commit() : held.cancel()).catch(() => {});
    };
    response.destroyed ? end() : response.once("close", end);
  }

  #decide(fields: RequestFields): Promise<{ verdict: Verdict; held?: Held }> {
    const { count, waitMs = 0 } = this.#options;
    const attempt = async () => {
      const held = count && (await this.client.hold(fields));
      return held ? { verdict: held.verdict, held } : { verdict: await this.client.check(fields) };
    };
    return waitMs > 0 ? this.#turns.decide(waitMs, JSON.stringify(fields), attempt) : attempt();
  }

  /** Returns true if a request is not to pass although it is decided: its rule is missing, or holds nothing to count. */
  #isMistaken({ allowed, answeredBy, reason, rule: by, decisions }: Verdict, { resource }: RequestFields): boolean {
    const { rule, strict = false, count } = this.#options;
    // The tests' client without limits has no rule.
    const isDecided = answeredBy === "server" && !UNAVAILABLE.includes(reason) && (by || reason !== "UNLIMITED");
    const found = decisions.find((decision) => decision.rule === rule);
    const holds = !count || !allowed || found?.held || found?.reason !== "WITHIN_LIMIT";
    if (rule === undefined || !isDecided || (found && holds)) {
      return false;
    }
    if (!this.#hasLogged) {
      const others = decisions.map((decision) => decision.rule).join(", ") || "no rule";
      const text = found
        ? `rule ${rule} must be reservable to count ${count}`
        : `rule ${rule} does not limit ${resource}: ${others} decided`;
      this.client.warn(`rule ${rule} ${resource}`, `rlaas: ${text}`);
      this.#hasLogged = true;
    }
    return strict || count !== undefined;
  }
}

/** Returns the value of a header after that of others: lists of policies are appended to, the rest is replaced. */
export function appended(before: unknown, name: string, value: string): string {
  const isList = name === "RateLimit" || name === "RateLimit-Policy";
  return before !== undefined && isList ? `${before}, ${value}` : value;
}

function toAdmission(verdict: Verdict, headers?: HeaderStyle): Admission {
  if (verdict.allowed) {
    return { headers: limitHeaders(verdict, headers), verdict };
  }
  if (UNAVAILABLE.includes(verdict.reason) && verdict.rule === "") {
    return reject(problem(503, "rate limiter unavailable", {}, [["Retry-After", "1"]]), verdict);
  }
  if (verdict.reason === "NO_RULE") {
    return reject(problem(403, "no rule matches", { reason: "NO_RULE" }), verdict);
  }
  return reject(overLimit(verdict, headers), verdict);
}

function reject(rejection: Rejection, verdict?: Verdict): Admission {
  return { headers: rejection.headers, rejection, ...(verdict && { verdict }) };
}

/** Returns the path of a URL, decoded: an absolute URL, a query and percent-encoding avoid no rule. */
export function pathOf(url: string): string {
  const path = url.replace(/^\w+:\/\/[^/?#]*/, "").replace(/[?#].*$/s, "") || "/";
  try {
    return decodeURIComponent(path);
  } catch {
    return path;
  }
}
