/** The channel to the server: its address, credentials, and calls without retries. */

import { createSecureContext } from "node:tls";

import type { ChannelCredentials, ServiceError } from "@grpc/grpc-js";
import { Client as GrpcClient, Metadata, credentials, status } from "@grpc/grpc-js";
import { type MessageTypeDefinition, type ServiceDefinition, fromJSON } from "@grpc/proto-loader";

import descriptor from "./descriptor.js";
import { RlaasError, overloaded } from "./error.js";
import { explain } from "./explain.js";

/** Certificates and keys, in PEM. */
export interface TlsOptions {
  /** Trusted certificate authorities, in the place of those of Node.js. */
  ca?: Buffer | string;
  /** The certificate of this client. */
  certificate?: Buffer | string;
  privateKey?: Buffer | string;
}

export interface ChannelOptions {
  tls?: TlsOptions;
  /** Bearer token to send with each call. */
  token?: string;
  /** API key to send with each call. It names the project whose rules decide. */
  apiKey?: string;
}

type ErrorInfo = { reason: string; domain: string };
// google.rpc.Status.
export type StatusMessage = { code: number; message: string; details?: { type_url: string; value: Buffer }[] };

const definitions = fromJSON(descriptor as Parameters<typeof fromJSON>[0], {
  longs: Number,
  enums: String,
  defaults: true,
});
const methods = {
  ...(definitions["ratelimit.v1.RateLimitService"] as ServiceDefinition),
  ...(definitions["ratelimit.v1.ReservationService"] as ServiceDefinition),
};
const statusMessage = definitions["google.rpc.Status"] as MessageTypeDefinition<object, StatusMessage>;
const errorInfoMessage = definitions["google.rpc.ErrorInfo"] as MessageTypeDefinition<object, ErrorInfo>;

const GRPC_OPTIONS = {
  // Balances calls over all addresses of a name.
  "grpc.service_config": JSON.stringify({ loadBalancingConfig: [{ round_robin: {} }] }),
  "grpc.service_config_disable_resolution": 1,
  // A client that shares the connections of another is not told why they fail.
  "grpc.use_local_subchannel_pool": 1,
  // Detects a server that disappeared without closing the connection.
  "grpc.keepalive_time_ms": 10_000,
  "grpc.keepalive_timeout_ms": 5_000,
  // The connection stays without calls: the next one has no time to connect.
  "grpc.client_idle_timeout_ms": 2 ** 31 - 1,
  // By default a server that was away for long is tried again after two minutes only.
  "grpc.initial_reconnect_backoff_ms": 100,
  "grpc.max_reconnect_backoff_ms": 2_000,
  // By default the name of a server that moved is resolved again after 30 seconds only.
  "grpc.dns_min_time_between_resolutions_ms": 2_000,
};

/** A channel, which connects at once and reconnects by itself. */
export class Channel {
  readonly #client: GrpcClient;
  readonly #metadata = new Metadata();
  readonly #address: string;
  readonly #hasTls: boolean;
  #explanation = "";

  constructor(address: string, { tls, token, apiKey }: ChannelOptions) {
    checkNames(tls ?? {}, ["ca", "certificate", "privateKey"]);
    this.#address = address;
    this.#hasTls = tls !== undefined || address.startsWith("https://");
    const headers = { authorization: token && `Bearer ${token}`, "x-api-key": apiKey };
    for (const [name, value] of Object.entries(headers)) {
      if (value && !isVisibleAscii(value)) {
        throw new TypeError(`the value of ${name} must be one line of visible ASCII characters`);
      }
      if (value) {
        this.#metadata.set(name, value);
      }
    }
    this.#client = new GrpcClient(...endpoint(address, tls), GRPC_OPTIONS);
    this.#client.getChannel().getConnectivityState(true);
  }

