import assert from "node:assert/strict";
import type { IncomingMessage } from "node:http";
import { type AddressInfo } from "node:net";
import { after, test } from "node:test";

import express from "express";
import { type FastifyRequest, fastify } from "fastify";
import { Client, type HttpRequest, type RateLimitOptions, byAddress, byHeader } from "rlaas-client";
import { type ExpressOptions, rateLimit } from "rlaas-client/express";
import rateLimitPlugin from "rlaas-client/fastify";
import { refuseAll, withLimits } from "rlaas-client/testing";

import { fake, status } from "./fake.js";
import { CASES, CLOSED, needs, newUser, serve } from "./servers.js";

type Options = RateLimitOptions<HttpRequest & { method: string }>;

/** Starts applications that limit all routes, whose responses have a policy of their own, and returns their URLs. */
const frameworks: Record<string, (options: Options) => Promise<string>> = {
  async express(options) {
    // Without a log of the error that the key function throws.
    const app = express().set("env", "test");
    app.use((_, response, next) => {
      response.set("RateLimit-Policy", '"own";q=1');
      next();
    });
    app.use("/v1", rateLimit<express.Request>(options));
    app.get("/v1/pay", (_, response) => void response.send("paid"));
    const server = app.listen(0, "127.0.0.1");
    after(() => server.close().closeAllConnections());
    await new Promise((resolve) => server.once("listening", resolve));
    return `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1/pay`;
  },
  async fastify(options) {
    const app = fastify({ forceCloseConnections: true });
    app.addHook("onRequest", async (_, reply) => void reply.header("RateLimit-Policy", '"own";q=1'));
    await app.register(rateLimitPlugin, options as RateLimitOptions<FastifyRequest>);
    app.get("/v1/pay", async () => "paid");
    after(() => app.close());
    return `${await app.listen({ host: "127.0.0.1", port: 0 })}/v1/pay`;
  },
};

const [real, table] = [needs("RLAAS_SERVER", "middleware with a real server"), needs("RLAAS_CASES", "its errors")];
const address = real.skip ? "" : await serve();
const client = { timeoutMs: 10_000, warn: () => {} };
const quota = "https://iana.org/assignments/http-problem-types#quota-exceeded";

