/** What becomes of many checks at once. */

import assert from "node:assert/strict";
import { mock, test } from "node:test";
import { setImmediate } from "node:timers/promises";

import { Client, type ClientOptions, type RequestFields, type Verdict } from "rlaas-client";

import { type Call, allowed, fake, refused, status } from "./fake.js";
import { needs, newUser, serve } from "./servers.js";

const IN_FLIGHT = 8;
const real = needs("RLAAS_SERVER", "floods of a real server");

/** A client of a server that answers as `play` says, and the calls it has got. */
async function start(play: (call: Call, index: number) => void, options: ClientOptions = {}) {
  const calls: Call[] = [];
  const address = await fake((call) => play(call, calls.push(call) - 1));
  const client = new Client(address, { timeoutMs: 10_000, warn: () => {}, ...options });
  return { client, calls };
}

function answerAll(call: Call, result: object = allowed): void {
  call.answer(call.requests.map(() => result));
}

/** Asks the same `count` times at once. */
function ask(client: Client, count: number, request: RequestFields = { userId: "alice" }): Promise<Verdict>[] {
  return Array.from({ length: count }, () => client.check(request));
}

function users(calls: Call[]): string[] {
  return calls.flatMap(({ requests }) => requests.map(({ userId }) => userId));
}

/** Waits until a condition holds. */
async function until(condition: () => boolean): Promise<void> {
  for (const end = performance.now() + 20_000; !condition(); await setImmediate()) {
    assert.ok(performance.now() < end);
  }
}

// On a busy machine, too, no request waits for longer than it may: its second has a minute.
const { setTimeout } = globalThis;
mock.method(globalThis, "setTimeout", (callback: () => void, ms: number, ...args: []) =>
  setTimeout(callback, ms === 1000 ? 60_000 : ms, ...args),
);

test("a flood of one user is limited", real, async () => {
  const client = new Client(await serve(), { timeoutMs: 10_000, warn: () => {} });
  const flood = ask(client, 2000, { userId: newUser() });
  const other = await client.check(newUser());
  assert.deepEqual([other.allowed, other.answeredBy, other.remaining], [true, "server", 1]);
  assert.equal((await Promise.all(flood)).filter((verdict) => verdict.allowed).length, 2);
});

test("calls at once go in a few batches", async () => {
  const { client, calls } = await start((call) => answerAll(call));
  const verdicts = await Promise.all(ask(client, 2000));
  assert.ok(verdicts.every((verdict) => verdict.allowed));
  const sizes = calls.map(({ requests }) => requests.length);
  assert.ok(calls.length <= IN_FLIGHT + 20 && Math.max(...sizes) === 100, String(sizes));
  assert.deepEqual(new Set(calls.slice(0, IN_FLIGHT).map(({ method }) => method)), new Set(["Check"]));
});

test("a batch has at most 256 KiB", async () => {
  const { client, calls } = await start(() => {});
  const attributes = Object.fromEntries(Array.from({ length: 32 }, (_, index) => [`name${index}`, "é".repeat(512)]));
  const all = ask(client, IN_FLIGHT + 20, { userId: "alice", attributes });
  await until(() => calls.length === IN_FLIGHT);
  answerAll(calls[0]!);
  await until(() => calls.length === IN_FLIGHT + 1);
  assert.ok(calls.at(-1)!.requests.length < 8);
  client.close();
  await Promise.all(all.slice(-1));
});

test("of a request that was refused one is in flight, and its refusal answers the others", async () => {
  const { client, calls } = await start((call, index) => index === 0 && answerAll(call, refused("BANNED")));
  await client.check("alice");
  const all = ask(client, 50);
  await until(() => calls.length === 2);
  answerAll(calls[1]!, refused("BANNED"));
  const origins = (await Promise.all(all)).map(({ answeredBy }) => answeredBy);
  assert.deepEqual(origins, ["server", ...Array(49).fill("cache")]);
  assert.equal(calls.length, 2);
});

