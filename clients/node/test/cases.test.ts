/** The client does what clients/cases.yaml expects of every client, whatever its language. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { Client, RlaasError, type Verdict } from "rlaas-client";
import { parse } from "yaml";

import { CASES, needs, newUser } from "./servers.js";

/** Longer than any wait of a test that passes, on a busy machine too. */
const TIMEOUT_MS = 20_000;

const file = process.env["RLAAS_TABLE"] ?? "../cases.yaml";
const { skip } = needs("RLAAS_CASES", "all cases");
type Fields = Record<string, any>;
const { cases, defaults }: { cases: Fields[]; defaults: Fields } = skip
  ? { cases: [], defaults: {} }
  : parse(readFileSync(file, "utf8"));

for (const each of cases) {
  test(`case ${each["name"]}`, () => play(each, { ...defaults, ...each["client"] }));
}

async function play(of: Fields, settings: Fields): Promise<void> {
  const { name, method = "Check", do: steps, expect, calls, request_ids: ids, unanswered = 0 } = of;
  // The server counts the calls of each client: this is another one in each run.
  const user = `${name}@node-${newUser()}`;
  const { timeout, on_no_answer: onNoAnswer, on_overload: onOverload = "deny", retries, max_age: maxAge } = settings;
  const { token, api_key: apiKey } = settings;
  // Only an answer that is late needs a short timeout; with that of the table a busy client is late itself.
  const timeoutMs = expect.some((result: Fields) => "within" in result) ? Math.max(timeout * 1000, 250) : TIMEOUT_MS;
  const maxAgeMs = maxAge * 1000;
  const client = new Client(CASES!, {
    timeoutMs,
    onNoAnswer,
    onOverload,
    retries,
    maxAgeMs,
    token,
    apiKey,
    warn: () => {},
  });
  assert.equal(steps.length, expect.length);
  for (const [index, step] of steps.entries()) {
    const startedAt = performance.now();
    const result = await run(client, step, user);
    const { within = Infinity, ...fields } = expect[index];
    assert.ok(performance.now() - startedAt < within * 1000, "within");
    const read = Object.keys(fields).map((field) => [field, result[field]]);
    assert.deepEqual(Object.fromEntries(read), fields);
  }
  assert.equal(client.unanswered, unanswered, "unanswered");
  const seen = await new Client(CASES!, { timeoutMs: TIMEOUT_MS }).check(`calls/${method}/${user}`);
  assert.equal(seen.currentCount, calls ?? seen.currentCount, "calls");
  assert.equal(seen.remaining, ids ?? seen.remaining, "request ids");
}

/** Returns the result of a step, with the names of the table. */
async function run(client: Client, step: string, user: string): Promise<Fields> {
  try {
    const { retryAfterMs, answeredBy, ...verdict } = await verdictOf(client, step, user);
    const retryAfter = retryAfterMs === null ? null : retryAfterMs / 1000;
    return { ...verdict, answered_by: answeredBy, retry_after: retryAfter };
  } catch (error) {
    assert.ok(error instanceof RlaasError, String(error));
    return { error: error.code };
  }
}

async function verdictOf(client: Client, step: string, user: string): Promise<Verdict> {
  switch (step) {
    case "check":
      return client.check(user);
    case "reserve-and-commit-3": {
      const { verdict, value } = await client.reserve(user, (held) => held.commit(3));
      assert.equal(value, true, "settled");
      return verdict;
    }
    case "reserve-and-fail": {
      let verdict: Verdict | undefined;
      const failure = new Error("the work fails");
      const failed = client.reserve(user, (held) => {
        verdict = held.verdict;
        throw failure;
      });
      await assert.rejects(failed, failure);
      return verdict!;
    }
    default:
      throw new Error(`${step} is not a step of this client`);
  }
}
