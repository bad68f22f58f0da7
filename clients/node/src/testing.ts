/** Clients for tests of programs, without a server. They have the policies, errors and reservations of all clients. */

import type { Channel } from "./channel.js";
import { Client, type ClientOptions, duration } from "./client.js";
import { RlaasError } from "./error.js";
import type { RequestFields } from "./request.js";
import type { VerdictMessage } from "./verdict.js";

/** A limit of a test: units of each user in a fixed window, which begins with the first request. */
export interface TestLimit {
  rule: string;
  limit: number;
  /** By default a minute, by the time of `Date`. */
  windowMs?: number;
  /** The resource that is limited; by default all of them, together. */
  resource?: string;
  /** Units of each request, in the place of its own cost. */
  cost?: number;
  /** Units with which each window begins, by default 0. */
  used?: number;
}

/** A call to the server that is not there, such as `Check`, `Reserve` and `Commit`. */
export interface TestCall {
  method: string;
  /** The request, or the whole message of a call that has none. */
  request: RequestFields;
}

type Fields = Record<string, any>;
type Counter = { limit: TestLimit; used: number; held: number; endsAt: number };

const MINUTE_MS = 60_000;

/** Returns a client that allows all. */
export function allowAll(options?: ClientOptions): TestClient {
  return new TestClient([], options);
}

/** Returns a client that refuses all, by a rule `test`. */
export function refuseAll(options?: ClientOptions): TestClient {
  return new TestClient([{ rule: "test", limit: 1, used: 1 }], options);
}

/** Returns a client that counts in memory, by each limit whose resource is that of the request. */
export function withLimits(limits: TestLimit[], options?: ClientOptions): TestClient {
  return new TestClient(limits, options);
}

/** Returns a client whose server is away, so that its policy decides. */
export function away(options?: ClientOptions): TestClient {
  const client = new TestClient([], options);
  client.isAway = true;
  return client;
}

/** A client whose server is in its memory. */
export class TestClient extends Client {
  readonly #server: MemoryServer;

  /** @internal */
  constructor(limits: TestLimit[], options: ClientOptions = {}) {
    const server = new MemoryServer(limits);
    // A test that moves its time meets no refusals of before.
    super("test:0", { maxAgeMs: 0, warn: () => {}, ...options }, server);
    this.#server = server;
  }

  /** The calls so far. */
  get calls(): readonly TestCall[] {
    return this.#server.calls;
  }

  /** Whether the server is away: it may go and come back within a test. */
  get isAway(): boolean {
    return this.#server.isAway;
  }

  set isAway(isAway: boolean) {
    this.#server.isAway = isAway;
  }
}

class MemoryServer implements Pick<Channel, "call" | "close"> {
  isAway = false;
  readonly calls: TestCall[] = [];
  readonly #counters = new Map<string, Counter>();
  readonly #reservations: { request: RequestFields; held: number[] }[] = [];

  constructor(private readonly limits: TestLimit[]) {}

  async call<T>(method: string, message: Fields): Promise<T> {
    const requests: RequestFields[] = message["requests"] ?? [message["request"] ?? message];
    this.calls.push(...requests.map((request) => ({ method, request })));
    if (this.isAway) {
      throw new RlaasError("UNAVAILABLE", "the server of the test is away");
    }
    return this.#answer(method, message, requests) as T;
  }

  close(): void {}

  #answer(method: string, message: Fields, requests: RequestFields[]): object {
    const request = requests[0]!;
    switch (method) {
      case "Check":
        return this.#take(request, "used");
      case "CheckBatch":
        return { results: requests.map((each) => ({ response: this.#take(each, "used"), error: null })) };
      case "Report":
        this.#add(request, "used", this.#units(request));
        return { verdict: this.#take({ ...request, dryRun: true }, "used", []) };
      case "Reserve": {
        const held = this.#units(request);
        const verdict = this.#take(request, "held", held);
        const id = this.#reservations.push({ request, held }) - 1;
        return { verdict, reservationId: verdict.allowed ? `${id}` : "", expiresAt: null };
      }
      default:
        return this.#change(method, message, this.#reservations[message["reservationId"]]!);
    }
  }

  /** Extends or settles a reservation. */
  #change(
    method: string,
    { cost = 0, actual, actuals }: Fields,
    reserved: { request: RequestFields; held: number[] },
  ) {
    const { request, held } = reserved;
    const limits = this.#limitsOf(request);
    if (method === "Extend") {
      const more = limits.map((limit) => (limit.cost === undefined ? cost : 0));
      const verdict = this.#take(request, "held", more);
      reserved.held = held.map((units, index) => units + (verdict.allowed ? more[index]! : 0));
      return { verdict };
    }
    const charged = held.map(
      (units, index) => actuals?.[limits[index]!.rule] ?? limits[index]!.cost ?? actual ?? units,
    );
    this.#add(
      request,
      "held",
      held.map((units) => -units),
    );
    this.#add(request, "used", method === "Commit" ? charged : []);
    return {};
  }

  #limitsOf({ resource }: RequestFields): TestLimit[] {
    return this.limits.filter((limit) => (limit.resource ?? resource) === resource);
  }

  #units(request: RequestFields): number[] {
    const cost = this.#cost(request);
    return this.#limitsOf(request).map((limit) => request.costs?.[limit.rule] ?? limit.cost ?? cost);
  }

