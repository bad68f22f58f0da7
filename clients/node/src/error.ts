/** Errors of calls. */

/** The server rejected a call; or, as an argument of a policy, did not answer it. */
export class RlaasError extends Error {
  override readonly name = "RlaasError";
  /** The name of a gRPC status code, such as `UNAUTHENTICATED`. */
  readonly code: string;
  /** The message without the code. */
  readonly detail: string;
  /** @internal The reason in the google.rpc.ErrorInfo of our domain; empty without one. */
  info = "";

  constructor(code: string, detail: string, options?: ErrorOptions) {
    super(`${code}: ${detail}`, options);
    this.code = code;
    this.detail = detail;
  }
}

// The reason of a server that is overloaded, and that of a client.
const [OVERLOADED, CLIENT_OVERLOADED] = ["OVERLOADED", "CLIENT_OVERLOADED"];

// Returns the error of a request that the client has not sent, or whose answer it had no time to read.
export function overloaded(detail: string): RlaasError {
  const error = new RlaasError("RESOURCE_EXHAUSTED", detail);
  error.info = CLIENT_OVERLOADED;
  return error;
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

export function isOverload(error: RlaasError): boolean {
  return error.info === OVERLOADED || error.info === CLIENT_OVERLOADED;
}

/** Returns true if the server answered, even if it was without its store. */
export function isAnswer(error: RlaasError): boolean {
  const { code, info } = error;
  return info ? info !== CLIENT_OVERLOADED : isRejection(error) || code === "RESOURCE_EXHAUSTED";
}