  // Rejects with a `RlaasError`, and with another error if the channel is closed.
  call<T>(method: string, message: object, timeoutMs: number): Promise<T> {
    const { path, requestSerialize: encode } = methods[method]!;
    const decode = (bytes: Buffer) => decodeResponse<T>(method, bytes);
    // The timer ends the call. The deadline is for the server.
    const options = { deadline: Date.now() + 4 * timeoutMs };
    return new Promise((resolve, reject) => {
      let [until, timer] = [Infinity, undefined as NodeJS.Timeout | undefined];
      const done = (error: Partial<ServiceError> | null, response?: T) => {
        clearImmediate(sent);
        clearTimeout(timer);
        error ? reject(this.#failure(method, error, timeoutMs, until)) : resolve(response!);
      };
      const call = this.#client.makeUnaryRequest(path, encode, decode, message, this.#metadata, options, done);
      // An answer that arrived while the program was busy is read first.
      const expire = () => (done({ code: status.DEADLINE_EXCEEDED }), call.cancel());
      // The program may be busy for long before Node.js sends what it has.
      const sent = setImmediate(() => {
        until = performance.now() + timeoutMs;
        timer = setTimeout(() => setImmediate(expire), timeoutMs);
      });
    });
  }

  #failure(method: string, cause: Partial<ServiceError>, timeoutMs: number, until: number): RlaasError {
    const silence = `no response from ${this.#address} within ${Math.round(timeoutMs)} ms`;
    const { code = status.UNKNOWN, details = silence, metadata } = cause;
    const isLate = code === status.DEADLINE_EXCEEDED && performance.now() > until + timeoutMs / 2;
    if (isLate && /^(Check|Reserve)/.test(method)) {
      return overloaded("the program was too busy to read the answer");
    }
    // Of a second failure to connect gRPC has no cause.
    if (!this.#explanation || !details.includes("Last error: null")) {
      this.#explanation = explain(details, this.#address, this.#hasTls);
    }
    const [bytes] = metadata?.get("grpc-status-details-bin") ?? [];
    const sent = Buffer.isBuffer(bytes) ? statusMessage.deserialize(bytes) : {};
    return fromStatus({ ...sent, code, message: this.#explanation }, cause);
  }

  close(): void {
    this.#client.close();
  }
}

/** Returns the response of a method that has these bytes. */
export function decodeResponse<T>(method: string, bytes: Buffer): T {
  return methods[method]!.responseDeserialize(bytes) as T;
}

// Returns the error of a call, or of an item of a batch, that has this status.
export function fromStatus({ code, message, details = [] }: StatusMessage, cause?: unknown): RlaasError {
  const error = new RlaasError(status[code] ?? "UNKNOWN", message, { cause });
  const infos = details.filter((detail) => detail.type_url.endsWith("/google.rpc.ErrorInfo"));
  const ours = infos.map(({ value }) => errorInfoMessage.deserialize(value)).find(({ domain }) => domain === "rlaas");
  error.info = ours?.reason ?? "";
  return error;
}

// Throws if an option has another name than these.
export function checkNames(options: object, names: string[]): void {
  const unknown = Object.keys(options).find((name) => !names.includes(name));
  if (unknown !== undefined) {
    throw new TypeError(`unknown option ${unknown}: the options are ${names.join(", ")}`);
  }
}

export function isVisibleAscii(text: string): boolean {
  return /^[ -~]+$/.test(text);
}

/** Returns the target of gRPC and its credentials. */
function endpoint(address: string, tls?: TlsOptions): [string, ChannelCredentials] {
  if (/^unix:./.test(address)) {
    if (tls) {
      throw new TypeError("a Unix socket has no TLS");
    }
    return [address, credentials.createInsecure()];
  }
  const [, scheme, host] = /^(https?:\/\/|dns:\/\/\/)?((?:[^/:[\]]+|\[[^/[\]]+\]):\d+)\/?$/.exec(address) ?? [];
  if (!host) {
    const forms = "host:port, http(s)://host:port, dns:///name:port or unix:/path";
    throw new TypeError(`address ${JSON.stringify(address)} must be ${forms}`);
  }
  if (tls && scheme === "http://") {
    throw new TypeError("address must begin with https:// if TLS is set");
  }
  if (!tls && scheme !== "https://") {
    return [`dns:///${host}`, credentials.createInsecure()];
  }
  const pems = [tls?.ca, tls?.privateKey, tls?.certificate];
  const [ca = null, key = null, certificate = null] = pems.map((pem) => (pem === undefined ? pem : Buffer.from(pem)));
  try {
    // As `ca`, Node.js ignores what is no certificate.
    createSecureContext({ cert: ca ?? undefined });
    return [`dns:///${host}`, credentials.createSsl(ca, key, certificate)];
  } catch (cause) {
    throw new TypeError(`tls must have certificates and keys in PEM: ${cause}`, { cause });
  }
}
