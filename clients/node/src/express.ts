/** Middleware of Express, connect and node:http. */

import type { IncomingMessage, ServerResponse } from "node:http";

import { Admitter, type RateLimitOptions, appended, pathOf } from "./middleware.js";
import type { Verdict } from "./verdict.js";

/** Middleware with the types of node:http, which those of Express extend. */
export type Middleware<R> = (request: R, response: ServerResponse, next: (error?: unknown) => void) => void;

/** Settings of the middleware. */
export type ExpressOptions<R, S = ServerResponse> = RateLimitOptions<R> & {
  /** Answers refused requests. The response has the status and the headers already. */
  handler?: (request: R, response: S, next: (error?: unknown) => void, verdict: Verdict) => void;
};

/**
 * Limits requests, of all routes or of one. One above a limit gets status 429, one that the policy refuses 503, both
 * with a problem document. Other responses have the headers RateLimit-Policy and RateLimit.
 */
export function rateLimit<R extends IncomingMessage = IncomingMessage, S extends ServerResponse = ServerResponse>(
  options: ExpressOptions<R, S>,
): Middleware<R> {
  const { handler, ...settings } = options;
  const admitter = new Admitter<R>(settings as RateLimitOptions<R>);
  return (request, response, next) => {
    admitter.admit(request, resourceOf(request)).then(({ headers, rejection, verdict, held }) => {
      if (held) {
        admitter.settle(held, response);
      }
      // Another middleware may have answered, such as one for timeouts.
      if (response.headersSent) {
        return;
      }
      const answers = rejection && handler && verdict;
      for (const [name, value] of headers.filter(([name]) => !answers || name !== "Content-Type")) {
        response.setHeader(name, appended(response.getHeader(name), name, value));
      }
      response.statusCode = rejection?.status ?? response.statusCode;
      if (answers) {
        (async () => handler(request, response as S, next, verdict))().catch(next);
      } else if (rejection) {
        response.end(rejection.body);
      } else {
        next();
      }
    }, next);
  };
}

type Routed = IncomingMessage & {
  baseUrl?: string;
  route?: { path?: unknown };
  originalUrl?: string;
  app?: { enabled?(setting: string): boolean };
};

/** Returns the route, or without one the path, in one spelling if Express finds the same route for several. */
function resourceOf({ baseUrl = "", route, originalUrl, url = "", app }: Routed): string {
  if (typeof route?.path === "string") {
    return baseUrl + route.path;
  }
  // Express cuts the path at which a router is mounted off `url`.
  const path = pathOf(originalUrl ?? url);
  const cased = app?.enabled?.("case sensitive routing") === false ? path.toLowerCase() : path;
  return app?.enabled?.("strict routing") === false ? cased.replace(/(?<!^)\/$/, "") : cased;
}
