"""The cases of clients/llm-cases.json through the libraries of providers, those of them that are installed.

`test.sh` installs none: `pip install openai anthropic google-genai` before to run this.
"""

import asyncio
import importlib
import json
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from typing import Any

import pytest
from test_llm import CASES, async_budget, budget, used

LIBRARIES = {
    "openai-chat": "openai",
    "openai-responses": "openai",
    "anthropic": "anthropic",
    "gemini": "google.genai",
}
MESSAGES = [{"role": "user", "content": "hello"}]
# Clients whose streams are open: Gemini's closes when nobody refers to it.
CLIENTS: list[Any] = []


def is_installed(library: str) -> bool:
    try:
        return find_spec(library) is not None
    except ModuleNotFoundError:
        return False


INSTALLED = [case for case in CASES if is_installed(LIBRARIES[case["provider"]]) and case.get("chunks") != []]


class Provider(BaseHTTPRequestHandler):
    """Answers with the case, or the status, that the path begins with."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        name = self.path.split("/")[1]
        case = next((case for case in CASES if case["name"] == name), None)
        is_stream = case is not None and "chunks" in case
        self.send_response(200 if case else int(name))
        self.send_header("content-type", "text/event-stream" if is_stream else "application/json")
        self.end_headers()
        if case is None:
            self.wfile.write(b'{"error": {"message": "no", "code": 500, "status": "INTERNAL"}}')
        elif not is_stream:
            self.wfile.write(json.dumps(case["response"]).encode())
        else:
            for chunk in case["chunks"]:
                event = f"event: {chunk['type']}\n" if "type" in chunk else ""
                self.wfile.write(f"{event}data: {json.dumps(chunk)}\n\n".encode())

    def log_message(self, *_: Any) -> None:
        """Writes nothing."""


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def ask(provider: str, url: str, kind: str, *, stream: bool, prefix: str = "") -> Any:
    """Asks with a library; with the prefix Async the result is awaited."""
    library = importlib.import_module(LIBRARIES[provider])
    if provider == "gemini":
        client = library.Client(api_key="x", http_options={"base_url": url})
        CLIENTS.append(client)
        models = client.aio.models if prefix else client.models
        method = models.generate_content_stream if stream else models.generate_content
        return method(model="m", contents="hello")
    if provider == "anthropic":
        client = getattr(library, f"{prefix}Anthropic")(api_key="x", base_url=url, max_retries=0)
        return client.messages.create(model="m", max_tokens=100, messages=MESSAGES, stream=stream)
    client = getattr(library, f"{prefix}OpenAI")(api_key="x", base_url=url, max_retries=0)
    if provider == "openai-responses":
        return client.responses.create(model="m", input="hello", stream=stream)
    if kind == "embeddings":
        return client.embeddings.create(model="m", input="hello", encoding_format="float")
    return client.chat.completions.create(model="m", messages=MESSAGES, stream=stream)


def expected(case: dict[str, Any]) -> int:
    total: int = case.get("charged", case["usage"])["total"]
    return total


def test_answers(address: str, provider: str) -> None:
    for case in INSTALLED:
        user, is_stream = f"library-{case['name']}", "chunks" in case
        held = budget(address, price=None)
        with held.call(user, estimate=case.get("estimate", 1), max_tokens=700, costs={"money": 0}) as call:
            answer = ask(case["provider"], f"{provider}/{case['name']}", case["name"], stream=is_stream)
            if is_stream:
                assert len(list(call.stream(answer))) >= 1, case["name"]
            else:
                call.usage(answer)
        assert used(address, user)["chat"] == expected(case), case["name"]


def test_async_answers(address: str, provider: str) -> None:
    async def chunks(call: Any, answer: Any) -> AsyncIterator[Any]:
        async for chunk in call.stream(answer):
            yield chunk

    async def run(case: dict[str, Any], user: str) -> None:
        held, is_stream = async_budget(address, price=None), "chunks" in case
        async with held.call(user, estimate=case.get("estimate", 1), max_tokens=700, costs={"money": 0}) as call:
            url = f"{provider}/{case['name']}"
            answer = await ask(case["provider"], url, case["name"], stream=is_stream, prefix="Async")
            if is_stream:
                assert [chunk async for chunk in chunks(call, answer)], case["name"]
            else:
                call.usage(answer)
        await held.client.close()

    for case in INSTALLED:
        user = f"async-library-{case['name']}"
        asyncio.run(run(case, user))
        assert used(address, user)["chat"] == expected(case), case["name"]


def test_errors_of_providers_cost_nothing(address: str, provider: str) -> None:
    for name in sorted({case["provider"] for case in INSTALLED}):
        for status in (429, 500):
            user = f"library-error-{name}-{status}"
            with pytest.raises(Exception, match="no"), budget(address).call(user, estimate=1, max_tokens=9):
                ask(name, f"{provider}/{status}", "", stream=False)
            assert used(address, user)["chat"] == 0, user
