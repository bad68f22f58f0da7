/** Headers and problem documents, as those of the tower layer of rlaas-limiter. */

import { STATUS_CODES } from "node:http";

import type { RuleDecision, Verdict } from "./verdict.js";

export type Header = [name: string, value: string];

/** Which headers of limits a response has. */
export type HeaderStyle = "draft" | "legacy" | "none";

/** A response in the place of that of the application. */
export interface Rejection {
  status: number;
  headers: Header[];
  body: string;
}

/**
 * Returns RateLimit-Policy with all rules, and RateLimit with those that agree with the verdict.
 *
 * Source: draft-ietf-httpapi-ratelimit-headers-11, sections 3 and 4; RFC 9651, 3.3.3 (strings).
 */
export function limitHeaders(verdict: Verdict, style: HeaderStyle = "draft"): Header[] {
  if (style !== "draft") {
    return style === "legacy" ? legacyHeaders(verdict) : [];
  }
  const policies: string[] = [];
  const limits: string[] = [];
  for (const decision of limitingRules(verdict)) {
    const name = `"${policyName(decision.rule).replace(/["\\]/g, "\\$&")}"`;
    // The draft has no fractions of seconds.
    const seconds = (decision.windowMs ?? NaN) / 1000;
    const window = Number.isInteger(seconds) ? `;w=${seconds}` : "";
    const slots = decision.algorithm === "CONCURRENCY" ? ';qu="concurrent-requests"' : "";
    policies.push(`${name};q=${Math.max(decision.limit, 0)}${window}${slots}`);
    const isCounted = !decision.allowed || decision.reason !== "STORE_UNAVAILABLE";
    if (isCounted && decision.allowed === verdict.allowed) {
      limits.push(`${name};r=${Math.max(decision.remaining, 0)}${resetParameter(decision)}`);
    }
  }
  const lists: [string, string[]][] = [
    ["RateLimit-Policy", policies],
    ["RateLimit", limits],
  ];
  return lists.filter(([, items]) => items.length > 0).map(([name, items]) => [name, items.join(", ")]);
}

/**
 * Returns the response to a request that a limit refuses.
 *
 * Source: draft-ietf-httpapi-ratelimit-headers-11, 5.1 (the problem type `quota-exceeded`).
 */
export function overLimit(verdict: Verdict, style?: HeaderStyle): Rejection {
  const headers = limitHeaders(verdict, style);
  let detail = "waiting does not help";
  if (verdict.retryAfterMs !== null) {
    const wait = wholeSeconds(verdict.retryAfterMs);
    headers.push(["Retry-After", `${wait}`]);
    detail = `try again after ${wait} second${wait === 1 ? "" : "s"}`;
  }
  const refusing = limitingRules(verdict).filter((decision) => !decision.allowed);
  const document = {
    type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
    title: "Quota Exceeded",
    status: 429,
    detail,
    "violated-policies": refusing.map((decision) => policyName(decision.rule)),
  };
  return { status: 429, headers: ofProblem(headers), body: JSON.stringify(document) };
}

/**
 * Returns a response whose status says it all, but for the detail.
 *
 * Source: RFC 9457, 4.2.1.
 */
export function problem(status: number, detail: string, members: object = {}, headers: Header[] = []): Rejection {
  const document = { type: "about:blank", title: STATUS_CODES[status], status, detail, ...members };
  return { status, headers: ofProblem(headers), body: JSON.stringify(document) };
}

function ofProblem(headers: Header[]): Header[] {
  return [["Content-Type", "application/problem+json"], ...headers];
}

/** Returns the headers of the rule that decided, if it has a limit. */
function legacyHeaders({ rule, limit, remaining, retryAfterMs, resetAfterMs }: Verdict): Header[] {
  if (rule === "" || limit === Infinity) {
    return [];
  }
  const reset = retryAfterMs ?? resetAfterMs;
  const headers: Header[] = [
    // Not below what can remain, which a burst may be.
    ["RateLimit-Limit", `${Math.max(limit, remaining)}`],
    ["RateLimit-Remaining", `${Math.max(remaining, 0)}`],
  ];
  return reset === null ? headers : [...headers, ["RateLimit-Reset", `${wholeSeconds(reset)}`]];
}

/** Returns the decisions of the enforced rules, except those without a limit. */
function limitingRules(verdict: Verdict): RuleDecision[] {
  return verdict.decisions.filter(({ shadow, reason }) => !shadow && reason !== "UNLIMITED");
}

/** Returns the seconds until the limit resets. A ban does not end with time. */
function resetParameter({ reason, retryAfterMs, resetAfterMs }: RuleDecision): string {
  const reset = retryAfterMs ?? resetAfterMs;
  return reset === null || reason === "BANNED" ? "" : `;t=${wholeSeconds(reset)}`;
}

/** Returns the name of a rule for a structured field: all but visible ASCII is percent-encoded. */
function policyName(rule: string): string {
  const percent = (text: string) =>
    Array.from(Buffer.from(text), (byte) => `%${byte.toString(16).toUpperCase().padStart(2, "0")}`).join("");
  return rule.replace(/[^ -~]+|%/g, percent);
}

/** Rounds up. The server is exact to the microsecond, which fractions of milliseconds are not. */
export function wholeSeconds(milliseconds: number): number {
  return Math.ceil(Math.round(milliseconds * 1000) / 1e6);
}
