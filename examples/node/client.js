// Asks rlaas, for each user id on standard input: may this request pass?

import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

// The longest that a request waits for its answer. Generous for a first try: in production, where
// connections are warm, 20 are plenty, and a late answer is worth no more than none.
const DEADLINE_MS = Number(process.env.DEADLINE_MS ?? 5000);

// What a request meets when there is no answer. Yours to decide: let it pass, and there is no limit
// for that long, or turn it away, and an outage of the limits is an outage of yours.
const PASSES_WITHOUT_ANSWER = true;

// Bugs of ours: don't hide them behind the policy. Any other error, UNAVAILABLE and
// DEADLINE_EXCEEDED above all, is no answer.
const BUGS = new Set([
  grpc.status.INVALID_ARGUMENT,
  grpc.status.PERMISSION_DENIED,
  grpc.status.UNAUTHENTICATED,
  grpc.status.UNIMPLEMENTED,
]);

const OPTIONS = {
  // All addresses of the name take turns: the pods of a headless Service, for one.
  "grpc.service_config": '{"loadBalancingConfig": [{"round_robin": {}}]}',
  // A server that vanished without a word is noticed.
  "grpc.keepalive_time_ms": 10_000,
  "grpc.keepalive_timeout_ms": 1_000,
};

const protos = fileURLToPath(new URL("../../proto", import.meta.url));
const format = { includeDirs: [protos], longs: Number, enums: String };
const definition = loadSync("ratelimit.proto", format);
const { RateLimitService } = grpc.loadPackageDefinition(definition).ratelimit.v1;

// Asks once. Never again for the same request: a call that was sent may have counted.
function check(limits, request) {
  const deadline = Date.now() + DEADLINE_MS;
  return new Promise((resolve, reject) => {
    limits.check(request, { deadline }, (error, response) => {
      if (error) reject(error);
      else resolve(response);
    });
  });
}

async function ask(limits, userId) {
  let response;
  try {
    response = await check(limits, { userId });
  } catch (error) {
    if (BUGS.has(error.code)) throw error;
    const outcome = PASSES_WITHOUT_ANSWER ? "it passes" : "503 Service Unavailable";
    return `no answer (${grpc.status[error.code]}): ${outcome}`;
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
// One channel for the whole process: it carries any number of calls and connects again by itself.
const limits = new RateLimitService(target, grpc.credentials.createInsecure(), OPTIONS);
for await (const userId of createInterface({ input: process.stdin })) {
  console.log(`${userId}: ${await ask(limits, userId)}`);
}
limits.close();
