/** Requests: their messages, and their keys in the cache of refusals. */

import { createHash } from "node:crypto";

import { RlaasError } from "./error.js";

/** A request to be decided. The rules of the server match its parts. */
export interface RequestFields {
  /** The user or client: 1 to 1024 bytes. */
  userId: string;
  /** What the request is for, such as a path: up to 1024 bytes. */
  resource?: string | undefined;
  /** Further properties: up to 32, with names of 1 to 64 bytes and values of up to 1024. */
  attributes?: Record<string, string> | undefined;
  /** Units to take: 0 to 2^32 - 1, by default 1; 0 only looks. */
  cost?: number | undefined;
  /** Units to take from single rules, by name, in the place of `cost`. */
  costs?: Record<string, number> | undefined;
  /** Takes what is there: any number of units from this one to `cost` will do, and `taken` says how many. */
  atLeast?: number | undefined;
  /** Decides without taking units. */
  dryRun?: boolean | undefined;
  /** Idempotency key, up to 64 bytes: the server takes the units of the same request with the same id once. */
  requestId?: string | undefined;
}

/** A request, or the user id of one that has nothing else. */
export type CheckRequest = RequestFields | string;

/** A request whose cost is held, for `holdMs` at most: 100 ms to 24 h, by default the time of the rules. */
export type ReserveRequest = (RequestFields & { holdMs?: number | undefined }) | string;

// Of a longer request the key is a hash, which bounds the memory.
const MAX_KEY = 512;

/**
 * Returns the message of a request. What the server rejects, or the encoder would change silently, such as -1 or
 * half of a surrogate pair, is an error: it must not get the verdict of the policy.
 */
export function toMessage(request: CheckRequest): RequestFields {
  const fields = typeof request === "string" ? { userId: request } : request;
  const { userId, resource = "", attributes = {}, cost, costs = {}, atLeast = 0 } = fields;
  const { dryRun = false, requestId = "" } = fields;
  checkTexts("userId", [userId], 1, 1024);
  checkTexts("resource", [resource], 0, 1024);
  checkTexts("requestId", [requestId], 0, 64);
  if (Object.keys(attributes).length > 32) {
    throw new RlaasError("INVALID_ARGUMENT", "attributes must be at most 32");
  }
  checkTexts("names of attributes", Object.keys(attributes), 1, 64);
  checkTexts("values of attributes", Object.values(attributes), 0, 1024);
  checkTexts("names of costs", Object.keys(costs));
  checkUnits(cost);
  Object.values(costs).forEach(checkUnits);
  checkUnits(atLeast);
  if (atLeast > (cost ?? 1)) {
    throw new RlaasError("INVALID_ARGUMENT", "atLeast must be 0 to the cost");
  }
  return { userId, resource, attributes, cost, costs, atLeast, dryRun, requestId };
}

/** Throws unless all these texts are strings of whole characters, with so many bytes. */
function checkTexts(field: string, texts: unknown[], min = 0, max = Infinity): void {
  for (const text of texts) {
    const isText = typeof text === "string" && !/\p{Surrogate}/u.test(text);
    if (!isText || Buffer.byteLength(text) < min || Buffer.byteLength(text) > max) {
      throw new RlaasError("INVALID_ARGUMENT", `${field} must be ${min} to ${max} bytes of UTF-8`);
    }
  }
}

/** Throws if these units are not a number that the server has. */
export function checkUnits(units: number | undefined): void {
  if (units !== undefined && !(Number.isInteger(units) && units >= 0 && units < 2 ** 32)) {
    throw new RlaasError("INVALID_ARGUMENT", "costs and holdMs must be whole numbers of 0 to 2^32 - 1");
  }
}

// With its key, a bound of its size, and whether a refusal of the past may answer it.
export type Question = ReturnType<typeof toQuestion>;

/** Returns a request to be decided. Equal requests have the same key, whatever their ids. */
export function toQuestion(message: RequestFields) {
  const { userId, resource, attributes = {}, cost = 1, costs = {}, atLeast, dryRun, requestId } = message;
  const takesNothing = dryRun || (cost === 0 && Object.keys(costs).length === 0);
  // A request with an id may be a retry whose units were taken; one that takes nothing reads the current state.
  const isRepeatable = !requestId && !takesNothing;
  const sorted = (map: object) => Object.entries(map).sort(([a], [b]) => (a < b ? -1 : 1));
  const text = JSON.stringify([userId, resource, cost, sorted(attributes), sorted(costs), isRepeatable, atLeast]);
  const key = text.length <= MAX_KEY ? text : createHash("sha256").update(text).digest("base64");
  // A character has three bytes at most, and an id 64.
  return { message, key, bytes: 3 * text.length + 64, isRepeatable };
}
