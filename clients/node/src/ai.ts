/** Middleware of the AI SDK, whose calls of language models a budget limits. */

import { APICallError, type LanguageModelMiddleware } from "ai";

import { type Budget, type BudgetCall, BudgetError } from "./budget.js";
import type { CheckRequest } from "./request.js";
import { toUsage } from "./usage.js";

type Generate = Parameters<NonNullable<LanguageModelMiddleware["wrapGenerate"]>>[0];
type Result = Awaited<ReturnType<Generate["doGenerate"]>>;

/** The call of a model: its parameters, such as `providerOptions`, and the model. */
export type ModelCall = Pick<Generate, "params" | "model">;

/**
 * Limits the calls of a model, for a request or what a function returns of a call: see `wrapLanguageModel`. A refusal
 * is an `APICallError` with the headers that the SDK reads.
 */
export function budgetMiddleware(
  budget: Budget,
  key: CheckRequest | ((call: ModelCall) => CheckRequest | Promise<CheckRequest>),
): LanguageModelMiddleware {
  const hold = async ({ params, model }: ModelCall) => {
    const { prompt, tools, responseFormat } = params;
    try {
      return await budget.call(typeof key === "function" ? await key({ params, model }) : key, {
        estimate: budget.estimate({ prompt, tools, responseFormat }),
        maxTokens: params.maxOutputTokens,
        model: model.modelId,
      });
    } catch (error) {
      throw error instanceof BudgetError ? refusal(error) : error;
    }
  };
  return {
    specificationVersion: "v4",
    async wrapGenerate({ doGenerate, params, model }) {
      const call = await hold({ params, model });
      const result = await answered(call, doGenerate);
      call.reader.addText(result.content);
      readUsage(call, result.usage);
      await call.end();
      return result;
    },
    async wrapStream({ doStream, params, model }) {
      const call = await hold({ params, model });
      const result = await answered(call, doStream);
      const stream = call.stream(result.stream, async (part) => {
        if (part?.type === "finish") {
          readUsage(call, part.usage);
          await call.end();
        } else if (part && "delta" in part) {
          call.reader.addText({ delta: part.delta });
        }
        return part ? [part] : [];
      });
      return { ...result, stream };
    },
  };
}

/** Returns the answer of a provider, or settles the call by its error. */
async function answered<T>(call: BudgetCall, ask: () => PromiseLike<T>): Promise<T> {
  try {
    return await ask();
  } catch (error) {
    await call.fail((error as { statusCode?: unknown } | null)?.statusCode);
    throw error;
  }
}

function readUsage(call: BudgetCall, { inputTokens, outputTokens }: Result["usage"]): void {
  // Not all providers say it.
  if (inputTokens.total !== undefined && outputTokens.total !== undefined) {
    call.reader.usage = toUsage({
      input: inputTokens.total,
      cachedRead: inputTokens.cacheRead,
      cachedWrite: inputTokens.cacheWrite,
      output: outputTokens.total,
      reasoning: outputTokens.reasoning,
    });
  }
}

function refusal(cause: BudgetError): APICallError {
  const { message, status: statusCode, headers: responseHeaders, isRetryable } = cause;
  return new APICallError({
    message,
    url: "",
    requestBodyValues: {},
    statusCode,
    responseHeaders,
    isRetryable,
    cause,
  });
}
