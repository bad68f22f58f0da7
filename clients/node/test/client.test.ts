import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { setImmediate } from "node:timers/promises";

import { Client, type ClientOptions } from "rlaas-client";

import { CLOSED, broken, needs, newUser, serve, silent, stop } from "./servers.js";

const WARN = () => {};
const real = needs("RLAAS_SERVER", "the client with a real server");
const folder = mkdtempSync(join(tmpdir(), "rlaas-"));
after(() => rmSync(folder, { recursive: true }));
const shared = real.skip ? "" : await serve();

function connect(address: string, options: ClientOptions = {}): Client {
  return new Client(address, { timeoutMs: 10_000, warn: WARN, ...options });
}

test("the policy decides without an answer, counted and with one warning a second", async () => {
  const warnings: string[] = [];
  const asked: string[] = [];
  const client = new Client(CLOSED, {
    warn: (message) => warnings.push(message),
    onNoAnswer: async ({ userId }, { code }) => asked.push(`${userId} ${code}`) > 0 && userId === "alice",
  });
  for (const user of ["alice", "bob"]) {
    const { allowed, answeredBy, retryAfterMs } = await client.check(user);
    assert.deepEqual(
      [allowed, answeredBy, retryAfterMs],
      [user === "alice", "policy", user === "alice" ? null : 1000],
    );
  }
  const reserved = await client.reserve("alice", (held) => held.commit(3));
  assert.deepEqual([reserved.allowed, reserved.value], [true, false]);
  client.close();
  assert.equal((await client.report("alice")).answeredBy, "policy");
  assert.equal(client.unanswered, 4);
  assert.deepEqual(asked, ["alice UNAVAILABLE", "bob UNAVAILABLE", "alice UNAVAILABLE", "alice CANCELLED"]);
  assert.equal(warnings.length, 1, String(warnings));
});

test("a server that fails gets few retries, and one that sheds load none", async () => {
  let [calls, status] = [0, 14];
  const client = connect(await broken(() => (++calls, status)), { retries: 5 });
  for (let checks = 0; checks < 20; checks++) {
    await client.check("alice");
  }
  await client.report("alice");
  status = 8;
  await client.report("alice");
  assert.equal(calls, 5 + 19 + 2 + 1, "four retries of a check, one of a report, and none if load is shed");
});

test("only the first call has time to connect", async () => {
  const client = new Client(await silent(), { warn: WARN });
  const elapsed: number[] = [];
  for (const startedAt = performance.now(); elapsed.length < 2; elapsed.push(performance.now() - startedAt)) {
    assert.equal((await client.check("alice")).answeredBy, "policy");
  }
  assert.ok(elapsed[0]! > 900 && elapsed[1]! - elapsed[0]! < 500, `${elapsed} ms`);
});

test("mistakes are errors, and not the decision of the policy", async () => {
  const client = connect(CLOSED);
  for (const request of [
    { userId: "alice", cost: -1 },
    { userId: "alice", cost: 0.5 },
    { userId: "alice", cost: 2 ** 32 },
    { userId: "alice", costs: { pay: NaN } },
    { userId: "alice", cost: 3, atLeast: 4 },
    { userId: "half a pair \ud800" },
    { userId: undefined as unknown as string },
  ]) {
    await assert.rejects(client.check(request), { code: "INVALID_ARGUMENT" });
  }
  for (const [field, request] of [
    ["userId", { userId: "é".repeat(513) }],
    ["resource", { userId: "alice", resource: "/".repeat(1025) }],
    ["requestId", { userId: "alice", requestId: "1".repeat(65) }],
    ["attributes", { userId: "alice", attributes: Object.fromEntries(Array<string>(33).entries()) }],
    ["names of attributes", { userId: "alice", attributes: { "": "free" } }],
    ["values of attributes", { userId: "alice", attributes: { plan: "x".repeat(1025) } }],
  ] as const) {
    await assert.rejects(client.check(request), { code: "INVALID_ARGUMENT", detail: new RegExp(`^${field} must`) });
  }
  const closed = (options: object, address = CLOSED) => assert.throws(() => new Client(address, options), TypeError);
  [{ timeoutMs: 0 }, { retries: 6 }, { onNoAnswer: "Deny" }, { maxAgeMs: -1 }, { token: "a\nb" }].forEach((options) =>
    closed(options),
  );
  closed({ onOverload: "Deny" });
  const unknown =
    /^TypeError: unknown option timeout: the options are timeoutMs, onNoAnswer, onOverload, retries, .*apiKey$/;
  assert.throws(() => new Client(CLOSED, { timeout: 50 } as ClientOptions), unknown);
  const cert = { tls: { cert: "" } } as ClientOptions;
  assert.throws(() => new Client(CLOSED, cert), /unknown option cert: the options are ca, certificate, privateKey$/);
  ["localhost", "localhost:", ":1", "ftp://a:1", "unix:", "::1:50051"].forEach((address) => closed({}, address));
  closed({ tls: {} }, "http://a:1");
  [{ ca: "no PEM" }, { ca: "" }, { certificate: "no PEM", privateKey: "" }].forEach((tls) => closed({ tls }));
  for (const address of ["[::1]:1", "http://a:1/", "https://a:1", "dns:///a:1", "unix:///s", "unix:s"]) {
    new Client(address).close();
  }
});