for (const [name, start] of Object.entries(frameworks)) {
  test(`${name}: a request above a limit is refused with a problem document`, real, async () => {
    const user = newUser();
    const url = await start({ address, ...client, key: byHeader("X-User") });
    const headers = { "x-user": user };
    for (const left of [1, 0]) {
      const response = await fetch(`${url}?a=1`, { headers });
      assert.deepEqual([response.status, await response.text()], [200, "paid"]);
      assert.match(response.headers.get("ratelimit-policy")!, /^"own";q=1, "default";q=2;w=60$/);
      assert.match(response.headers.get("ratelimit")!, new RegExp(`^"default";r=${left};t=[1-6]\\d$`));
    }
    for (const origin of ["server", "cache"]) {
      const response = await fetch(url, { headers });
      assert.equal(response.status, 429, origin);
      assert.equal(response.headers.get("content-type"), "application/problem+json");
      assert.match(response.headers.get("ratelimit-policy")!, /^"own";q=1, "default";q=2;w=60$/);
      const wait = response.headers.get("retry-after");
      assert.ok(Number(wait) > 0 && Number(wait) <= 30, `${wait}`);
      assert.equal(response.headers.get("ratelimit"), `"default";r=0;t=${wait}`);
      const detail = `try again after ${wait} seconds`;
      const document = {
        type: quota,
        title: "Quota Exceeded",
        status: 429,
        detail,
        "violated-policies": ["default"],
      };
      assert.deepEqual(await response.json(), document);
    }
    const { status, headers: sent } = await fetch(url, { headers: { "x-user": "mallory" } });
    assert.deepEqual([status, sent.get("ratelimit"), sent.get("retry-after")], [429, '"mallory";r=0', null]);
    await assertProblem(await fetch(url), 400, "Bad Request", "header x-user must be present, in visible ASCII");
    const large = { userId: user, costs: { ["x".repeat(2 ** 19)]: 1 } };
    assert.equal((await fetch(await start({ address, ...client, key: () => large }))).status, 400, "OUT_OF_RANGE");
  });

  test(`${name}: the policy decides while the server is away`, async () => {
    const allowing = await fetch(await start({ address: CLOSED, ...client }));
    assert.deepEqual([allowing.status, allowing.headers.get("ratelimit")], [200, null]);
    const denying = await fetch(await start({ address: CLOSED, ...client, onNoAnswer: "deny" }));
    assert.equal(denying.headers.get("retry-after"), "1");
    await assertProblem(denying, 503, "Service Unavailable", "rate limiter unavailable");
  });

  test(`${name}: a connection that was reset is rejected with one warning`, async () => {
    const warnings: string[] = [];
    const warn = (message: string) => void warnings.push(message);
    const url = await start({ address: CLOSED, warn, key: () => byAddress()({ headers: {}, socket: {} }) });
    for (const response of await Promise.all([fetch(url), fetch(url)])) {
      await assertProblem(response, 500, "Internal Server Error", "the peer has no address");
    }
    assert.deepEqual(warnings, ["rlaas: request rejected: INTERNAL: the peer has no address"]);
  });

  test(`${name}: a client behind a proxy can not choose its address`, real, async () => {
    const [test, behindOne] = [newUser(), byAddress(1)];
    const key = (request: HttpRequest) => `${test} ${behindOne(request)}`;
    const url = await start({ address, ...client, key });
    const from = async (forwarded: string) =>
      (await fetch(url, { headers: { "x-forwarded-for": forwarded } })).headers.get("ratelimit")?.slice(10, 13);
    assert.equal(await from("203.0.113.1, 198.51.100.7"), "r=1");
    assert.equal(await from("203.0.113.2, 198.51.100.7:8080"), "r=0");
    assert.equal(await from("198.51.100.8"), "r=1");
  });

  test(`${name}: mistakes get the verdict of the policy, invalid requests none`, table, async () => {
    const shared = new Client(CASES!, client);
    after(() => shared.close());
    const key = (user: string) => () => (user ? `${user}@node-${newUser()}` : null);
    const of = async (user: string, options: Options) => fetch(await start({ ...options, key: key(user) }));
    assert.equal((await of("unauthenticated", { client: shared })).status, 200);
    assert.equal(shared.unanswered, 1);
    assert.equal((await of("unauthenticated", { address: CASES!, ...client, onNoAnswer: "deny" })).status, 503);
    await assertProblem(await of("invalid", { client: shared }), 400, "Bad Request", "as the case says");
    const noRule = await of("no-rule", { client: shared });
    await assertProblem(noRule, 403, "Forbidden", "no rule matches", { reason: "NO_RULE" });
    assert.equal((await of("", { client: shared })).headers.get("ratelimit"), null, "exempt");
    const failing = await start({ client: shared, key: () => Promise.reject(new Error("no user")) });
    assert.equal((await fetch(failing)).status, 500);
  });
}

test("unknown options throw", () => {
  const shared = new Client(CLOSED);
  for (const [options, known] of [
    [
      { address: CLOSED, user: "alice" },
      "key, resource, cost, skip, headers, rule, strict, count, waitMs, address, timeoutMs, .*, apiKey",
    ],
    [{ client: shared, onNoAnswer: "deny" }, "key, .*, rule, strict, count, waitMs, client"],
  ] as const) {
    const text = new RegExp(`unknown option (user|onNoAnswer): the options are ${known}$`);
    assert.throws(() => rateLimit(options as RateLimitOptions<IncomingMessage>), text);
  }
});

test("headers of another style throw", () => {
  for (const headers of ["draft-8", true]) {
    const options = { client: refuseAll(), headers } as unknown as RateLimitOptions<IncomingMessage>;
    assert.throws(() => rateLimit(options), new TypeError("headers must be draft, legacy or none"));
  }
});

