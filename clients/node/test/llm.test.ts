import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { after, test } from "node:test";
import { setImmediate, setTimeout } from "node:timers/promises";

import { Client } from "rlaas-client";
import {
  Budget,
  BudgetError,
  type BudgetOptions,
  type ChargedUsage,
  type Usage,
  budgetFetch,
} from "rlaas-client/llm";

import { type Fields, allowed, fake, status } from "./fake.js";
import { CLOSED, needs, newUser, serve } from "./servers.js";

const real = needs("RLAAS_SERVER", "budgets of models with a real server");
const address = real.skip ? CLOSED : await serve();
const client = new Client(address, { timeoutMs: 10_000, warn: () => {} });
after(() => client.close());

const file = process.env["RLAAS_LLM_TABLE"] ?? "../llm-cases.json";
const { cases }: { cases: Fields[] } = JSON.parse(readFileSync(file, "utf8"));

const URLS: Record<string, string> = {
  "openai-chat": "https://model/v1/chat/completions",
  "openai-responses": "https://model/v1/responses?a=1",
  anthropic: "https://model/v1/messages",
  gemini: "https://model/v1beta/models/m:streamGenerateContent?alt=sse",
};

for (const { name, provider, response, chunks, usage, charged = usage, estimate = 0 } of cases) {
  test(`usage: ${name}`, real, async () => {
    const { fetch, user, settled, sent } = limited({ estimate: () => estimate }, () =>
      response ? Response.json(response) : events(chunks, usage ? "end" : "error"),
    );
    const body = { model: "m", stream: !response, max_tokens: 500, stream_options: { include_usage: true } };
    const answer = await fetch(URLS[provider]!, { method: "POST", body: JSON.stringify(body) });
    if (response) {
      assert.deepEqual(await answer.json(), response);
      assert.deepEqual(sent, [body]);
    } else if (usage) {
      assert.equal(await answer.text(), await events(chunks, "end").text(), "chunks pass as they came");
    } else {
      await assert.rejects(answer.text(), { message: "the stream is cut" });
    }
    const { cached_read: cachedRead, cached_write: cachedWrite, ...rest } = charged;
    assert.deepEqual(settled, [{ estimated: false, ...rest, cachedRead, cachedWrite }]);
    assert.equal(await left(user), 1000 - charged.total);
  });
}

test("a call holds its estimate and the most tokens, and money", real, async () => {
  const price = (model: string, { input, output }: Usage) => (model === "gpt" ? input + 3.5 * output : 0);
  const held: unknown[] = [];
  const { fetch, user } = limited({ price, estimate: () => 50 }, async () => {
    held.push(await left(user), await left(user, "money"));
    return Response.json({ usage: { prompt_tokens: 40, completion_tokens: 5 } });
  });
  for (const bound of [{ max_completion_tokens: 100 }, { max_tokens: 50, n: 2 }, {}]) {
    await fetch(URLS["openai-chat"]!, { method: "POST", body: JSON.stringify({ model: "gpt", ...bound }) });
  }
  assert.deepEqual(held, [850, 99_600, 805, 99_542, 560, 98_784]);
  assert.deepEqual([await left(user), await left(user, "money")], [865, 99_826]);
});

test("a chunk with the usage is asked for, and dropped if the caller had not", real, async () => {
  const { chunks, usage } = cases.find(({ name }) => name === "chat-stream")!;
  const { fetch, settled, sent } = limited({}, () => events(chunks, "end"));
  const body = JSON.stringify({ model: "m", stream: true });
  const answer = await fetch(new Request(URLS["openai-chat"]!, { method: "POST", body }));
  assert.equal(await answer.text(), await events(chunks.slice(0, 2), "end").text());
  assert.deepEqual(sent, [{ model: "m", stream: true, stream_options: { include_usage: true } }]);
  assert.equal(settled[0]!.total, usage.total);
});

test("an error of the provider costs nothing, one without an answer the estimate", real, async () => {
  for (const [code, total] of [
    [400, undefined],
    [503, undefined],
    [0, 50],
  ] as const) {
    const { fetch, user, settled } = limited({ estimate: () => 50 }, () =>
      code ? new Response("no", { status: code }) : Promise.reject(new Error("connection reset")),
    );
    const answer = fetch(URLS["anthropic"]!, { method: "POST", body: '{"max_tokens":100}' });
    await (code
      ? answer.then(({ status }) => assert.equal(status, code))
      : assert.rejects(answer, /connection reset/));
    assert.deepEqual([settled[0]?.total, await left(user)], [total, 1000 - (total ?? 0)]);
  }
});

