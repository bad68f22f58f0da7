// Limits all routes by the address of the client and the path. Environment: RLAAS_ADDRESS, PORT.
import express from "express";
import { rateLimit } from "rlaas-client/express";

const app = express();
app.use(rateLimit({ address: process.env.RLAAS_ADDRESS ?? "127.0.0.1:50051" }));
app.get("/", (request, response) => {
  response.send("hello\n");
});
app.listen(Number(process.env.PORT ?? 8000), () => console.log("listening"));