test("a mistake in the settings is one line of the log", async (context) => {
  let elapsed = 0;
  const now = performance.now.bind(performance);
  context.mock.method(performance, "now", () => now() + elapsed);
  const unauthenticated = await fake((call) => call.answer(status(16)));
  const plain = unauthenticated.replace("127.0.0.1", "localhost");
  for (const [address, text] of [
    [CLOSED, "UNAVAILABLE: no server at 127.0.0.1:1: connection refused (is `rlaas serve` running?)"],
    [unauthenticated, "UNAUTHENTICATED: as the test says"],
    [`https://${plain}`, `UNAVAILABLE: https://${plain} does not speak TLS: try http://${plain}`],
  ] as const) {
    const lines: string[] = [];
    const url = await frameworks["express"]!({ address, timeoutMs: 10_000, warn: (line) => lines.push(line) });
    for (let request = 0; request < 3; request++, elapsed += 1100) {
      assert.equal((await fetch(url)).status, 200);
    }
    assert.deepEqual(lines, [`rlaas: check failed, request allowed: ${text}`]);
  }
});

test("a policy has its window, if that is whole seconds", async () => {
  const rules = [{ seconds: 3600 }, { seconds: 0, nanos: 500_000_000 }, undefined].map((window, index) => ({
    ...{ rule: `${index}`, allowed: true, reason: "WITHIN_LIMIT", limit: 5, window },
  }));
  const decided = await fake((call) => call.answer([{ response: { allowed: true, decisions: rules } }]));
  const { headers } = await fetch(await frameworks["express"]!({ ...client, address: decided }));
  assert.equal(headers.get("ratelimit-policy"), '"own";q=1, "0";q=5;w=3600, "1";q=5, "2";q=5');
});

test("a server without a decision is no limit", async () => {
  for (const [failure, onOverload, code] of [
    [status(14, "STORE_UNAVAILABLE"), "allow", 503],
    [status(14, "NOT_READY"), "allow", 503],
    [status(8, "OVERLOADED"), "deny", 503],
    [status(8, "OVERLOADED"), "allow", 200],
    [status(14), "deny", 200],
  ] as const) {
    const undecided = await fake((call) => call.answer(failure));
    const response = await fetch(await frameworks["express"]!({ ...client, address: undecided, onOverload }));
    assert.deepEqual([response.status, response.headers.get("retry-after")], [code, code === 503 ? "1" : null]);
  }
});

test("the resource is the path that handlers see", async () => {
  for (const [name, start] of Object.entries(frameworks)) {
    const paths: string[] = [];
    const onNoAnswer = ({ resource = "" }) => paths.push(resource) > 0;
    const url = await start({ address: CLOSED, ...client, onNoAnswer });
    await fetch(`${url}?a=/b`);
    await fetch(url.replace("pay", "p%61y"));
    await fetch(url.replace("pay", "PAY/"));
    // Express finds the route for this spelling too.
    assert.deepEqual(paths, ["/v1/pay", "/v1/pay", name === "express" ? "/v1/pay" : "/v1/PAY/"], name);
  }
});

