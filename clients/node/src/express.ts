/** Middleware of Express, connect and node:http. */

import type { IncomingMessage, ServerResponse } from "node:http";

import { Admitter, type RateLimitOptions, appended, pathOf } from "./middleware.js";

/** Middleware with the types of node:http, which those of Express extend. */
export type Middleware<R> = (request: R, response: ServerResponse, next: (error?: unknown) => void) => void;

/**
 * Limits requests. One above a limit gets status 429, one that the policy refuses 503, both with a problem document.
 * Other responses have the headers RateLimit-Policy and RateLimit.
 */
export function rateLimit<R extends IncomingMessage = IncomingMessage>(options: RateLimitOptions<R>): Middleware<R> {
  const admitter = new Admitter(options);
  return (request, response, next) => {
    admitter.admit(request, routedPath(request)).then(({ headers, rejection }) => {
      // Another middleware may have answered, such as one for timeouts.
      if (response.headersSent) {
        return;
      }
      for (const [name, value] of headers) {
        response.setHeader(name, appended(response.getHeader(name), name, value));
      }
      if (rejection) {
        response.statusCode = rejection.status;
        response.end(rejection.body);
      } else {
        next();
      }
    }, next);
  };
}

type Routed = IncomingMessage & { originalUrl?: string; app?: { enabled?(setting: string): boolean } };

/** Returns the path of a request, in one spelling if Express finds the same route for several. */
function routedPath({ originalUrl, url = "", app }: Routed): string {
  // Express cuts the path at which a router is mounted off `url`.
  const path = pathOf(originalUrl ?? url);
  const cased = app?.enabled?.("case sensitive routing") === false ? path.toLowerCase() : path;
  return app?.enabled?.("strict routing") === false ? cased.replace(/(?<!^)\/$/, "") : cased;
}
