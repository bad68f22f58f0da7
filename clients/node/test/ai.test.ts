import assert from "node:assert/strict";
import { after, test } from "node:test";

import { APICallError, generateText, streamText, wrapLanguageModel } from "ai";
import { MockLanguageModelV4, simulateReadableStream } from "ai/test";
import { Client } from "rlaas-client";
import { budgetMiddleware } from "rlaas-client/ai";
import { Budget, type ChargedUsage } from "rlaas-client/llm";

import { CLOSED, needs, newUser, serve } from "./servers.js";

const real = needs("RLAAS_SERVER", "the AI SDK with a real server");
const client = new Client(real.skip ? CLOSED : await serve(), { timeoutMs: 10_000, warn: () => {} });
after(() => client.close());

type Options = ConstructorParameters<typeof MockLanguageModelV4>[0] & object;
type Part =
  Awaited<ReturnType<MockLanguageModelV4["doStream"]>>["stream"] extends ReadableStream<infer P> ? P : never;
type Usage = (Part & { type: "finish" })["usage"];

const usage: Usage = {
  inputTokens: { total: 30, noCache: 20, cacheRead: 8, cacheWrite: 2 },
  outputTokens: { total: 12, text: 5, reasoning: 7 },
};
const unknown: Usage = {
  inputTokens: { total: undefined, noCache: undefined, cacheRead: undefined, cacheWrite: undefined },
  outputTokens: { total: undefined, text: undefined, reasoning: undefined },
};
const stop = { unified: "stop", raw: "stop" } as const;
const charged = { input: 30, cachedRead: 8, cachedWrite: 2, output: 12, reasoning: 7, total: 42, estimated: false };
const estimated = { input: 20, cachedRead: 0, cachedWrite: 0, output: 3, reasoning: 0, total: 23, estimated: true };
const deltas: Part[] = [
  { type: "stream-start", warnings: [] },
  { type: "text-start", id: "1" },
  { type: "text-delta", id: "1", delta: "hello " },
  { type: "text-delta", id: "1", delta: "world" },
];
const finish = (counts: Usage): Part[] => [
  { type: "text-end", id: "1" },
  { type: "finish", finishReason: stop, usage: counts },
];

/** Returns a limited model, with its user and what is charged. The prompt of each call counts as 20 tokens. */
function limited(options: Options) {
  const [user, settled] = [newUser(), [] as ChargedUsage[]];
  const onSettled = (usage: ChargedUsage) => settled.push(usage);
  const budget = new Budget(client, { resource: "/llm", defaultOutput: 500, estimate: () => 20, onSettled });
  const mock = new MockLanguageModelV4({ modelId: "m", ...options });
  const model = wrapLanguageModel({ model: mock, middleware: budgetMiddleware(budget, () => user) });
  return { model, mock, user, settled };
}

function streaming(parts: Part[]): Options {
  return { doStream: async () => ({ stream: simulateReadableStream({ chunks: parts }) }) };
}

for (const [name, counts, expected] of [
  ["its usage", usage, charged],
  ["the estimate without usage", unknown, estimated],
] as const) {
  test(`a generated answer costs ${name}`, real, async () => {
    let held: number | undefined;
    const { model, user, settled } = limited({
      doGenerate: async () => {
        held = await left(user);
        return { content: [{ type: "text", text: "hello world" }], finishReason: stop, usage: counts, warnings: [] };
      },
    });
    const { text } = await generateText({ model, prompt: "hi", maxOutputTokens: 100 });
    assert.deepEqual([text, held, await left(user)], ["hello world", 880, 1000 - expected.total]);
    assert.deepEqual(settled, [expected]);
  });

  test(`a streamed answer costs ${name}`, real, async () => {
    const { model, user, settled } = limited(streaming([...deltas, ...finish(counts)]));
    const { stream } = await model.doStream({ prompt: [] });
    for await (const { type } of stream) {
      assert.equal(await left(user), type === "finish" ? 1000 - expected.total : 480, type);
    }
    assert.equal(await streamText({ model, prompt: "hi" }).text, "hello world");
    assert.deepEqual(settled, [expected, expected]);
  });
}

