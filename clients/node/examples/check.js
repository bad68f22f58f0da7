// Checks the rate limit of each user id on standard input. Run: yes alice | head -6 | node examples/check.js
//
// The argument is the address of the server. DEADLINE_MS is the timeout of a call, generous for a first try.
import { createInterface } from "node:readline";
import { Client } from "rlaas-client";

const address = process.argv[2] ?? "127.0.0.1:50051";
const client = new Client(address, { timeoutMs: Number(process.env.DEADLINE_MS ?? 5000), retries: 1 });
for await (const user of createInterface({ input: process.stdin })) {
  console.log(`${user}: ${outcome(await client.check(user))}`);
}
client.close();

/** @param {import("rlaas-client").Verdict} verdict */
function outcome({ answeredBy, allowed, remaining, retryAfterMs, reason }) {
  if (answeredBy === "policy") return "no response: allowed";
  if (allowed) return `allowed, ${remaining} left`;
  if (retryAfterMs !== null) return `429 Too Many Requests, Retry-After: ${Math.ceil(retryAfterMs / 1000)}`;
  // Waiting does not help: the cost is above the limit, or the limit is 0.
  return `403 Forbidden, ${reason}`;
}
