/** Keys by which the middleware limits requests: the client, and what else rules match. */

import type { IncomingHttpHeaders } from "node:http";
import { isIPv4, isIPv6 } from "node:net";

import { isVisibleAscii } from "./channel.js";
import { RlaasError } from "./error.js";
import type { CheckRequest } from "./request.js";

/** Returns the request to decide, by default with the path as its resource; null or undefined exempts. */
export type KeyFunction<R> = (request: R) => Key | Promise<Key>;
export type Key = CheckRequest | null | undefined;

/** What the keys of this package read of a request, which those of Express, Fastify and node:http have. */
export interface HttpRequest {
  headers: IncomingHttpHeaders;
  socket: { remoteAddress?: string | undefined };
}

/**
 * Limits by the address of the client; an IPv6 address by its /64, which is one site.
 *
 * Each of `proxies` trusted proxies appends the address of its own peer to X-Forwarded-For. What clients wrote into
 * it themselves is ignored. Without any the header is not read.
 */
export function byAddress(proxies = 0): (request: HttpRequest) => string {
  if (!(Number.isInteger(proxies) && proxies >= 0)) {
    throw new TypeError("proxies must be a whole number that is not below 0");
  }
  return ({ headers, socket }) => {
    const entries = proxies > 0 ? [headers["x-forwarded-for"]].join().split(",") : [];
    const client = network(entries.at(-proxies)) ?? network(socket.remoteAddress);
    if (client === undefined) {
      // It was reset, or is at a Unix socket: count the proxies, or limit by another key.
      throw new RlaasError("INTERNAL", "the peer has no address");
    }
    return client;
  };
}

/** Limits by the value of a header. A request without it is rejected with status 400. */
export function byHeader(name: string): (request: HttpRequest) => string {
  const header = name.toLowerCase();
  return ({ headers }) => {
    const value = headers[header];
    if (typeof value !== "string" || !isVisibleAscii(value)) {
      throw new RlaasError("INVALID_ARGUMENT", `header ${header} must be present, in visible ASCII`);
    }
    return value;
  };
}

/** Returns an address, with or without a port, as a key; undefined if it is none. */
function network(text = ""): string | undefined {
  const [, bracketed, plain] = /^(?:\[(.+)\]|([^:]+)):\d{1,5}$/.exec(text.trim()) ?? [];
  const address = (bracketed ?? plain ?? text.trim()).replace(/%.*$/, "");
  if (isIPv4(address)) {
    return address;
  }
  return isIPv6(address) ? site(address) : undefined;
}

/** Returns the /64 of an IPv6 address, or the IPv4 address that is mapped into it. */
function site(address: string): string {
  const [head, tail] = canonical(address).split("::");
  const groups = (part = "") => (part ? part.split(":") : []);
  const zeros = 8 - groups(head).length - groups(tail).length;
  const all = [...groups(head), ...Array<string>(zeros).fill("0"), ...groups(tail)];
  if (all.slice(0, 6).join() === "0,0,0,0,0,ffff") {
    return all
      .slice(6)
      .flatMap((group) => [parseInt(group, 16) >> 8, parseInt(group, 16) & 255])
      .join(".");
  }
  return `${canonical(`${all.slice(0, 4).join(":")}::`)}/64`;
}

/** Returns the text of RFC 5952, without embedded IPv4 notation. */
function canonical(address: string): string {
  return new URL(`http://[${address}]`).hostname.slice(1, -1);
}
