/** A `fetch` whose calls of language models a budget limits, for the SDKs of providers and for programs without one. */

import { type Budget, type BudgetCall, BudgetError } from "./budget.js";
import type { CheckRequest } from "./request.js";
import type { Json } from "./usage.js";

/** Returns the request to decide for the body of a call. */
export type CallKey = CheckRequest | ((body: Json, url: string) => CheckRequest | Promise<CheckRequest>);

type Fetch = typeof globalThis.fetch;

/** The paths of the calls that are limited: of OpenAI, Anthropic and Gemini. */
const LIMITED = /(\/(completions|embeddings|responses|messages)|:(generateContent|streamGenerateContent))$/;

/**
 * Returns a `fetch` that limits completions, embeddings, responses, messages and contents, whole or streamed. Other
 * calls pass, and are not limited. A refusal is a response with the headers that SDKs read.
 */
export function budgetFetch(budget: Budget, key: CallKey, fetch: Fetch = globalThis.fetch): Fetch {
  return async (input, init) => {
    const request = input instanceof Request ? input : undefined;
    const url = request?.url ?? `${input}`;
    const path = url.replace(/[?#].*$/s, "");
    if (!LIMITED.test(path) || (init?.method ?? request?.method)?.toUpperCase() !== "POST") {
      return fetch(input, init);
    }
    const source = init?.body ?? request?.clone().body ?? null;
    const text = typeof source === "string" ? source : await new Response(source).text();
    const body = parse(text);
    if (!body) {
      return fetch(input, { ...init, body: text });
    }
    // Else such a stream has no usage.
    const addsUsage =
      body["stream"] === true && path.endsWith("/completions") && !body["stream_options"]?.include_usage;
    const options = { ...body["stream_options"], include_usage: true };
    const sent = addsUsage ? JSON.stringify({ ...body, stream_options: options }) : text;
    const call = await hold(budget, typeof key === "function" ? await key(body, url) : key, body, path);
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
      const answer = isEvents ? call.stream(response.body, events(call, addsUsage)) : await whole(call, response);
      return Object.defineProperty(new Response(answer, response), "url", { value: response.url });
    } catch (error) {
      await call.end();
      throw error;
    }
  };
}

/** Holds what a call can cost, or returns the response to a refused one. */
async function hold(budget: Budget, request: CheckRequest, body: Json, path: string): Promise<BudgetCall | Response> {
  const {
    max_completion_tokens: newest,
    max_tokens: older,
    max_output_tokens: responses,
    generationConfig: config,
  } = body;
  const most = newest ?? older ?? responses ?? config?.maxOutputTokens;
  const answers = body["n"] ?? config?.candidateCount ?? 1;
  const maxTokens = path.endsWith("/embeddings") ? 0 : most && most * answers;
  const model = body["model"] ?? /([^/]+):\w+$/.exec(path)?.[1];
  try {
    return await budget.call(request, { estimate: budget.estimate(body), maxTokens, model });
  } catch (error) {
    if (!(error instanceof BudgetError)) {
      throw error;
    }
    const { message, status, headers } = error;
    const [type, code] =
      status === 429 ? ["rate_limit_error", "rate_limit_exceeded"] : ["overloaded_error", "no_decision"];
    return Response.json({ type: "error", error: { type, code, message } }, { status, headers });
  }
}

/** Reads a whole answer, and settles the call before it is passed on. */
async function whole(call: BudgetCall, response: Response): Promise<string> {
  const text = await response.text();
  // A stream of Gemini without `alt=sse` is an array.
  [parse(text) ?? {}].flat().forEach((body) => call.reader.read(body));
  await call.end();
  return text;
}

/** Returns a function that reads the events in the chunks of a stream, and passes them on as they came. */
function events(call: BudgetCall, dropsUsage: boolean): (chunk: Uint8Array | undefined) => Uint8Array[] {
  const [decoder, encoder] = [new TextDecoder(), new TextEncoder()];
  let text = "";
  const isPassed = (event: string) => {
    const body = parse(event.match(/(?<=^data:).*$/gm)?.join("\n") ?? "");
    call.reader.read(body ?? {});
    return !(dropsUsage && body?.["usage"] && body["choices"]?.length === 0);
  };
  return (chunk) => {
    text += decoder.decode(chunk, { stream: chunk !== undefined });
    const whole = text.split(/(?<=\n\r?\n)/);
    // The last may not be whole yet.
    text = chunk && !/\n\r?\n$/.test(text) ? whole.pop()! : "";
    const passed = whole.filter(isPassed).join("");
    return passed ? [encoder.encode(passed)] : [];
  };
}

function parse(text: string): Json | undefined {
  try {
    const body = JSON.parse(text);
    return typeof body === "object" && body !== null ? body : undefined;
  } catch {
    return undefined;
  }
}