  /** The cost, or with `atLeast` the units of it that limits without a cost of their own have left. */
  #cost(request: RequestFields): number {
    const { cost = 1, costs = {}, atLeast } = request;
    const shared = this.#countersOf(request).filter(({ limit }) => (costs[limit.rule] ?? limit.cost) === undefined);
    const left = Math.min(cost, ...shared.map(({ limit, used, held }) => limit.limit - used - held));
    return atLeast ? Math.max(atLeast, left) : cost;
  }

  #countersOf(request: RequestFields): Counter[] {
    return this.#limitsOf(request).map((limit) => {
      const key = JSON.stringify([limit.rule, request.userId]);
      const before = this.#counters.get(key);
      if (before && Date.now() < before.endsAt) {
        return before;
      }
      const endsAt = Date.now() + (limit.windowMs ?? MINUTE_MS);
      const counter = { limit, used: limit.used ?? 0, held: before?.held ?? 0, endsAt };
      this.#counters.set(key, counter);
      return counter;
    });
  }

  #add(request: RequestFields, kind: "used" | "held", units: number[]): void {
    this.#countersOf(request).forEach((counter, index) => (counter[kind] += units[index] ?? 0));
  }

  /** Takes units, or none if a limit has fewer left. */
  #take(request: RequestFields, kind: "used" | "held", units = this.#units(request)): VerdictMessage {
    const counters = this.#countersOf(request);
    const cost = this.#cost(request);
    const refused = counters.map(
      ({ limit, used, held }, index) => used + held + (units[index] ?? -Infinity) > limit.limit,
    );
    const isAllowed = !refused.includes(true);
    if (isAllowed && !request.dryRun) {
      this.#add(request, kind, units);
    }
    const isHeld = kind === "held" && isAllowed;
    const decisions = counters.map((counter, index) => ({
      ...decision(counter, refused[index] ? units[index] : undefined),
      held: isHeld ? units[index]! : 0,
    }));
    const [deciding = UNLIMITED] = [...decisions].sort(
      (first, second) => Number(first.allowed) - Number(second.allowed) || first.remaining - second.remaining,
    );
    const taken = request.atLeast ? (isAllowed ? cost : 0) : null;
    return { ...deciding, replayed: false, taken, decisions };
  }
}

const UNLIMITED: VerdictMessage["decisions"][number] = {
  ...{ allowed: true, rule: "", algorithm: "FIXED_WINDOW", reason: "UNLIMITED", nearLimit: false, shadow: false },
  ...{ limit: Infinity, remaining: Infinity, currentCount: 0, held: 0 },
  ...{ retryAfter: null, resetAfter: null, delay: null, window: null },
};

/** Returns the decision of a limit, which has refused these units unless they are undefined. */
function decision(
  { limit, used, held, endsAt }: Counter,
  refused: number | undefined,
): VerdictMessage["decisions"][number] {
  const left = limit.limit - used;
  const resetAfter = duration(endsAt - Date.now())!;
  const state = { ...UNLIMITED, rule: limit.rule, limit: limit.limit, remaining: left - held, currentCount: used };
  const window = duration(limit.windowMs ?? MINUTE_MS)!;
  if (refused === undefined) {
    return { ...state, window, resetAfter, reason: "WITHIN_LIMIT" };
  }
  const reason = refused > limit.limit ? "COST_ABOVE_LIMIT" : refused > left ? "OVER_LIMIT" : "HELD";
  const retryAfter = reason === "COST_ABOVE_LIMIT" ? null : resetAfter;
  return { ...state, window, resetAfter, allowed: false, reason, retryAfter };
}
