/** Usage of language models, read from the answers and streams of OpenAI, Anthropic, Gemini and those like them. */

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

// The bodies of providers, none of whose fields are certain.
export type Json = Record<string, any>;

/** Names under which answers have generated text, and arguments of tools as values. */
const TEXTS = "content text reasoning_content reasoning refusal arguments thinking partial_json input delta".split(
  " ",
);
const VALUES = ["args", "input"];

/** Returns the usage with these counts; those that are not numbers count as 0. */
export function toUsage(counts: Partial<Record<keyof Usage, unknown>>): Usage {
  const count = (value: unknown) => (typeof value === "number" && value > 0 ? Math.ceil(value) : 0);
  const [input, output] = [count(counts.input), count(counts.output)];
  const [cachedRead, cachedWrite] = [count(counts.cachedRead), count(counts.cachedWrite)];
  return { input, cachedRead, cachedWrite, output, reasoning: count(counts.reasoning), total: input + output };
}

/** Estimates the tokens of so many bytes of text, of which about four are one. */
export function tokensOf(bytes: number): number {
  return Math.ceil(bytes / 4);
}

/** What is known of the usage of one call. */
export class UsageReader {
  /** What the provider has said of the whole answer, or of all of it so far. */
  usage: Usage | undefined;
  // What Anthropic says before the answer.
  #begun: Usage | undefined;
  // What was said so far, of which later events repeat a part.
  readonly #said: Json = {};
  #bytes = 0;

  /** Reads an answer, or an event of its stream. */
  read({ type, choices, candidates, content, output, delta, message, response, ...body }: Json): void {
    this.addText(choices ?? candidates ?? content ?? output ?? (typeof delta === "string" ? { delta } : delta));
    const usage = body["usage"] ?? body["usageMetadata"] ?? message?.usage ?? response?.usage;
    if (usage) {
      Object.assign(this.#said, Object.fromEntries(Object.entries(usage).filter(([, value]) => value !== null)));
      const known = fromProvider(this.#said);
      [this.#begun, this.usage] = type === "message_start" ? [known, undefined] : [this.#begun, known];
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
}

/** Returns a usage from the names of all providers. Beside the input Anthropic counts caches, and Gemini tools. */
function fromProvider(usage: Json): Usage {
  const { promptTokenCount, toolUsePromptTokenCount = 0, candidatesTokenCount, thoughtsTokenCount = 0 } = usage;
  const { cache_read_input_tokens: read = 0, cache_creation_input_tokens: written = 0 } = usage;
  const input = usage["prompt_tokens"] ?? usage["input_tokens"] ?? promptTokenCount ?? 0;
  const output = usage["completion_tokens"] ?? usage["output_tokens"] ?? candidatesTokenCount ?? 0;
  const inputs = usage["prompt_tokens_details"] ?? usage["input_tokens_details"];
  const outputs = usage["completion_tokens_details"] ?? usage["output_tokens_details"];
  return toUsage({
    input: input + read + written + toolUsePromptTokenCount,
    cachedRead: inputs?.cached_tokens ?? usage["cachedContentTokenCount"] ?? read,
    cachedWrite: inputs?.cache_write_tokens ?? written,
    output: output + thoughtsTokenCount,
    reasoning: outputs?.reasoning_tokens ?? outputs?.thinking_tokens ?? thoughtsTokenCount,
  });
}

function textBytes(value: unknown, name: string): number {
  if (typeof value === "string") {
    return TEXTS.includes(name) ? Buffer.byteLength(value) : 0;
  }
  if (typeof value !== "object" || value === null) {
    return 0;
  }
  if (VALUES.includes(name)) {
    return Buffer.byteLength(JSON.stringify(value));
  }
  const parts = Object.entries(value).map(([key, part]) => textBytes(part, Array.isArray(value) ? name : key));
  return parts.reduce((sum, bytes) => sum + bytes, 0);
}
