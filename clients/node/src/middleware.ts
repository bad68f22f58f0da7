/** What the middleware of all frameworks does. */

import { checkNames } from "./channel.js";
import { Client, type ClientOptions, OPTIONS } from "./client.js";
import { RlaasError } from "./error.js";
import { type Header, type HeaderStyle, type Rejection, limitHeaders, overLimit, problem } from "./headers.js";
import { type HttpRequest, type KeyFunction, byAddress } from "./key.js";
import type { RequestFields } from "./request.js";
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
};

const OWN = "key resource cost skip headers rule strict".split(" ");

/** The headers to add to a response, and the rejection of the request if it is one. */
export interface Admission {
  headers: Header[];
  rejection?: Rejection;
  /** The verdict, unless the request is exempt or not valid. */
  verdict?: Verdict;
}

/** Decides requests by their keys. */
export class Admitter<R extends HttpRequest> {
  readonly client: Client;
  /** True if the client is that of the middleware alone. */
  readonly ownsClient: boolean;
  readonly #key: KeyFunction<R>;
  readonly #options: Omit<RateLimitOptions<R>, "client" | "address">;
  #hasLogged = false;

  constructor(options: RateLimitOptions<R>) {
    this.ownsClient = !("client" in options);
    checkNames(options, [...OWN, ...(this.ownsClient ? ["address", ...OPTIONS] : ["client"])]);
    if ("client" in options) {
      this.client = options.client;
    } else {
      const { address, key, resource, cost, skip, headers, rule, strict, ...settings } = options;
      this.client = new Client(address, settings);
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
      const verdict = await this.client.check(fields);
      return this.#lacksRule(verdict, fields)
        ? reject(problem(500, "a rule is missing"))
        : toAdmission(verdict, headers);
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

  /** Returns true if the rule of the options is missing in a decision, and the request is not to pass. */
  #lacksRule({ answeredBy, reason, decisions }: Verdict, { resource }: RequestFields): boolean {
    const { rule, strict = false } = this.#options;
    const isDecided = answeredBy === "server" && !UNAVAILABLE.includes(reason);
    if (rule === undefined || !isDecided || decisions.some((decision) => decision.rule === rule)) {
      return false;
    }
    if (!this.#hasLogged) {
      const others = decisions.map((decision) => decision.rule).join(", ") || "no rule";
      this.client.warn(
        `rule ${rule} ${resource}`,
        `rlaas: rule ${rule} does not limit ${resource}: ${others} decided`,
      );
      this.#hasLogged = true;
    }
    return strict;
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
