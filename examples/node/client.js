// Checks the rate limit of each user id on standard input.

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

const OPTIONS = {
  // Balance calls over all addresses of the name, such as the pods of a headless Service.
  "grpc.service_config": '{"loadBalancingConfig": [{"round_robin": {}}]}',
  // Detect a server that disappeared without closing the connection.
  "grpc.keepalive_time_ms": 10_000,
  "grpc.keepalive_timeout_ms": 1_000,
};

const protos = fileURLToPath(new URL("../../proto", import.meta.url));
const format = { includeDirs: [protos], longs: Number, enums: String };
const definition = loadSync("ratelimit.proto", format);
const { RateLimitService } = grpc.loadPackageDefinition(definition).ratelimit.v1;

// Sends one call. Never repeat it for the same request: the first one may have taken a unit.
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
    response = await sendCheck(limits, { userId });
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
