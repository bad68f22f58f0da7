"""A gateway for a language model: an ASGI application whose completions rlaas limits."""

import asyncio
import json
import math
import random
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import asdict
from http import HTTPStatus
from typing import Any

import uvicorn

from limits import RESOURCE, Completion, Limits, Refusal, Reservation, connect

MAX_BODY_BYTES = 1 << 20
MAX_TOKENS = 4096
SECONDS_PER_TOKEN = 0.005

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class ModelError(Exception):
    """The model has failed."""


async def fake_model(prompt: str, max_tokens: int) -> AsyncGenerator[str, None]:
    """Generates at least half of `max_tokens`, as the prompt decides. `fail` makes it fail."""
    for number in range(random.Random(prompt).randint(math.ceil(max_tokens / 2), max_tokens)):
        await asyncio.sleep(SECONDS_PER_TOKEN)
        if number == 3 and prompt == "fail":
            raise ModelError
        yield f"word{number} "


class Gateway:
    """The application."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        try:
            completion = parse(scope, await read_body(receive))
            reservation = await self._limits.reserve(completion)
        except Refusal as refusal:
            await refuse(refusal, send)
        else:
            await stream(completion, reservation, receive, send)


async def read_body(receive: Receive) -> bytes:
    """Returns the body of a request, or as much of it as came before the client went away."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > MAX_BODY_BYTES:
            detail = f"at most {MAX_BODY_BYTES} bytes"
            raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail)
    return body


def parse(scope: Message, body: bytes) -> Completion:
    """Returns what a request asks for. Whatever authenticates clients in front of the gateway sets
    the headers that name user and project."""
    if (scope["method"], scope["path"]) != ("POST", RESOURCE):
        raise Refusal(HTTPStatus.NOT_FOUND, f"there is only POST {RESOURCE}")
    headers = dict(scope["headers"])
    if not headers.get(b"x-user-id") or not headers.get(b"x-project"):
        raise Refusal(HTTPStatus.UNAUTHORIZED, "x-user-id or x-project is missing")
    try:
        request = json.loads(body)
        prompt = " ".join(message["content"] for message in request["messages"])
        max_tokens = request["max_tokens"]
    except (KeyError, TypeError, ValueError) as error:
        detail = "messages with contents, or max_tokens, are missing"
        raise Refusal(HTTPStatus.BAD_REQUEST, detail) from error
    if type(max_tokens) is not int or not 1 <= max_tokens <= MAX_TOKENS:
        raise Refusal(HTTPStatus.BAD_REQUEST, f"max_tokens must be 1 to {MAX_TOKENS}")
    user_id, project = (headers[name].decode("latin-1") for name in (b"x-user-id", b"x-project"))
    return Completion(user_id, project, prompt, max_tokens)


async def refuse(refusal: Refusal, send: Send) -> None:
    """Sends a problem document."""
    headers = [(b"content-type", b"application/problem+json")]
    if refusal.retry_after is not None:
        headers.append((b"retry-after", b"%d" % refusal.retry_after))
    status = refusal.status
    problem = {"title": status.phrase, "status": status, "detail": str(refusal)}
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(problem).encode()})


async def stream(
    completion: Completion, reservation: Reservation, receive: Receive, send: Send
) -> None:
    """Streams a completion, and settles its reservation whatever ends the stream. The last event
    comes afterwards: a client that has seen it finds its slot free."""
    usage = completion.usage(0)
    gone = asyncio.create_task(disconnected(receive))
    failed = False
    try:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": HTTPStatus.OK, "headers": headers})
        model = fake_model(completion.prompt, completion.max_tokens)
        async with reservation.renewed(), aclosing(model) as tokens:
            async for token in tokens:
                usage.completion_tokens += 1
                if gone.done():
                    break
                await send(event({"choices": [{"index": 0, "delta": {"content": token}}]}))
    except ModelError:
        failed = True
    finally:
        gone.cancel()
        await (reservation.cancel() if failed else reservation.commit(usage))
    if failed:
        await send(event({"error": {"message": "the model has failed"}}))
    else:
        counts = asdict(usage) | {"total_tokens": usage.total_tokens}
        await send(event({"choices": [], "usage": counts}))
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


async def disconnected(receive: Receive) -> None:
    """Returns when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def event(data: Message) -> Message:
    """Returns the part of a response that is one server-sent event."""
    body = f"data: {json.dumps(data)}\n\n".encode()
    return {"type": "http.response.body", "body": body, "more_body": True}


async def main() -> None:
    """Serves on port 8000. The argument is the address of rlaas."""
    async with connect(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051") as channel:
        config = uvicorn.Config(Gateway(Limits(channel)), lifespan="off")
        await uvicorn.Server(config).serve()


if __name__ == "__main__":
    asyncio.run(main())
