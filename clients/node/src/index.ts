/** A client of rlaas, a rate limiting service: it asks the server whether a request may pass. */

export type { ChannelOptions, TlsOptions } from "./channel.js";
export { Client, type ClientOptions, type Policy } from "./client.js";
export { RlaasError } from "./error.js";
export { type HttpRequest, type Key, type KeyFunction, byAddress, byHeader } from "./key.js";
export type { RateLimitOptions } from "./middleware.js";
export type { CheckRequest, RequestFields, ReserveRequest } from "./request.js";
export type { Extension, Held, Reserved } from "./reservation.js";
export type { LimitState, Reason, RuleDecision, Verdict } from "./verdict.js";