test("a verdict has the state of the rule", real, async () => {
  const client = connect(`http://${shared}`);
  const [user, resource] = [newUser(), "/"];
  const first = await client.check({ userId: user, resource, attributes: { plan: "free" } });
  assert.deepEqual([first.allowed, first.rule, first.limit, first.remaining], [true, "default", 2, 1]);
  assert.deepEqual([first.resetAfterMs, first.delayMs, first.nearLimit], [30_000, null, false]);
  assert.deepEqual([first.reason, first.decisions.length], ["WITHIN_LIMIT", 1]);
  const id = { userId: user, resource, requestId: newUser() };
  for (const attempt of ["first", "repeated"]) {
    const { remaining, replayed } = await client.check(id);
    assert.deepEqual([remaining, replayed], [0, attempt === "repeated"]);
  }
  const refused = await client.check({ userId: user, cost: 2 });
  const cached = await client.check({ userId: user, cost: 2 });
  assert.deepEqual([refused.answeredBy, cached.answeredBy], ["server", "cache"]);
  assert.ok(cached.retryAfterMs! < refused.retryAfterMs!, "the wait counts down");
  for (const request of [
    { userId: user, cost: 3 },
    { ...id, requestId: "1" },
    { userId: user, cost: 0 },
  ]) {
    assert.equal((await client.check(request)).answeredBy, "server");
  }
  assert.equal((await client.check("ops")).remaining, Infinity);
});

test("a request takes what is there", real, async () => {
  const client = connect(`http://${shared}`);
  const request = { userId: newUser(), resource: "/tokens", cost: 60 };
  assert.equal((await client.check(request)).taken, null);
  const most = await client.check({ ...request, atLeast: 5 });
  assert.ok(most.taken! >= 40 && most.taken! < 60, `${most.taken}`);
});

test("a reservation ends with its work", real, async () => {
  const client = connect(shared);
  const tokens = { userId: newUser(), resource: "/tokens" };
  const left = async () => (await client.check({ ...tokens, cost: 0 })).remaining;
  const held = await client.reserve({ ...tokens, cost: 10, holdMs: 1500 }, async () => [await left()]);
  assert.deepEqual([held.value, await left()], [[90], 90], "what was held is charged");
  await client.reserve({ ...tokens, cost: 10 }, (held) =>
    assert.throws(() => held.commit(-1), { code: "INVALID_ARGUMENT" }),
  );
  await client.reserve({ ...tokens, cost: 10 }, async (held) => void held.commit(3));
  assert.equal(await left(), 77, "its settlement is waited for");
  const twice = await client.reserve(tokens, (held) => Promise.all([held.commit(0), held.commit(9)]));
  assert.deepEqual(twice.value, [true, false], "the first settlement counts");
  const extended = await client.reserve({ ...tokens, cost: 10 }, async (held) => {
    const verdicts = [await held.extend({ cost: 20, holdMs: 5000 }), await held.extend({ cost: 90 })];
    const remaining = await left();
    await held.commit(0);
    return [...verdicts.map((verdict) => verdict.allowed), remaining];
  });
  assert.deepEqual(extended.value, [true, false, 47]);
  const failure = new Error("the work fails");
  const failing = client.reserve({ ...tokens, cost: 10 }, () => Promise.reject(failure));
  await assert.rejects(failing, failure);
  assert.equal(await left(), 77, "nothing is charged");
  const refused = await client.reserve({ ...tokens, cost: 90 }, () => assert.fail("must not be called"));
  assert.deepEqual([refused.allowed, refused.value, await left()], [false, undefined, 77]);
  assert.equal((await client.report({ ...tokens, cost: 100 })).remaining, -23);
  await assert.rejects(client.report(newUser()), { code: "FAILED_PRECONDITION" });
  const closing = connect(shared);
  const kept = await closing.reserve({ ...tokens, userId: newUser() }, () => {
    closing.close();
    return "done";
  });
  assert.equal(kept.value, "done", "the value is not lost by a commit that fails");
});

test("a server at a Unix socket that comes back decides again", real, async () => {
  const listen = `server.listen=unix:${folder}/s`;
  const socket = await serve(listen);
  const client = connect(socket);
  assert.equal((await client.check(newUser())).answeredBy, "server");
  await stop(socket);
  assert.equal((await client.check(newUser())).answeredBy, "policy");
  await serve(listen);
  for (const until = performance.now() + 20_000; (await client.check(newUser())).answeredBy !== "server";) {
    assert.ok(performance.now() < until);
    await setImmediate();
  }
});

test("TLS with a client certificate", real, async () => {
  const [keyFile, file] = [join(folder, "key.pem"), join(folder, "certificate.pem")];
  const names = "-subj /CN=test -addext subjectAltName=DNS:localhost -addext basicConstraints=CA:FALSE";
  const create = `req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes ${names}`.split(" ");
  execFileSync("openssl", [...create, "-keyout", keyFile, "-out", file], { stdio: "ignore" });
  const [privateKey, certificate] = [readFileSync(keyFile), readFileSync(file)];
  const settings = Object.entries({ cert: file, key: keyFile, "client-ca": file });
  const address = await serve(...settings.map(([name, path]) => `server.tls.${name}=${path}`));
  const [tls, name] = [{ ca: certificate, certificate, privateKey }, address.replace("127.0.0.1", "localhost")];
  assert.equal((await connect(`https://${name}`, { tls }).check("alice")).answeredBy, "server");
  assert.equal((await connect(name, { tls: { ca: certificate } }).check("alice")).answeredBy, "policy");
});

test("a client does not keep the process alive", real, async () => {
  const program = `
    import { Client } from "rlaas-client";
    const client = new Client("${shared}", { timeoutMs: 10_000 });
    if ((await client.check("alive")).answeredBy !== "server") process.exit(1);`;
  const child = spawn(process.execPath, ["--input-type=module", "--eval", program], { stdio: "inherit" });
  const [code] = await once(child, "exit", { signal: AbortSignal.timeout(20_000) });
  assert.equal(code, 0);
});
