"""A fake model that speaks OpenAI's chat protocol, and knows what it has served to whom. Usage: model.py PORT.

The first word of a prompt says which call it is, and how many tokens the answer has: `3-17:1234`.
"""

import asyncio
import json
import sys
import time

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

TOKENS_OF_CHUNK = 100
SECONDS_OF_CHUNK = 0.01
# A word is a token, and a message has some beside its words.
TOKENS_OF_MESSAGE = 7

app = FastAPI()
calls = []


@app.get("/calls")
def list_calls():
    return calls


@app.post("/v1/chat/completions")
async def complete(request: Request):
    body = await request.json()
    words = body["messages"][0]["content"].split()
    name, output = words[0].split(":")
    prompt, output = len(words) + TOKENS_OF_MESSAGE, int(output)
    call = {"name": name, "at": time.time(), "until": None, "planned": prompt + output, "served": prompt}
    calls.append(call)
    if body.get("stream"):
        return StreamingResponse(stream(call, prompt, output), media_type="text/event-stream")
    # A model goes on where the caller does not wait.
    call["served"] += output
    await asyncio.sleep(SECONDS_OF_CHUNK * output / TOKENS_OF_CHUNK)
    call["until"] = time.time()
    message = {"role": "assistant", "content": "word" * output}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    return {**answer("chat.completion", [choice]), "usage": usage(prompt, output)}


async def stream(call, prompt, output):
    try:
        while (left := prompt + output - call["served"]) > 0:
            count = min(left, TOKENS_OF_CHUNK)
            # LiteLLM ends a stream of equal chunks.
            content = f"{call['served'] % 10000:04}" + "word" * (count - 1)
            # The caller gets what is sent now, or the connection breaks before the next.
            call["served"] += count
            yield event([{"index": 0, "finish_reason": None, "delta": {"role": "assistant", "content": content}}])
            await asyncio.sleep(SECONDS_OF_CHUNK)
        yield event([{"index": 0, "finish_reason": "stop", "delta": {}}])
        yield event([], usage=usage(prompt, output))
        yield "data: [DONE]\n\n"
    finally:
        call["until"] = time.time()


def event(choices, **more):
    return f"data: {json.dumps({**answer('chat.completion.chunk', choices), **more})}\n\n"


def answer(kind, choices):
    return {"id": "c", "object": kind, "created": 1, "model": "fake", "choices": choices}


def usage(prompt, output):
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="error", timeout_keep_alive=300)
