/** Plugin of Fastify. */

import type { FastifyInstance, FastifyRequest, RegisterOptions } from "fastify";

import { Admitter, type RateLimitOptions, appended, pathOf } from "./middleware.js";

/**
 * Limits all requests of the application, as the middleware of Express does, in the hook `onRequest`.
 * Closes its own client with the application.
 */
export default async function rateLimit(
  app: FastifyInstance,
  options: RateLimitOptions<FastifyRequest>,
): Promise<void> {
  const warn = (message: string) => app.log.warn(message);
  // Fastify passes on the options of `register` that are its own.
  const { prefix, logLevel, logSerializers, ...settings } = options as RegisterOptions & typeof options;
  const admitter = new Admitter<FastifyRequest>("client" in settings ? settings : { warn, ...settings });
  app.addHook("onRequest", async (request, reply) => {
    const { headers, rejection, held } = await admitter.admit(request, pathOf(request.url));
    if (held) {
      admitter.settle(held, reply.raw);
    }
    for (const [name, value] of headers) {
      reply.header(name, appended(reply.getHeader(name), name, value));
    }
    // A string would get a charset, which problem documents do not have.
    return rejection && reply.code(rejection.status).send(Buffer.from(rejection.body));
  });
  if (admitter.ownsClient) {
    app.addHook("onClose", async () => admitter.client.close());
  }
}

// The hooks are for the application that registers the plugin, as those of fastify-plugin.
Object.assign(rateLimit, {
  [Symbol.for("skip-override")]: true,
  [Symbol.for("fastify.display-name")]: "rlaas",
});