test("a stream that its reader cancels costs what was streamed", real, async () => {
  const { chunks } = cases.find(({ name }) => name === "chat-stream-cut")!;
  const { fetch, user, settled } = limited({ estimate: () => 12 }, () => events(chunks, "open"));
  const answer = await fetch(URLS["openai-chat"]!, { method: "POST", body: '{"stream":true,"max_tokens":100}' });
  const reader = answer.body!.getReader();
  const text = await events(chunks, "end").text();
  for (let read = ""; read !== text;) {
    read += new TextDecoder().decode((await reader.read()).value);
  }
  assert.equal(await left(user), 1000 - 112, "held meanwhile");
  await reader.cancel();
  assert.deepEqual([settled[0]?.total, settled[0]?.estimated, await left(user)], [17, true, 983]);
});

test("a refusal is a response with the headers that SDKs read", real, async () => {
  const { fetch, user } = limited({ tokens: "budget" }, () => assert.fail("must not be called"));
  const call = await new Budget(client, { resource: "/llm" }).call(user, { estimate: 500, maxTokens: 200 });
  const refused = await fetch(URLS["openai-chat"]!, { method: "POST", body: '{"max_tokens":400}' });
  const { error } = (await refused.json()) as Fields;
  const { headers } = refused;
  assert.deepEqual([refused.status, error.type, error.code], [429, "rate_limit_error", "rate_limit_exceeded"]);
  assert.match(error.message, /^budget exceeded \(budget: HELD\), try again in \d+ s$/);
  assert.ok(Number(headers.get("retry-after-ms")) > 0);
  assert.equal(headers.get("retry-after"), `${Math.ceil(Number(headers.get("retry-after-ms")) / 1000)}`);
  assert.deepEqual(
    ["limit", "remaining"].map((part) => headers.get(`x-ratelimit-${part}-tokens`)),
    ["1000", "300"],
  );
  assert.match(headers.get("x-ratelimit-reset-tokens")!, /^(\d+h\d+m)?\d+s$/);
  assert.equal(headers.get("x-ratelimit-limit-requests"), "60");
  await call.cancel();
  const never = await fetch(URLS["openai-chat"]!, { method: "POST", body: '{"max_tokens":4000}' });
  assert.deepEqual(
    [never.status, never.headers.get("x-should-retry"), never.headers.get("retry-after")],
    [429, "false", null],
  );
});

test("other calls pass, and are not limited", async () => {
  const sent: unknown[] = [];
  const budget = new Budget(new Client(CLOSED, { onNoAnswer: () => assert.fail("must not be asked") }));
  const fetch = budgetFetch(budget, "alice", async (input, init) => {
    sent.push([`${input instanceof Request ? input.url : input}`, init?.body]);
    return new Response("ok");
  });
  await fetch("https://model/v1/models");
  await fetch(new URL("https://model/v1/files"), { method: "POST", body: "{}" });
  await fetch(URLS["openai-chat"]!, { method: "POST", body: "not JSON" });
  assert.deepEqual(sent, [
    ["https://model/v1/models", undefined],
    ["https://model/v1/files", "{}"],
    [URLS["openai-chat"], "not JSON"],
  ]);
});

test("the policy decides while the server is away", async () => {
  const options = { timeoutMs: 10_000, warn: () => {} };
  const send = (denying: Client) =>
    budgetFetch(new Budget(denying), "alice", async () => Response.json({ usage: { prompt_tokens: 3 } }))(
      URLS["openai-chat"]!,
      { method: "POST", body: "{}" },
    );
  const denied = await send(new Client(CLOSED, { ...options, onNoAnswer: "deny" }));
  assert.deepEqual([denied.status, denied.headers.get("retry-after")], [503, "1"]);
  assert.equal((await send(new Client(CLOSED, options))).status, 200);
  // It is back before the answer: what nobody held is reported.
  const reported = new Promise<Fields>((resolve) => {
    const away = fake(({ method, requests, answer }) => {
      answer(method === "Report" ? [allowed] : status(14));
      method === "Report" && resolve(requests[0]!);
    });
    away.then((back) => send(new Client(back, options)));
  });
  assert.equal((await reported)["cost"], 3);
});

test("a call is extended at half of its time until it ends", async (context) => {
  context.mock.timers.enable({ apis: ["setInterval"] });
  let [extended, resolve] = [0, () => {}];
  const twice = new Promise<void>((done) => (resolve = done));
  const server = new Client(
    await fake(({ method, answer }) => {
      answer([{ ...allowed, id: "r" }]);
      method === "Extend" && ++extended === 2 && resolve();
    }),
  );
  const call = await new Budget(server, { holdMs: 30_000 }).call("alice", { estimate: 1 });
  context.mock.timers.tick(14_999);
  await server.check("alice");
  assert.equal(extended, 0);
  context.mock.timers.tick(15_001);
  await twice;
  await call.end();
  context.mock.timers.tick(60_000);
  await server.check("alice");
  assert.equal(extended, 2);
});

