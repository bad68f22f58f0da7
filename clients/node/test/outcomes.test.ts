import assert from "node:assert/strict";
import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { after, test } from "node:test";

import express from "express";
import { fastify } from "fastify";
import { Client, type RateLimitOptions } from "rlaas-client";
import { rateLimit } from "rlaas-client/express";
import rateLimitPlugin from "rlaas-client/fastify";
import { allowAll, withLimits } from "rlaas-client/testing";

import { needs, newUser, serve } from "./servers.js";

/** Answers a request with a status, or not at all with 0. */
type View = () => number | Promise<number>;
type Get = () => Promise<number>;

/** Starts applications that limit one route, and returns the statuses of requests to it. */
const frameworks: Record<string, (options: RateLimitOptions<any>, view: View) => Promise<Get>> = {
  async express(options, view) {
    const app = express().set("env", "test");
    app.get(
      "/login",
      rateLimit<express.Request>(options),
      async (_, response) => void response.sendStatus(await view()),
    );
    const server = app.listen(0, "127.0.0.1");
    after(() => server.close().closeAllConnections());
    await once(server, "listening");
    return get((server.address() as AddressInfo).port);
  },
  async fastify(options, view) {
    const app = fastify({ forceCloseConnections: true });
    await app.register(rateLimitPlugin, options);
    app.get("/login", async (_, reply) => reply.code(await view()).send("answered"));
    after(() => app.close());
    await app.listen({ host: "127.0.0.1", port: 0 });
    return get((app.server.address() as AddressInfo).port);
  },
};

const get = (port: number) => async () => (await fetch(`http://127.0.0.1:${port}/login`)).status;

const real = needs("RLAAS_SERVER", "outcomes and waits with a real server");
const address = real.skip ? "" : await serve();
const shared = (options = {}) => {
  const client = new Client(address, { timeoutMs: 10_000, maxAgeMs: 0, warn: assert.fail, ...options });
  after(() => client.close());
  return client;
};

async function until(isTrue: () => Promise<boolean>): Promise<void> {
  while (!(await isTrue())) {
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

for (const [name, start] of Object.entries(frameworks)) {
  for (const [count, expected] of [
    ["failures", [200, 404, 200, 500, 429]],
    ["successes", [200, 404, 200, 429, 429]],
  ] as const) {
    test(`${name}: only ${count} are counted`, async () => {
      const client = withLimits([{ rule: "login", limit: 2 }]);
      const views = [200, 404, 200, 500, 200];
      const request = await start({ client, rule: "login", count }, () => views.shift()!);
      const statuses: number[] = [];
      for (const _ of expected) {
        const settled = client.calls.length + 2;
        statuses.push(await request());
        await until(async () => statuses.at(-1) === 429 || client.calls.length === settled);
      }
      assert.deepEqual(statuses, expected);
    });
  }

  test(`${name}: wrong passwords are counted by a server`, real, async () => {
    const [client, user, views] = [shared(), newUser(), [200, 401, 200, 401, 200]];
    const request = await start(
      { client, key: () => user, resource: "/login", rule: "login", count: "failures" },
      () => views.shift()!,
    );
    let left = 2;
    for (const status of [200, 401, 200, 401]) {
      assert.equal(await request(), status);
      left -= status === 401 ? 1 : 0;
      const look = { userId: user, resource: "/login", cost: 0 };
      await until(async () => (await client.check(look)).remaining === left);
    }
    assert.equal(await request(), 429);
  });

  test(`${name}: guesses at once are held`, real, async () => {
    const [client, user] = [shared(), newUser()];
    let open = () => {};
    const gate = new Promise<number>((resolve) => (open = () => resolve(200)));
    let begun = 0;
    const options = { client, key: () => user, resource: "/login", rule: "login", count: "failures" } as const;
    const request = await start(options, () => (++begun, gate));
    const guesses = [request(), request()];
    await until(async () => begun === 2);
    assert.equal(await request(), 429);
    open();
    assert.deepEqual(await Promise.all(guesses), [200, 200]);
  });

  test(`${name}: a rule that is not reservable is named`, real, async () => {
    const lines: string[] = [];
    const client = shared({ warn: (line: string) => lines.push(line) });
    const request = await start(
      { client, key: newUser, resource: "/soon", rule: "soon", count: "failures" },
      () => 200,
    );
    assert.deepEqual([await request(), await request()], [500, 500]);
    assert.deepEqual(lines, ["rlaas: rule soon must be reservable to count failures"]);
  });

  test(`${name}: requests wait in turn`, real, async () => {
    const [client, user] = [shared(), newUser()];
    const options = { client, key: () => user, resource: "/soon", rule: "soon", strict: true };
    const request = await start({ ...options, waitMs: 30_000 }, () => 200);
    const began = performance.now();
    assert.deepEqual(await Promise.all([request(), request(), request(), request()]), [200, 200, 200, 200]);
    assert.ok(performance.now() - began >= 1400, "one passes at once, and the others each half a second");
    const other = newUser();
    const short = await start({ ...options, key: () => other, waitMs: 1 }, () => 200);
    assert.deepEqual([await short(), await short()], [200, 429]);
  });

  test(`${name}: a request waits no longer for what is held`, real, async () => {
    const [client, user] = [shared(), newUser()];
    const fields = { userId: user, resource: "/login" };
    const options = { client, key: () => user, resource: "/login", rule: "login", count: "failures" } as const;
    const request = await start({ ...options, waitMs: 200 }, () => 200);
    await client.reserve({ ...fields, cost: 2 }, async (held) => {
      const began = performance.now();
      assert.equal(await request(), 429);
      const took = performance.now() - began;
      assert.ok(took >= 200 && took < 15_000, `${took} ms`);
      await held.cancel();
    });
    assert.equal(await request(), 200);
  });
}

test("outcomes need a rule, and a client that allows all has none", async () => {
  assert.throws(() => rateLimit({ client: allowAll(), count: "failures" }), /with the name of a reservable rule/);
  assert.throws(() => rateLimit({ client: allowAll(), rule: "a", count: "errors" as never }), TypeError);
  const request = await frameworks["express"]!({ client: allowAll(), rule: "login", count: "failures" }, () => 401);
  assert.deepEqual([await request(), await request()], [401, 401]);
});
