// Limits all routes by an API key and the path. Environment: RLAAS_ADDRESS, PORT.
import { fastify } from "fastify";
import { byHeader } from "rlaas-client";
import rateLimit from "rlaas-client/fastify";

const app = fastify({ logger: true });
await app.register(rateLimit, {
  address: process.env.RLAAS_ADDRESS ?? "127.0.0.1:50051",
  key: byHeader("x-api-key"),
});
app.get("/", async () => "hello\n");
await app.listen({ port: Number(process.env.PORT ?? 8000) });
console.log("listening");