test("nothing is charged for a process that dies", real, async () => {
  const user = newUser();
  // It lives, and extends what it holds, until it is killed.
  const program = `
    import { Client } from "rlaas-client";
    import { Budget } from "rlaas-client/llm";
    const client = new Client("${address}", { timeoutMs: 10_000 });
    await new Budget(client, { resource: "/llm", holdMs: 1000 }).call("${user}", { estimate: 500, maxTokens: 1 });
    process.stdout.write("held");
    setInterval(() => {}, 1000);`;
  const child = spawn(process.execPath, ["--input-type=module", "--eval", program], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  await once(child.stdout, "data", { signal: AbortSignal.timeout(20_000) });
  assert.equal(await left(user), 499);
  child.kill("SIGKILL");
  for (const until = performance.now() + 20_000; (await left(user)) !== 1000;) {
    assert.ok(performance.now() < until);
    await setImmediate();
  }
});

test("a call is settled once, and a refused one rejects", real, async () => {
  const [user, settled] = [newUser(), [] as ChargedUsage[]];
  const budget = new Budget(client, { resource: "/llm", onSettled: (usage) => settled.push(usage) });
  const call = await budget.call(user, { estimate: 10, maxTokens: 10 });
  assert.equal(call.verdict.allowed, true);
  await Promise.all([call.end(), call.cancel(), call.end()]);
  assert.deepEqual([settled.length, await left(user)], [1, 990]);
  await assert.rejects(budget.call(user, { estimate: 991 }), (error) => {
    assert.ok(error instanceof BudgetError);
    assert.deepEqual([error.status, error.isRetryable, error.verdict.reason], [429, false, "COST_ABOVE_LIMIT"]);
    return true;
  });
  assert.throws(() => new Budget(client, { hold: 1 } as BudgetOptions), /unknown option hold/);
});

test("a settlement without an answer is repeated until there is one", async () => {
  let commits = 0;
  const server = await fake(({ method, answer }) => {
    if (method !== "Commit") {
      return answer([{ ...allowed, id: "held" }]);
    }
    commits += 1;
    answer(commits < 4 ? status(14) : [{}]);
  });
  const own = new Client(server, { timeoutMs: 10_000, warn: () => {} });
  const call = await new Budget(own).call("alice", { estimate: 10, maxTokens: 10 });
  await call.end();
  assert.equal(commits, 2);
  for (const until = performance.now() + 20_000; commits < 4;) {
    assert.ok(performance.now() < until);
    await setImmediate();
  }
  // The next would have come after 400 ms.
  await setTimeout(1000);
  assert.equal(commits, 4);
  own.close();
});

/** Returns a limited `fetch` for a model, with the bodies that it gets and what is charged. */
function limited(options: BudgetOptions, model: () => Response | Promise<Response>) {
  const [user, settled, sent] = [newUser(), [] as ChargedUsage[], [] as Fields[]];
  const budget = new Budget(client, {
    resource: "/llm",
    defaultOutput: 300,
    onSettled: (usage) => settled.push(usage),
    ...options,
  });
  const fetch = budgetFetch(
    budget,
    () => user,
    async (_, init) => {
      sent.push(JSON.parse(`${init?.body}`));
      return model();
    },
  );
  return { fetch, user, settled, sent };
}

/** Returns a stream of events in pieces that are not those of the events. */
function events(chunks: Fields[], end: "end" | "error" | "open"): Response {
  const text = chunks.map((chunk) => `event: ${chunk["type"]}\ndata: ${JSON.stringify(chunk)}\n\n`).join("");
  const bytes = Buffer.from(text);
  const body = new ReadableStream<Uint8Array>(
    {
      start(controller) {
        for (let from = 0; from < bytes.length; from += 100) {
          controller.enqueue(bytes.subarray(from, from + 100));
        }
        end === "end" && controller.close();
      },
      pull(controller) {
        end === "error" && controller.error(new Error("the stream is cut"));
      },
    },
    { highWaterMark: 0 },
  );
  return new Response(body, { headers: { "content-type": "text/event-stream" } });
}

/** Returns what is left of a rule. */
async function left(userId: string, rule = "budget"): Promise<number | undefined> {
  const { decisions } = await client.check({ userId, resource: "/llm", cost: 0 });
  return decisions.find((decision) => decision.rule === rule)?.remaining;
}
