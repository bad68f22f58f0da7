/** A `fetch` whose calls of language models a budget limits, for the SDKs of providers and for programs without one. */

import { type Budget, BudgetError, type BudgetCall } from "./budget.js";
import type { CheckRequest } from "./request.js";
import type { Json, Provider } from "./usage.js";

/** Returns the request to decide for the body of a call. */
export type CallKey = CheckRequest | ((body: Json, url: string) => CheckRequest | Promise<CheckRequest>);

type Fetch = typeof globalThis.fetch;

/** The calls that are limited, by the ends of their paths. */
const PROVIDERS: [RegExp, Provider][] = [
  [/\/(chat\/completions|completions|embeddings)$/, "openai-chat"],
  [/\/responses$/, "openai-responses"],
  [/\/messages$/, "anthropic"],
  [/:(generateContent|streamGenerateContent)$/, "gemini"],
];

/**
 * Returns a `fetch` that limits completions, embeddings, responses, messages and contents of the protocols of OpenAI,
 * Anthropic and Gemini, whole or streamed. Other calls pass, and are not limited. A refusal is a response with the
 * headers that SDKs read.
 */
export function budgetFetch(budget: Budget, key: CallKey, fetch: Fetch = globalThis.fetch): Fetch {
  return async (input, init) => {
    const url = input instanceof Request ? input.url : `${input}`;
    const provider = PROVIDERS.find(([path]) => path.test(url.replace(/[?#].*$/s, "")))?.[1];
    const method = init?.method ?? (input instanceof Request ? input.method : "GET");
    if (!provider || method.toUpperCase() !== "POST") {
      return fetch(input, init);
    }
    // A body may be read once, so that it is sent as text.
    const source = init?.body ?? (input instanceof Request ? input.clone().body : null);
    const text = typeof source === "string" ? source : await new Response(source).text();
    const body = parse(text);
    if (!body) {
      return fetch(input, { ...init, body: text });
    }
    const isStreamed = body["stream"] === true || url.includes(":streamGenerateContent");
    // Else such a stream has no usage.
    const addsUsage = isStreamed && provider === "openai-chat" && !body["stream_options"]?.include_usage;
    const options = { ...body["stream_options"], include_usage: true };
    const sent = addsUsage ? JSON.stringify({ ...body, stream_options: options }) : text;
    const call = await hold(budget, typeof key === "function" ? await key(body, url) : key, body, url);
    if (call instanceof Response) {
      return call;
    }
    try {
      const response = await fetch(input, { ...init, body: sent });
      if (response.status >= 400 || !response.body) {
        await call.fail(response.status);
        return response;
      }
      const isEvents = response.headers.get("content-type")?.startsWith("text/event-stream");
      const events = new Events(call, provider, addsUsage);
      const answer = isEvents ? call.stream(response.body, events.pass) : await whole(call, provider, response);
      return copy(response, answer);
    } catch (error) {
      await call.end();
      throw error;
    }
  };
}

/** Holds what a call can cost, or returns the response to a refused one. */
async function hold(budget: Budget, request: CheckRequest, body: Json, url: string): Promise<BudgetCall | Response> {
  const { n, generationConfig: config } = body;
  const most =
    body["max_completion_tokens"] ?? body["max_tokens"] ?? body["max_output_tokens"] ?? config?.maxOutputTokens;
  const answers = n ?? config?.candidateCount ?? 1;
  const maxTokens = most === undefined || most === null ? budget.defaultOutput : most;
  try {
    return await budget.call(request, {
      estimate: budget.estimate(body),
      maxTokens: url.includes("/embeddings") ? 0 : maxTokens * answers,
      model: body["model"] ?? /([^/]+):\w+/.exec(url)?.[1] ?? "",
    });
  } catch (error) {
    if (!(error instanceof BudgetError)) {
      throw error;
    }
    const { message, status, headers } = error;
    // The fields of all three providers.
    const [type, code] =
      status === 429 ? ["rate_limit_error", "rate_limit_exceeded"] : ["overloaded_error", "no_decision"];
    return Response.json({ type: "error", error: { type, code, message } }, { status, headers });
  }
}

/** Reads a whole answer, and settles the call before it is passed on. */
async function whole(call: BudgetCall, provider: Provider, response: Response): Promise<string> {
  const text = await response.text();
  // A stream of Gemini without `alt=sse` is an array.
  for (const body of [parse(text)].flat()) {
    call.reader.read(provider, body ?? {});
  }
  await call.end();
  return text;
}

/** Reads the events of a stream, and passes them on as they came. */
class Events {
  readonly #decoder = new TextDecoder();
  readonly #encoder = new TextEncoder();
  #text = "";

  constructor(
    private readonly call: BudgetCall,
    private readonly provider: Provider,
    // True if the caller has not asked for the chunk with the usage.
    private readonly dropsUsage: boolean,
  ) {}

  readonly pass = (bytes: Uint8Array | undefined): Uint8Array[] => {
    this.#text += this.#decoder.decode(bytes, { stream: bytes !== undefined });
    const events = this.#text.split(/(?<=\n\r?\n)/);
    // The last may not be whole yet.
    this.#text = bytes && !/\n\r?\n$/.test(this.#text) ? events.pop()! : "";
    const passed = events.filter((event) => this.#isPassed(event)).join("");
    return passed ? [this.#encoder.encode(passed)] : [];
  };

  #isPassed(event: string): boolean {
    const data = event.match(/(?<=^data:).*$/gm)?.join("\n");
    const body = data && parse(data);
    if (body) {
      this.call.reader.read(this.provider, body);
    }
    return !(this.dropsUsage && body && body["usage"] && body["choices"]?.length === 0);
  }
}

function parse(text: string): Json | undefined {
  try {
    const body = JSON.parse(text);
    return typeof body === "object" && body !== null ? body : undefined;
  } catch {
    return undefined;
  }
}

/** Returns a response with another body. */
function copy(response: Response, body: string | ReadableStream<Uint8Array>): Response {
  const { status, statusText, headers, url } = response;
  return Object.defineProperty(new Response(body, { status, statusText, headers }), "url", { value: url });
}