test("what takes nothing, has an id, or is refused because units are held, is always asked", async () => {
  for (const request of [{ cost: 0 }, { dryRun: true }, { requestId: "1" }, { held: true }] as object[]) {
    const { client, calls } = await start((call) =>
      answerAll(call, refused("held" in request ? "HELD" : "OVER_LIMIT")),
    );
    const fields = { ...request, userId: "alice" };
    await client.check(fields);
    await Promise.all(ask(client, 20, fields));
    assert.equal(users(calls).length, 21, JSON.stringify(request));
  }
});

test("users are served in turn", async () => {
  const { client, calls } = await start((call, index) => index > IN_FLIGHT && answerAll(call));
  const all = [...ask(client, IN_FLIGHT + 300), ...ask(client, 1, { userId: "bob" })];
  await until(() => calls.length === IN_FLIGHT);
  answerAll(calls[0]!);
  await until(() => calls.length > IN_FLIGHT);
  assert.ok(users([calls[IN_FLIGHT]!]).includes("bob"));
  calls.forEach((call) => answerAll(call));
  await Promise.all(all);
});

test("one request has a quarter of the queue, and more are refused unless the program says otherwise", async () => {
  for (const onOverload of ["deny", "allow"] as const) {
    const { client, calls } = await start(() => {}, { onOverload });
    const waiting = ask(client, IN_FLIGHT + 2500);
    const [one, other] = [client.check("alice"), client.check("bob")];
    const { allowed, reason, retryAfterMs, answeredBy } = await one;
    const expected = onOverload === "allow" ? [true, null] : [false, 1000];
    assert.deepEqual([allowed, retryAfterMs, reason, answeredBy], [...expected, "OVERLOADED", "policy"]);
    await until(() => calls.length === IN_FLIGHT);
    client.close();
    assert.equal((await other).reason, "NO_ANSWER", "closing decides those that wait");
    assert.equal(client.unanswered, 2501);
    calls.forEach((call) => answerAll(call));
    await Promise.all(waiting);
  }
});

test("while the server does not answer nobody waits", async () => {
  let isAnswering = false;
  const { client, calls } = await start((call) => isAnswering && answerAll(call));
  const all = ask(client, 100);
  await until(() => calls.length === IN_FLIGHT);
  calls[0]!.answer(status(14));
  await Promise.all([all[0], ...all.slice(IN_FLIGHT)]);
  isAnswering = true;
  // There is one free slot.
  const [probe, other] = ask(client, 2);
  assert.equal((await other!).reason, "NO_ANSWER");
  assert.equal((await probe!).answeredBy, "server");
  assert.equal(client.unanswered, 1 + 92 + 1);
  const later = await Promise.all(ask(client, 2));
  assert.ok(later.every(({ answeredBy }) => answeredBy === "server"));
  calls.slice(1, IN_FLIGHT).forEach((call) => answerAll(call));
});

test("a program that is too busy to read an answer is overloaded", async () => {
  const { client, calls } = await start((call, index) => index === 0 && answerAll(call), { timeoutMs: 500 });
  await client.check("alice");
  const late = client.check("alice");
  await until(() => calls.length === 2);
  for (const end = performance.now() + 900; performance.now() < end;);
  assert.equal((await late).reason, "OVERLOADED");
  assert.equal(client.unanswered, 0);
});

test("an item of a batch has the outcome of a check", async () => {
  const results = [
    { error: status(7, "NO_RULE") },
    { error: status(14, "STORE_UNAVAILABLE") },
    { error: status(14, "NOT_READY") },
    { error: status(8, "OVERLOADED") },
    { error: status(14) },
    { error: status(3) },
    allowed,
  ];
  const { client, calls } = await start((call, index) => index === IN_FLIGHT && call.answer(results));
  void ask(client, IN_FLIGHT);
  const all = Promise.allSettled(results.map((_, index) => client.check(`${index}`)));
  await until(() => calls.length === IN_FLIGHT);
  answerAll(calls[0]!);
  const outcomes = (await all).map((outcome) =>
    outcome.status === "fulfilled"
      ? [outcome.value.allowed, outcome.value.answeredBy, outcome.value.reason, outcome.value.retryAfterMs]
      : outcome.reason.code,
  );
  assert.deepEqual(outcomes, [
    [false, "server", "NO_RULE", null],
    [false, "server", "STORE_UNAVAILABLE", 1000],
    [false, "server", "NOT_READY", 1000],
    [false, "server", "OVERLOADED", 1000],
    [true, "policy", "NO_ANSWER", null],
    "INVALID_ARGUMENT",
    [true, "server", "WITHIN_LIMIT", null],
  ]);
  client.close();
  calls.slice(1, IN_FLIGHT).forEach((call) => answerAll(call));
});

