/** The examples, with the package that is installed in .cache/empty; see test.sh. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { test } from "node:test";

import { CLOSED, SERVER, serve, unusedPort } from "./servers.js";

const address = SERVER ? await serve() : CLOSED;

for (const name of ["express", "fastify"]) {
  test(`example ${name}`, async () => {
    const PORT = await unusedPort();
    const example = run([`examples/${name}.js`], { PORT });
    for await (const line of createInterface(example.stdout)) {
      if (line === "listening") {
        break;
      }
    }
    const response = await fetch(`http://localhost:${PORT}/`, { headers: { "x-api-key": "alice" } });
    assert.deepEqual([response.status, await response.text()], [200, "hello\n"]);
    assert.equal(response.headers.has("ratelimit"), SERVER !== undefined);
    example.kill();
  });
}

test("example tokens, and CommonJS", async () => {
  assert.equal(await output(run(["examples/tokens.js"])), `hello by ${SERVER ? "server" : "policy"}\n`);
  const names = ["rlaas-client", "rlaas-client/llm", "rlaas-client/testing"];
  const program = `console.log(${names.map((name) => `Object.keys(require("${name}")).length > 0`)})`;
  assert.equal(await output(run(["--input-type=commonjs", "--eval", program])), "true true true\n");
});

function run(args: string[], variables: Record<string, string> = {}) {
  const env = { ...process.env, RLAAS_ADDRESS: address, ...variables };
  const cwd = new URL("../empty", import.meta.url);
  return spawn(process.execPath, args, { cwd, env, stdio: ["ignore", "pipe", "inherit"] });
}

async function output(child: ReturnType<typeof run>): Promise<string> {
  return Buffer.concat(await child.stdout.toArray()).toString();
}
