// Checks the rate limit of each user id on standard input.

import { randomUUID } from "node:crypto";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

// Deadline of a call. The default is generous for a first try. In production, with established
// connections, 20 ms is enough.
const DEADLINE_MS = Number(process.env.DEADLINE_MS ?? 5000);

// What to do without a response. true allows the request: during an outage of rlaas there is no
// limit. false rejects it: an outage of rlaas is an outage of your service.
const FAIL_OPEN = true;

// Errors caused by this client: throw them. After any other error, usually UNAVAILABLE or
// DEADLINE_EXCEEDED, FAIL_OPEN applies.
const CLIENT_ERRORS = new Set([
  grpc.status.INVALID_ARGUMENT,
  grpc.status.PERMISSION_DENIED,
  grpc.status.UNAUTHENTICATED,
  grpc.status.UNIMPLEMENTED,
]);

// Repeats a call without an answer within its deadline. The request id makes that safe.
const RETRY = {
  retryPolicy: {
    maxAttempts: 3,
    initialBackoff: "0.005s",
    maxBackoff: "0.02s",
    backoffMultiplier: 2,
    retryableStatusCodes: ["UNAVAILABLE"],
  },
};

// Instead sends the call again as soon as the answer takes longer than this, and takes the first
// answer. For low latency with several servers.
const HEDGING_DELAY_MS = Number(process.env.HEDGING_DELAY_MS ?? 0);
const HEDGING = {
  hedgingPolicy: {
    maxAttempts: 3,
    hedgingDelay: `${HEDGING_DELAY_MS / 1000}s`,
    nonFatalStatusCodes: ["UNAVAILABLE"],
  },
};

const SERVICE_CONFIG = {
  // Balance calls over all addresses of the name, such as the pods of a headless Service.
  loadBalancingConfig: [{ round_robin: {} }],
  methodConfig: [
    {
      name: [{ service: "ratelimit.v1.RateLimitService", method: "Check" }],
      ...(HEDGING_DELAY_MS > 0 ? HEDGING : RETRY),
    },
  ],
  // If many calls fail, repeat none.
  retryThrottling: { maxTokens: 10, tokenRatio: 0.1 },
};

const OPTIONS = {
  "grpc.service_config": JSON.stringify(SERVICE_CONFIG),
  // Detect a server that disappeared without closing the connection.
  "grpc.keepalive_time_ms": 10_000,
  "grpc.keepalive_timeout_ms": 1_000,
};

const protos = fileURLToPath(new URL("../../proto", import.meta.url));
const format = { includeDirs: [protos], longs: Number, enums: String };
const definition = loadSync("ratelimit.proto", format);
const { RateLimitService } = grpc.loadPackageDefinition(definition).ratelimit.v1;

// Sends one call. Its request id makes it safe to repeat: it takes one unit, however often the
// server receives it. Make the id here. Never copy it from a client of yours, who could then pass
// without paying.
function sendCheck(limits, request) {
  const deadline = Date.now() + DEADLINE_MS;
  return new Promise((resolve, reject) => {
    limits.check(request, { deadline }, (error, response) => {
      if (error) reject(error);
      else resolve(response);
    });
  });
}

async function check(limits, userId) {
  let response;
  try {
    response = await sendCheck(limits, { userId, requestId: randomUUID() });
  } catch (error) {
    if (CLIENT_ERRORS.has(error.code)) throw error;
    const outcome = FAIL_OPEN ? "allowed" : "503 Service Unavailable";
    return `no response (${grpc.status[error.code]}): ${outcome}`;
  }
  if (response.allowed) return `allowed, ${response.remaining ?? 0} left`;
  if (response.retryAfter) {
    const { seconds = 0, nanos = 0 } = response.retryAfter;
    return `429 Too Many Requests, Retry-After: ${Math.ceil(seconds + nanos / 1e9)}`;
  }
  // Waiting does not help: the cost is above the limit, or the limit is 0.
  return `403 Forbidden, ${response.reason}`;
}

const target = process.argv[2] ?? "127.0.0.1:50051";
// One channel for the whole process. It carries any number of calls and reconnects automatically.
const limits = new RateLimitService(target, grpc.credentials.createInsecure(), OPTIONS);
for await (const userId of createInterface({ input: process.stdin })) {
  console.log(`${userId}: ${await check(limits, userId)}`);
}
limits.close();
