import assert from "node:assert/strict";
import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { after, test } from "node:test";

import express from "express";
import { Client } from "rlaas-client";
import { rateLimit } from "rlaas-client/express";
import { allowAll, away, refuseAll, withLimits } from "rlaas-client/testing";

import { needs, newUser, serve } from "./servers.js";

const real = needs("RLAAS_SERVER", "clients of tests beside a real server");

/** Starts an application, and returns the statuses of requests to it. */
async function application(client: Client): Promise<() => Promise<number>> {
  const app = express().use(rateLimit({ client }));
  const server = app.get("/search", (_, response) => void response.send("found")).listen(0, "127.0.0.1");
  after(() => server.close().closeAllConnections());
  await once(server, "listening");
  return async () => (await fetch(`http://127.0.0.1:${(server.address() as AddressInfo).port}/search`)).status;
}

test("a program is tested without a server", async (context) => {
  const search = { rule: "search", resource: "/search", limit: 2 };
  for (const [client, statuses] of [
    [allowAll(), [200, 200, 200]],
    [withLimits([search, { ...search, resource: "/other", limit: 0 }]), [200, 200, 429]],
    [withLimits([{ ...search, used: 1 }]), [200, 429, 429]],
    [refuseAll(), [429, 429, 429]],
    [away(), [200, 200, 200]],
    [away({ onNoAnswer: "deny" }), [503, 503, 503]],
  ] as const) {
    const get = await application(client);
    assert.deepEqual([await get(), await get(), await get()], statuses);
    const [{ method, request }] = client.calls as [(typeof client.calls)[0]];
    assert.deepEqual([method, request.userId, request.resource], ["Check", "127.0.0.1", "/search"]);
  }
  context.mock.timers.enable({ apis: ["Date"] });
  const client = withLimits([{ ...search, windowMs: 5000 }]);
  const get = await application(client);
  assert.deepEqual([await get(), await get(), await get()], [200, 200, 429]);
  context.mock.timers.tick(5000);
  assert.equal(await get(), 200);
  client.isAway = true;
  assert.equal((await client.check("alice")).answeredBy, "policy");
});

test("it counts and holds as a real server", real, async () => {
  const limits = [
    { rule: "requests", limit: 60, cost: 1 },
    { rule: "budget", resource: "/llm", limit: 1000 },
  ];
  const options = { timeoutMs: 10_000, warn: () => {} };
  const outcomes = [withLimits(limits), new Client(await serve(), options)].map(async (client) => {
    const fields = { userId: newUser(), resource: "/llm" };
    const seen: unknown[] = [];
    const look = async () => {
      const { allowed, reason, rule, decisions } = await client.check({ ...fields, cost: 0 });
      const { remaining, currentCount, limit } = decisions.find(({ rule }) => rule === "budget")!;
      seen.push([allowed, reason, allowed || rule, remaining, currentCount, limit]);
    };
    const checks = [
      { cost: 100 },
      { cost: 950 },
      { cost: 1001 },
      { costs: { budget: 300 } },
      { cost: 1, dryRun: true },
      { cost: 950, atLeast: 901 },
      { cost: 950, atLeast: 10, dryRun: true },
    ];
    for (const more of checks) {
      const { allowed, reason, taken } = await client.check({ ...fields, ...more });
      seen.push([allowed, reason, taken]);
      await look();
    }
    await client.reserve({ ...fields, cost: 200 }, async (held) => {
      await look();
      seen.push((await held.extend({ cost: 100 })).allowed, (await held.extend({ cost: 900 })).allowed);
      await look();
      const { allowed, verdict } = await client.reserve({ ...fields, cost: 400 }, () => {});
      seen.push(allowed, verdict.reason);
      seen.push(await held.commit(150, { budget: 50 }), await held.cancel());
    });
    await look();
    await client.reserve({ ...fields, cost: 2000, atLeast: 10 }, async (held) => {
      seen.push(held.verdict.taken);
      await look();
      await held.cancel();
    });
    const failing = client.reserve({ ...fields, cost: 10 }, () => Promise.reject(new Error("the work fails")));
    await assert.rejects(failing, /the work fails/);
    await look();
    seen.push((await client.report({ ...fields, cost: 2000 })).remaining);
    await look();
    return seen;
  });
  const [counted, decided] = await Promise.all(outcomes);
  assert.deepEqual(counted, decided);
});
