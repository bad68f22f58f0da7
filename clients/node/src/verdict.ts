/** Verdicts, made from the messages of the server. */

import { decodeResponse } from "./channel.js";

/** Why a request is allowed or refused. */
export type Reason =
  | "WITHIN_LIMIT"
  | "OVER_LIMIT"
  | "COST_ABOVE_LIMIT"
  | "BANNED"
  | "UNLIMITED"
  | "STORE_UNAVAILABLE"
  | "OVERLOADED"
  | "NOT_READY"
  | "NO_ANSWER"
  | "NO_RULE"
  | "HELD";

/** The state of a limit. Units are numbers, and `Infinity` if the rule has no limit. */
export interface LimitState {
  readonly allowed: boolean;
  /** Name of the rule; empty if there is none. */
  readonly rule: string;
  readonly algorithm: string;
  readonly reason: Reason;
  /** Units per window. */
  readonly limit: number;
  /** Units left; below 0 is debt. */
  readonly remaining: number;
  readonly currentCount: number;
  /** Time after which a refused request passes; null if it is allowed, or waiting does not help. */
  readonly retryAfterMs: number | null;
  /** Time until the whole limit is available again; null if it is not known. */
  readonly resetAfterMs: number | null;
  /** Time to hold an allowed request back, for an even pace; null if the rule has none. */
  readonly delayMs: number | null;
  /** True if the units in use are at or above the `near_limit` share of the rule. */
  readonly nearLimit: boolean;
}

/** The decision of one rule; one in shadow mode never refuses a request. */
export interface RuleDecision extends LimitState {
  readonly shadow: boolean;
  /** Length of the window; null for slots, and without a limit. */
  readonly windowMs: number | null;
  /** Units that the reservation of the request holds by the rule. */
  readonly held: number;
}

/** The outcome of a request, with the state of the rule that decided. */
export interface Verdict extends LimitState {
  /** The server, an earlier refusal that still holds, or the policy for requests without an answer. */
  readonly answeredBy: "server" | "cache" | "policy";
  /** True if this repeats the response to an earlier request with the same id: nothing was taken now. */
  readonly replayed: boolean;
  /** Units to use of a request with `atLeast`, 0 of a refused one; null without it, and without an answer. */
  readonly taken: number | null;
  /** The decisions of all rules that apply; those of a cached refusal only refuse. */
  readonly decisions: readonly RuleDecision[];
}

/** google.protobuf.Duration, and Timestamp. */
export interface Duration {
  seconds: number;
  nanos: number;
}

type StateMessage = Omit<LimitState, "retryAfterMs" | "resetAfterMs" | "delayMs"> &
  Record<"retryAfter" | "resetAfter" | "delay", Duration | null>;

type DecisionMessage = StateMessage & { shadow: boolean; window: Duration | null; held: number };

/** CheckResponse of the proto. */
export type VerdictMessage = StateMessage & {
  replayed: boolean;
  taken?: number | null;
  decisions: DecisionMessage[];
};

/** The same as that of a server without its store. */
const RETRY_AFTER_MS = 1000;

export function fromMessage(message: VerdictMessage): Verdict {
  const decisions = message.decisions.map((each) => {
    return { ...state(each), shadow: each.shadow, windowMs: milliseconds(each.window), held: each.held };
  });
  const { replayed, taken = null } = message;
  return { ...state(message), answeredBy: "server", replayed, taken, decisions };
}

/** Returns the verdict on a request that no rule has decided. */
export function undecided(allowed: boolean, reason: Reason, answeredBy: Verdict["answeredBy"]): Verdict {
  // Waiting does not help where no rule matches.
  const retryAfterMs = allowed || reason === "NO_RULE" ? null : RETRY_AFTER_MS;
  return { ...NO_STATE, allowed, retryAfterMs, reason, answeredBy };
}

/** Returns a refusal as it reads later. */
export function later(verdict: Verdict, elapsedMs: number): Verdict {
  const shorten = (wait: number | null) => (wait === null ? null : Math.max(wait - elapsedMs, 0.001));
  const shortened = <S extends LimitState>(state: S): S => ({
    ...state,
    retryAfterMs: shorten(state.retryAfterMs),
    resetAfterMs: shorten(state.resetAfterMs),
  });
  // The rules that allowed the request may refuse it by now.
  const decisions = verdict.decisions.filter((decision) => !decision.allowed).map(shortened);
  return { ...shortened(verdict), answeredBy: "cache", decisions };
}

const NO_STATE = fromMessage(decodeResponse("Check", Buffer.alloc(0)));

function state({ allowed, rule, algorithm, reason, nearLimit, ...message }: StateMessage): LimitState {
  return {
    allowed,
    rule,
    algorithm,
    reason,
    nearLimit,
    limit: units(message.limit),
    remaining: units(message.remaining),
    currentCount: message.currentCount,
    retryAfterMs: milliseconds(message.retryAfter),
    resetAfterMs: milliseconds(message.resetAfter),
    delayMs: milliseconds(message.delay),
  };
}

/** The largest limit is 999,999,999,999,999: only the largest int64, of rules without a limit, is not exact. */
function units(number: number): number {
  return number > Number.MAX_SAFE_INTEGER ? Infinity : number;
}

export function milliseconds(duration: Duration | null): number | null {
  return duration && duration.seconds * 1000 + duration.nanos / 1e6;
}
