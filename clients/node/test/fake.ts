/** A server whose calls a test answers as it likes. */

import { after } from "node:test";

import { Metadata, Server, ServerCredentials, type ServerUnaryCall, type sendUnaryData } from "@grpc/grpc-js";
import { type MessageTypeDefinition, type ServiceDefinition, fromJSON } from "@grpc/proto-loader";

export type Fields = Record<string, any>;

/** A call of Check, CheckBatch, Report, Reserve, Extend, Commit or Cancel. */
export interface Call {
  method: string;
  requests: Fields[];
  /** Answers the call with a result for each request, or with one status for all. */
  answer: (results: Fields[] | Status) => void;
}

export interface Status {
  code: number;
  message: string;
  details: { type_url: string; value: Buffer }[];
}

const { default: descriptor } = await import(new URL("../../dist/descriptor.js", import.meta.url).href);
const definitions = fromJSON(descriptor, { longs: Number, enums: String, defaults: true });
const message = (name: string) => definitions[name] as MessageTypeDefinition<object, object>;

/** Returns a status, with the reason in a google.rpc.ErrorInfo of our domain. */
export function status(code: number, reason?: string): Status {
  const value = message("google.rpc.ErrorInfo").serialize({ reason, domain: "rlaas" });
  const details = reason ? [{ type_url: "type.googleapis.com/google.rpc.ErrorInfo", value }] : [];
  return { code, message: "as the test says", details };
}

/** Returns the result of a request that is allowed. */
export const allowed = { response: { allowed: true, reason: "WITHIN_LIMIT" } };

/** Returns the result of a request that is refused for a reason. */
export function refused(reason: string): Fields {
  return { response: { allowed: false, reason } };
}

/** Starts a server that passes its calls to a function, until the end of the tests. Returns its address. */
export async function fake(play: (call: Call) => void): Promise<string> {
  const server = new Server();
  const handler = (method: string) => (call: ServerUnaryCall<Fields, Fields>, done: sendUnaryData<Fields>) => {
    const { request } = call;
    const answer = (results: Fields[] | Status) => {
      const failure = Array.isArray(results) ? method !== "CheckBatch" && results[0]!["error"] : results;
      if (failure) {
        const metadata = new Metadata();
        metadata.set("grpc-status-details-bin", Buffer.from(message("google.rpc.Status").serialize(failure)));
        return done({ code: failure.code, details: failure.message, metadata });
      }
      const [first] = results as Fields[];
      const responses: Fields = {
        Check: first!["response"],
        CheckBatch: { results },
        Report: { verdict: first!["response"] },
        Reserve: { verdict: first!["response"], reservationId: first!["id"] },
        Extend: { verdict: first!["response"] },
        Commit: {},
        Cancel: {},
      };
      done(null, responses[method]);
    };
    play({ method, requests: request["requests"] ?? [request["request"] ?? request], answer });
  };
  for (const service of ["RateLimitService", "ReservationService"]) {
    const definition = definitions[`ratelimit.v1.${service}`] as ServiceDefinition;
    server.addService(
      definition,
      Object.fromEntries(Object.keys(definition).map((method) => [method, handler(method)])),
    );
  }
  after(() => server.forceShutdown());
  return new Promise((resolve, reject) => {
    const credentials = ServerCredentials.createInsecure();
    server.bindAsync("127.0.0.1:0", credentials, (error, port) =>
      error ? reject(error) : resolve(`127.0.0.1:${port}`),
    );
  });
}