test("a batch that is rejected goes again, each request alone; without credentials all are rejected", async () => {
  for (const [code, checks, batches] of [
    [12, 30, 1],
    [3, 30, 1],
    [8, 30, 1],
    [16, 0, 1],
  ] as const) {
    const { client, calls } = await start((call) =>
      call.method === "Check" ? answerAll(call) : call.answer(status(code)),
    );
    const outcomes = await Promise.allSettled(ask(client, IN_FLIGHT + 30));
    const sent = (method: string) => calls.filter((call) => call.method === method).length;
    assert.deepEqual([sent("Check"), sent("CheckBatch")], [IN_FLIGHT + checks, batches], `code ${code}`);
    assert.equal(outcomes.filter(({ status }) => status === "fulfilled").length, IN_FLIGHT + checks);
    await Promise.allSettled(ask(client, IN_FLIGHT + 30));
    assert.equal(sent("CheckBatch"), code === 12 ? 1 : 2, `code ${code}`);
  }
});

test("those of a batch without an answer are sent again with the same ids", async () => {
  const { client, calls } = await start(
    (call, index) => {
      const unanswered = { error: status(14) };
      const isFirstBatch = index === IN_FLIGHT;
      call.answer(call.requests.map((_, position) => (isFirstBatch && position % 2 ? unanswered : allowed)));
    },
    { retries: 1 },
  );
  const verdicts = await Promise.all(ask(client, IN_FLIGHT + 10));
  assert.ok(verdicts.every(({ answeredBy }) => answeredBy === "server"));
  const ids = calls.flatMap(({ requests }) => requests.map(({ requestId }) => requestId));
  assert.deepEqual([ids.length, new Set(ids).size], [IN_FLIGHT + 10 + 5, IN_FLIGHT + 10]);
});

test("a check that is repeated is not answered by the refusal of another", async () => {
  const { client, calls } = await start((call, index) => index === 3 && answerAll(call), { retries: 1 });
  const [repeated, other] = ask(client, 2);
  await until(() => calls.length === 2);
  answerAll(calls[1]!, refused("BANNED"));
  await other;
  const probe = client.check("alice");
  await until(() => calls.length === 3);
  calls[0]!.answer(status(14));
  const { allowed, answeredBy } = await repeated!;
  assert.deepEqual([allowed, answeredBy, calls.length], [true, "server", 4]);
  assert.equal(calls[3]!.requests[0]!["requestId"], calls[0]!.requests[0]!["requestId"]);
  answerAll(calls[2]!, refused("BANNED"));
  await probe;
});

test("128 reservations wait for the server", async () => {
  const { client, calls } = await start(() => {});
  const held = Array.from({ length: 128 }, () => client.reserve("alice", () => {}));
  const { allowed, verdict } = await client.reserve("alice", () => {});
  assert.deepEqual([allowed, verdict.reason, verdict.retryAfterMs], [false, "OVERLOADED", 1000]);
  await until(() => calls.length === 128);
  calls.forEach((call) => answerAll(call));
  assert.ok((await Promise.all(held)).every(({ allowed }) => allowed));
});

test("while the server does not answer the policy decides further reservations", async () => {
  const { client, calls } = await start((call, index) => index === 0 && call.answer(status(14)));
  await client.reserve("alice", () => {});
  const held = Array.from({ length: 128 }, () => client.reserve("alice", () => {}));
  const { allowed, verdict } = await client.reserve("alice", () => {});
  assert.deepEqual([allowed, verdict.reason], [true, "NO_ANSWER"]);
  await until(() => calls.length === 129);
  calls.slice(1).forEach((call) => answerAll(call));
  await Promise.all(held);
});