test("a stream that ends early costs what was streamed", real, async () => {
  const cut = (end: "error" | "close") => ({
    doStream: async () => {
      const chunks = [...deltas];
      const stream = new ReadableStream<Part>({
        pull(controller) {
          const part = chunks.shift();
          part ? controller.enqueue(part) : end === "close" ? controller.close() : controller.error(new Error("cut"));
        },
      });
      return { stream };
    },
  });
  for (const [options, end] of [
    [cut("error"), "error"],
    [cut("close"), "close"],
    [streaming([...deltas, { type: "error", error: "cut" }]), "an error of the provider"],
    [streaming([...deltas, ...finish(usage)]), "cancel"],
  ] as const) {
    const { model, user, settled } = limited(options);
    const { stream } = await model.doStream({ prompt: [] });
    const reader = stream.getReader();
    for (let part: Part | undefined; part?.type !== "text-delta" || part.delta !== "world";) {
      part = (await reader.read()).value;
    }
    if (end === "cancel") {
      await reader.cancel();
    } else {
      const drained = (async () => {
        while (!(await reader.read()).done);
      })();
      await (end === "error" ? assert.rejects(drained, { message: "cut" }) : drained);
    }
    assert.deepEqual([settled, await left(user)], [[estimated], 977], end);
  }
});

test("an answer of the provider that is an error costs nothing, a time-out the estimate", real, async () => {
  const failure = { message: "no", url: "", requestBodyValues: {}, isRetryable: false };
  for (const [error, cost] of [
    [new APICallError({ ...failure, statusCode: 529 }), 0],
    [new APICallError({ ...failure, cause: new Error("connection reset") }), 20],
    [new DOMException("aborted", "AbortError"), 20],
  ] as const) {
    for (const type of ["generateText", "streamText"] as const) {
      const { model, user, settled } = limited({
        doGenerate: () => Promise.reject(error),
        doStream: () => Promise.reject(error),
      });
      const call = type === "generateText" ? model.doGenerate : model.doStream;
      await assert.rejects(async () => call({ prompt: [] }), error);
      assert.deepEqual([settled.length, await left(user)], [cost > 0 ? 1 : 0, 1000 - cost], type);
    }
  }
});

test("a refused call never reaches the model", real, async () => {
  const { model, mock, user } = limited(streaming([...deltas, ...finish(usage)]));
  await assert.rejects(
    async () => generateText({ model, prompt: "hi", maxOutputTokens: 5000 }),
    (error) => {
      assert.ok(APICallError.isInstance(error));
      assert.deepEqual([error.statusCode, error.isRetryable], [429, false]);
      assert.match(error.message, /^budget exceeded \(budget: COST_ABOVE_LIMIT\)$/);
      return true;
    },
  );
  const held = await new Budget(client, { resource: "/llm" }).call(user, { estimate: 900, maxTokens: 0 });
  await assert.rejects(
    async () => model.doStream({ prompt: [] }),
    (error) => {
      assert.ok(APICallError.isInstance(error));
      assert.ok(Number(error.responseHeaders!["retry-after-ms"]) > 0);
      return true;
    },
  );
  assert.deepEqual([mock.doGenerateCalls, mock.doStreamCalls], [[], []]);
  await held.cancel();
  await streamText({ model, prompt: "hi" }).consumeStream();
  assert.equal(mock.doStreamCalls.length, 1);
});

test("the prompt is estimated by its text, without files", real, async () => {
  const budget = new Budget(client, { resource: "/llm" });
  const model = wrapLanguageModel({
    model: new MockLanguageModelV4({ doGenerate: async () => Promise.reject(new Error(`${await left(user)}`)) }),
    middleware: budgetMiddleware(budget, ({ params }) => params.providerOptions!["rlaas"] as { userId: string }),
  });
  const user = newUser();
  const image = {
    type: "file",
    mediaType: "image/png",
    data: { type: "data", data: Buffer.alloc(100_000) },
  } as const;
  const prompt = [{ role: "user", content: [{ type: "text", text: "x".repeat(400) }, image] }] as never;
  const held = model.doGenerate({ prompt, maxOutputTokens: 0, providerOptions: { rlaas: { userId: user } } });
  await assert.rejects(async () => held, /^Error: 8[4-9]\d$/);
});

/** Returns what is left of the budget. */
async function left(userId: string): Promise<number | undefined> {
  const { decisions } = await client.check({ userId, resource: "/llm", cost: 0 });
  return decisions.find(({ rule }) => rule === "budget")?.remaining;
}
