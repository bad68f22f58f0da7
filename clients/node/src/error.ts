/** Errors of calls. */

import { type ServiceError, status } from "@grpc/grpc-js";

import { decodeErrorDetails } from "./channel.js";

/** The server rejected a call; or, as an argument of a policy, did not answer it. */
export class RlaasError extends Error {
  override readonly name = "RlaasError";
  /** The name of a gRPC status code, such as `UNAUTHENTICATED`. */
  readonly code: string;
  /** The message without the code. */
  readonly detail: string;

  constructor(code: string, detail: string, options?: ErrorOptions) {
    super(`${code}: ${detail}`, options);
    this.code = code;
    this.detail = detail;
  }
}

/** A call after `close` fails without a status. */
export function fromServiceError(error: Partial<ServiceError>): RlaasError {
  const code = status[error.code ?? status.CANCELLED];
  return new RlaasError(code, error.details ?? error.message ?? "", { cause: error });
}

const REJECTIONS = new Set([
  "INVALID_ARGUMENT",
  "UNAUTHENTICATED",
  "PERMISSION_DENIED",
  "UNIMPLEMENTED",
  "NOT_FOUND",
  "FAILED_PRECONDITION",
  "OUT_OF_RANGE",
]);

/** Returns true if the server answered, and would answer the same again. */
export function isRejection(error: RlaasError): boolean {
  return REJECTIONS.has(error.code);
}

/** Returns true if the call failed because no rule matches, which is a verdict. */
export function isNoRule(error: RlaasError): boolean {
  const { metadata } = (error.cause ?? {}) as Partial<ServiceError>;
  const [details] = metadata?.get("grpc-status-details-bin") ?? [];
  if (!Buffer.isBuffer(details)) {
    return false;
  }
  return decodeErrorDetails(details).some(({ domain, reason }) => domain === "rlaas" && reason === "NO_RULE");
}