test("a limit beside a route of Express", async () => {
  const app = express().set("env", "test");
  const limits = [
    { rule: "user", resource: "/v1/users/:id", limit: 1 },
    { rule: "export", limit: 10, resource: "export" },
  ];
  const client = withLimits(limits);
  const key = () => "alice";
  const send = (_: unknown, response: express.Response) => void response.send("found");
  app.use("/v1", express.Router().get("/users/:id", rateLimit({ client, key, headers: "legacy" }), send));
  const skip = ({ headers }: express.Request) => headers["x-exempt"] === "1";
  const cost = (request: express.Request) => Number(request.query["rows"]);
  const handler: ExpressOptions<express.Request, express.Response>["handler"] = (_, response, next, verdict) =>
    verdict.rule === "export" ? void response.json({ wait: verdict.retryAfterMs }) : next(new Error("not export"));
  app.get(
    "/export",
    rateLimit({ client, key, resource: () => "export", cost, skip, headers: "none", handler }),
    send,
  );
  const throws = rateLimit({ client: refuseAll(), handler: () => assert.fail("the handler fails") });
  app.get("/throws", throws, send);
  const server = app.listen(0, "127.0.0.1");
  after(() => server.close().closeAllConnections());
  await new Promise((resolve) => server.once("listening", resolve));
  const get = async (path: string, headers = {}) => {
    const response = await fetch(`http://127.0.0.1:${(server.address() as AddressInfo).port}${path}`, { headers });
    const names = [...response.headers.keys()].filter((name) => /ratelimit|retry-after/.test(name));
    return [response.status, (await response.text()).slice(0, 9), ...names.map((name) => response.headers.get(name))];
  };
  assert.deepEqual(await get("/v1/users/1"), [200, "found", "1", "0", "60"]);
  assert.deepEqual(await get("/v1/users/2"), [429, '{"type":"', "1", "0", "60", "60"], "the route is the resource");
  assert.deepEqual(await get("/export?rows=7"), [200, "found"]);
  assert.deepEqual(await get("/export?rows=7", { "x-exempt": "1" }), [200, "found"]);
  const [status, body, wait] = await get("/export?rows=4");
  assert.deepEqual([status, body, wait], [429, '{"wait":5', "60"]);
  assert.deepEqual((await get("/export?rows=3"))[0], 200);
  assert.equal((await get("/throws"))[1], "<!DOCTYPE", "the error handler of Express answers");
});

test("a rule that is missing is one line of the log, and an error if it must be there", async () => {
  const lines: string[] = [];
  const client = withLimits([{ rule: "pay", resource: "/v1/pay", limit: 9 }], { warn: (line) => lines.push(line) });
  const statuses: number[] = [];
  for (const options of [{ rule: "pay", strict: true }, { rule: "search" }, { rule: "search", strict: true }]) {
    const url = await frameworks["express"]!({ client, key: () => "alice", ...options });
    statuses.push((await fetch(url)).status, (await fetch(url)).status);
  }
  assert.deepEqual(statuses, [200, 200, 200, 200, 500, 500]);
  const line = "rlaas: rule search does not limit /v1/pay: pay decided";
  assert.deepEqual(lines, [line]);
  client.isAway = true;
  const url = await frameworks["express"]!({ client, rule: "search", strict: true });
  assert.equal((await fetch(url)).status, 200, "nothing has decided");
});

test("keys by address", () => {
  const PEER = "192.0.2.1";
  const of = (proxies: number, forwarded?: string, remoteAddress: string | undefined = PEER) =>
    byAddress(proxies)({ headers: { "x-forwarded-for": forwarded }, socket: { remoteAddress } });
  const forged = "203.0.113.9, 198.51.100.7,10.0.0.2:8080";
  assert.deepEqual(
    [0, 1, 2, 4].map((proxies) => of(proxies, forged)),
    [PEER, "10.0.0.2", "198.51.100.7", PEER],
  );
  assert.deepEqual(
    ["unknown", "10.0.0.2,", "1.2.3", undefined].map((text) => of(1, text)),
    Array(4).fill(PEER),
  );
  assert.equal(of(1, "[2001:db8::1]:443"), "2001:db8::/64");
  assert.equal(of(0, "", "2001:DB8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
  assert.equal(of(0, "", "fe80::1%eth0"), "fe80::/64");
  assert.equal(of(0, "", "::1"), "::/64");
  assert.equal(of(0, "", "::ffff:198.51.100.7"), "198.51.100.7");
  assert.throws(() => of(1, "", ""), /the peer has no address/);
  assert.throws(() => byAddress(-1), TypeError);
});

async function assertProblem(
  response: Response,
  status: number,
  title: string,
  detail: string,
  members: object = {},
): Promise<void> {
  assert.equal(response.headers.get("content-type"), "application/problem+json");
  const document = { type: "about:blank", title, status, detail, ...members };
  assert.deepEqual([response.status, await response.json()], [status, document]);
}
