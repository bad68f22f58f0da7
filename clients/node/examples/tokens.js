// Holds the most tokens that an answer can have, and pays for those that it had. Environment: RLAAS_ADDRESS.
import { Client } from "rlaas-client";

const client = new Client(process.env.RLAAS_ADDRESS ?? "127.0.0.1:50051");
const { allowed, verdict, value } = await client.reserve(
  { userId: "alice", resource: "/tokens", cost: 100 },
  async (held) => {
    const answer = { text: "hello", tokens: 42 }; // Of a language model.
    await held.commit(answer.tokens);
    return answer.text;
  },
);
console.log(allowed ? value : `try again in ${verdict.retryAfterMs} ms`, "by", verdict.answeredBy);
