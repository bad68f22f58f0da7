/** Servers of the tests: RLAAS_SERVER is the path of the binary rlaas, RLAAS_CASES the address of that of the table. */

import { spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { writeFileSync } from "node:fs";
import http2 from "node:http2";
import { type AddressInfo, type Server, createServer } from "node:net";
import { createInterface } from "node:readline";
import { after } from "node:test";
import { fileURLToPath } from "node:url";

export const CASES = process.env["RLAAS_CASES"];
export const SERVER = process.env["RLAAS_SERVER"];

/**
 * Two requests a minute for each user, none for mallory, any for ops, and 100 tokens; a budget of models;
 * two failures of a login; and two requests a second, one after the other.
 */
const RULES = `
rate-limiter: { use-algo: gcra, window-size: 60, max-requests: 2 }
rules:
  - { name: tokens, match: { resource: /tokens }, algorithm: gcra, limit: 100, window: 30d, reservable: true }
  - { name: budget, match: { resource: /llm }, algorithm: fixed-window, limit: 1000, window: 30d, reservable: true }
  - { name: money, match: { resource: /llm }, algorithm: fixed-window, limit: 100000, window: 30d, reservable: true }
  - { name: requests, match: { resource: /llm }, algorithm: gcra, limit: 60, window: 1m, cost: 1 }
  - { name: login, endpoint: /login, algorithm: sliding-window-counter, limit: 2, window: 1h, reservable: true }
  - { name: soon, endpoint: /soon, algorithm: gcra, limit: 2, window: 1s, burst: 1 }
  - { name: ops, match: { user_id: ops }, limit: 1, window: 1s, overrides: [{ match: { user_id: ops }, unlimited: true }] }
  - { name: mallory, match: { user_id: mallory }, limit: 0, window: 1s }
`;
const rules = fileURLToPath(new URL("rules.yaml", import.meta.url));
writeFileSync(rules, RULES);

/** Returns the option of a test that needs a server, after a line if it is skipped. */
export function needs(name: "RLAAS_CASES" | "RLAAS_SERVER", tests: string): { skip: boolean } {
  const skip = !process.env[name];
  if (skip) {
    console.log(`SKIPPED ${tests}: ${name} is unset`);
  }
  return { skip };
}

const stops = new Map<string, () => Promise<void>>();

/** Ends the server at an address. */
export async function stop(address: string): Promise<void> {
  await stops.get(address)?.();
}

/** Starts a server until the end of the tests, and returns its address. */
export async function serve(...settings: string[]): Promise<string> {
  const listen = ["server.listen=127.0.0.1:0", "server.http=127.0.0.1:0", ...settings];
  const sets = listen.map((setting) => `--set=${setting}`);
  // The server would take our variables for settings.
  const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("RLAAS_")));
  const stdio: ["ignore", "ignore", "pipe"] = ["ignore", "ignore", "pipe"];
  const server = spawn(SERVER!, ["serve", "--config", rules, ...sets], { env, stdio });
  after(() => server.kill());
  const exited = once(server, "exit");
  for await (const line of createInterface(server.stderr)) {
    const address = /grpc=(\S+)/.exec(line)?.[1];
    if (address) {
      server.stderr.resume();
      stops.set(address, async () => void (server.kill() && (await exited)));
      return address;
    }
  }
  throw new Error("the server has ended");
}

/** Returns the address of a server that accepts connections and never answers. */
export async function silent(): Promise<string> {
  return listen(createServer((socket) => after(() => socket.destroy())));
}

/** Returns the address of a server that calls a function for each call, and answers with the status it returns. */
export async function broken(statusOf: () => number): Promise<string> {
  const server = http2.createServer().on("session", (session) => session.unref());
  server.on("stream", (stream) =>
    stream.respond({ "content-type": "application/grpc", "grpc-status": statusOf() }, { endStream: true }),
  );
  return listen(server);
}

async function listen(server: Server): Promise<string> {
  after(() => server.close());
  await once(server.listen(0, "127.0.0.1"), "listening");
  return `127.0.0.1:${(server.address() as AddressInfo).port}`;
}

export async function unusedPort(): Promise<string> {
  const server = createServer().listen(0);
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  server.close();
  return String(port);
}

/** Nothing listens there. */
export const CLOSED = "127.0.0.1:1";

export function newUser(): string {
  return randomUUID();
}
