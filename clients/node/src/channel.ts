/** The channel to the server: its address, credentials, and calls without retries. */

import { createSecureContext } from "node:tls";

import {
  Client as GrpcClient,
  type ChannelCredentials,
  type ServiceError,
  credentials,
  Metadata,
} from "@grpc/grpc-js";
import { type MessageTypeDefinition, type ServiceDefinition, fromJSON } from "@grpc/proto-loader";

import descriptor from "./descriptor.js";

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

const definitions = fromJSON(descriptor as Parameters<typeof fromJSON>[0], {
  longs: Number,
  enums: String,
  defaults: true,
});
const methods = {
  ...(definitions["ratelimit.v1.RateLimitService"] as ServiceDefinition),
  ...(definitions["ratelimit.v1.ReservationService"] as ServiceDefinition),
};
const statusMessage = definitions["google.rpc.Status"] as MessageTypeDefinition<
  object,
  { details: { type_url: string; value: Buffer }[] }
>;
const errorInfoMessage = definitions["google.rpc.ErrorInfo"] as MessageTypeDefinition<
  object,
  { reason: string; domain: string }
>;

const GRPC_OPTIONS = {
  // Balances calls over all addresses of a name.
  "grpc.service_config": JSON.stringify({ loadBalancingConfig: [{ round_robin: {} }] }),
  "grpc.service_config_disable_resolution": 1,
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

  constructor(address: string, { tls, token, apiKey }: ChannelOptions) {
    checkNames(tls ?? {}, ["ca", "certificate", "privateKey"]);
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

  call<T>(method: string, message: object, timeoutMs: number): Promise<T> {
    const { path, requestSerialize } = methods[method]!;
    const decode = (bytes: Buffer) => decodeResponse<T>(method, bytes);
    const options = { deadline: Date.now() + timeoutMs };
    return new Promise((resolve, reject) => {
      const done = (error: ServiceError | null, response?: T) => (error ? reject(error) : resolve(response!));
      this.#client.makeUnaryRequest(path, requestSerialize, decode, message, this.#metadata, options, done);
    });
  }

  close(): void {
    this.#client.close();
  }
}

/** Returns the response of a method that has these bytes. */
export function decodeResponse<T>(method: string, bytes: Buffer): T {
  return methods[method]!.responseDeserialize(bytes) as T;
}

/** Returns the details of a status that are a google.rpc.ErrorInfo. */
export function decodeErrorDetails(status: Buffer): { reason: string; domain: string }[] {
  const { details } = statusMessage.deserialize(status);
  const infos = details.filter((detail) => detail.type_url.endsWith("/google.rpc.ErrorInfo"));
  return infos.map((info) => errorInfoMessage.deserialize(info.value));
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
