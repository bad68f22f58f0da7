// Writes src/descriptor.ts, the messages and services of ../../proto. As a module they need no files at run time,
// which bundlers would lose.
import { writeFileSync } from "node:fs";
import protobuf from "protobufjs";

const folder = new URL("../../proto/", import.meta.url);
const root = new protobuf.Root();
root.resolvePath = (_, target) => (target in protobuf.common ? target : new URL(target, folder).pathname);
root.loadSync(["ratelimit.proto", "reservation.proto"]);
// google/rpc/error_details.proto has much more, and only this is read.
const errorInfo = "message ErrorInfo { string reason = 1; string domain = 2; }";
protobuf.parse(`syntax = "proto3"; package google.rpc; ${errorInfo}`, root);
// The rules of GetConfig, which this client does not call.
const { nested } = root.lookup("ratelimit.v1").toJSON();
const used = /^(Check|Report|Reserve|Extend|Commit|Cancel|Settlement|RuleDecision|Algorithm)/;
const methods = /^(Check|CheckBatch|Report|Reserve|Extend|Commit|Cancel)$/;
const kept = Object.entries(nested).filter(([name]) => used.test(name));
for (const name of ["RateLimitService", "ReservationService"]) {
  const calls = Object.entries(nested[name].methods).filter(([method]) => methods.test(method));
  kept.push([name, { methods: Object.fromEntries(calls) }]);
}
const json = root.toJSON();
// Without the options, which are those of other languages.
json.nested.ratelimit.nested.v1 = { nested: Object.fromEntries(kept) };
writeFileSync(
  process.argv[2] ?? new URL("src/descriptor.ts", import.meta.url),
  `// Made by generate.js. Do not edit.\nconst descriptor: object = ${JSON.stringify(json)};\nexport default descriptor;\n`,
);
