/** Usage of language models, read from the answers and streams of their providers. */

/** Tokens of a call. */
export interface Usage {
  /** Tokens of the prompt, with those of caches. */
  readonly input: number;
  readonly cachedRead: number;
  readonly cachedWrite: number;
  /** Tokens of the answer, with those of its reasoning. */
  readonly output: number;
  readonly reasoning: number;
  /** Input and output. */
  readonly total: number;
}

/** The usage that is charged. */
export interface ChargedUsage extends Usage {
  /** True if the provider has not said it: the estimate of the prompt, and of what was streamed. */
  readonly estimated: boolean;
}

export type Provider = "openai-chat" | "openai-responses" | "anthropic" | "gemini";

// The bodies of providers, none of whose fields are certain.
export type Json = Record<string, any>;

const BYTES_PER_TOKEN = 4;

/** Names under which answers have generated text. */
const TEXTS = "content text reasoning_content reasoning refusal arguments thinking partial_json input delta".split(
  " ",
);
/** Names under which answers have arguments of tools as values. */
const ARGUMENTS = ["args", "input"];

/** Returns the usage with these counts; those that are not numbers count as 0. */
export function toUsage(counts: Partial<Record<keyof Usage, unknown>>): Usage {
  const count = (value: unknown) => (typeof value === "number" && value > 0 ? Math.ceil(value) : 0);
  const [input, output] = [count(counts.input), count(counts.output)];
  return {
    input,
    cachedRead: count(counts.cachedRead),
    cachedWrite: count(counts.cachedWrite),
    output,
    reasoning: count(counts.reasoning),
    total: input + output,
  };
}

/** Estimates the tokens of so many bytes of text. */
export function tokensOf(bytes: number): number {
  return Math.ceil(bytes / BYTES_PER_TOKEN);
}

/** What is known of the usage of one call. */
export class UsageReader {
  /** What the provider has said of the whole answer, or of all of it so far. */
  usage: Usage | undefined;
  // What Anthropic says before the answer.
  #begun: Usage | undefined;
  // Its numbers, of which later events repeat some.
  readonly #numbers: Json = {};
  #bytes = 0;

  /** Reads an answer, or an event of its stream. */
  read(provider: Provider, body: Json): void {
    switch (provider) {
      case "openai-chat":
        this.addText(body["choices"]);
        this.#readOpenAi(body["usage"], "prompt", "completion");
        break;
      case "openai-responses":
        // Other events repeat the text.
        this.addText(typeof body["delta"] === "string" ? { delta: body["delta"] } : body["output"]);
        this.#readOpenAi((body["response"] ?? body)["usage"], "input", "output");
        break;
      case "anthropic":
        this.addText(body["delta"] ?? body["content"]);
        this.#readAnthropic(body);
        break;
      case "gemini":
        this.addText(body["candidates"]);
        this.#readGemini(body["usageMetadata"]);
    }
  }

  /** Adds the text in a part of an answer, on which the estimate is based. */
  addText(part: unknown): void {
    this.#bytes += textBytes(part, "");
  }

  /** Returns the usage to charge, with the estimate of the prompt if no usage has come. */
  charged(estimate: number): ChargedUsage {
    if (this.usage) {
      return { ...this.usage, estimated: false };
    }
    const begun = this.#begun ?? toUsage({ input: estimate });
    const output = Math.max(begun.output, tokensOf(this.#bytes));
    return { ...toUsage({ ...begun, output }), estimated: true };
  }

  #readOpenAi(usage: Json | null | undefined, input: string, output: string): void {
    if (usage) {
      this.usage = toUsage({
        input: usage[`${input}_tokens`],
        cachedRead: usage[`${input}_tokens_details`]?.cached_tokens,
        cachedWrite: usage[`${input}_tokens_details`]?.cache_write_tokens,
        output: usage[`${output}_tokens`],
        reasoning: usage[`${output}_tokens_details`]?.reasoning_tokens,
      });
    }
  }

  #readAnthropic({ type, message, usage = message?.usage }: Json): void {
    if (!usage) {
      return;
    }
    const given = Object.entries(usage).filter(([, value]) => value !== null);
    const numbers = Object.assign(this.#numbers, Object.fromEntries(given));
    const { cache_read_input_tokens: cachedRead = 0, cache_creation_input_tokens: cachedWrite = 0 } = numbers;
    const known = toUsage({
      input: (numbers["input_tokens"] ?? 0) + cachedRead + cachedWrite,
      cachedRead,
      cachedWrite,
      output: numbers["output_tokens"],
      reasoning: numbers["output_tokens_details"]?.thinking_tokens,
    });
    if (type === "message_start") {
      this.#begun = known;
    } else {
      this.usage = known;
    }
  }

  #readGemini(usage: Json | undefined): void {
    if (usage) {
      const { promptTokenCount = 0, toolUsePromptTokenCount = 0, cachedContentTokenCount } = usage;
      const { candidatesTokenCount = 0, thoughtsTokenCount = 0 } = usage;
      this.usage = toUsage({
        input: promptTokenCount + toolUsePromptTokenCount,
        cachedRead: cachedContentTokenCount,
        output: candidatesTokenCount + thoughtsTokenCount,
        reasoning: thoughtsTokenCount,
      });
    }
  }
}

function textBytes(value: unknown, name: string): number {
  if (typeof value === "string") {
    return TEXTS.includes(name) ? Buffer.byteLength(value) : 0;
  }
  if (typeof value !== "object" || value === null) {
    return 0;
  }
  if (ARGUMENTS.includes(name)) {
    return Buffer.byteLength(JSON.stringify(value));
  }
  const parts = Object.entries(value).map(([key, part]) => textBytes(part, Array.isArray(value) ? name : key));
  return parts.reduce((sum, bytes) => sum + bytes, 0);
}
