"""The hook of LiteLLM's proxy, called as the proxy does. LiteLLM itself is not needed."""

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from fastapi import HTTPException
from test_llm import ANSWER, CHUNKS, ProviderError, async_budget, each, objects, used

from rlaas_client.llm import AsyncBudget

CALLER = SimpleNamespace(api_key="hashed", key_alias=None, team_id="t", team_alias="research", user_id="u")
Run = Callable[[Any, dict[str, Any]], Coroutine[Any, Any, None]]


def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands for LiteLLM: what the hook takes from it."""
    root, logger = ModuleType("litellm"), ModuleType("litellm.integrations.custom_logger")
    root.token_counter = lambda model, text: len(text.split())  # type: ignore[attr-defined]
    root.cost_per_token = lambda **tokens: (tokens["prompt_tokens"] / 1e6, tokens["completion_tokens"] / 1e6)  # type: ignore[attr-defined]
    logger.CustomLogger = type("CustomLogger", (), {})  # type: ignore[attr-defined]
    for module in (root, ModuleType("litellm.integrations"), logger):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delitem(sys.modules, "rlaas_client.litellm", raising=False)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    stub(monkeypatch)
    return importlib.import_module("rlaas_client.litellm")


@pytest.fixture
def play(module: Any, address: str) -> Callable[..., dict[str, int]]:
    """Plays a call with a hook of a budget, and returns what it has cost."""

    def play(run: Run, user: str, **settings: Any) -> dict[str, int]:
        async def steps() -> None:
            held: AsyncBudget = async_budget(address, **settings)
            hook = module.Hook(held)
            await run(hook, request(user))
            assert not hook._calls, "each call is settled"
            await held.client.close()

        asyncio.run(steps())
        return used(address, user)

    return play


def request(user: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "one two three"}]
    return {"model": "m", "messages": messages, "max_tokens": 100, "user": user, **more}


async def begin(hook: Any, data: dict[str, Any], call_type: str = "acompletion") -> dict[str, Any]:
    caller = SimpleNamespace(**{**vars(CALLER), "key_alias": data["user"]})
    return await hook.async_pre_call_hook(caller, None, data, call_type) or data


def test_answer_is_charged(play: Callable[..., dict[str, int]], address: str) -> None:
    async def run(hook: Any, data: dict[str, Any]) -> None:
        data = await begin(hook, data)
        # The text, its role, and 4 for the message and the prompt each.
        assert (await asyncio.to_thread(used, address, "answer"))["chat"] == 112
        await hook.async_post_call_success_hook(data, CALLER, objects(ANSWER))
        assert (await asyncio.to_thread(used, address, "answer"))["chat"] == 42, "before the client has the answer"
        # What comes later settles nothing.
        await hook.async_post_call_failure_hook(data, ProviderError(500), CALLER)

    assert play(run, "answer") == {"chat": 42, "money": 132}


def test_attributes(module: Any) -> None:
    calls = []

    class Recording:
        def call(self, *arguments: Any, **named: Any) -> None:
            calls.append((arguments, named))
            raise HTTPException(418)

    with pytest.raises(HTTPException):
        asyncio.run(begin(module.Hook(Recording()), request("alias")))
    (user,), named = calls[0]
    assert user == "alias"
    assert named["attributes"] == {"key": "alias", "team": "research", "user": "u"}
    assert (named["model"], named["estimate"], named["max_tokens"]) == ("m", 12, 100)


@pytest.mark.parametrize(
    ("call_type", "data", "output"),
    [
        ("aembedding", {"input": [[1, 2], [3]], "max_tokens": 9}, 0),
        ("aresponses", {"input": "a", "max_output_tokens": 7}, 7),
        ("acompletion", {"max_completion_tokens": 5, "max_tokens": 9, "n": 2}, 10),
        ("atext_completion", {"prompt": "a"}, None),
    ],
)
def test_most_tokens_of_an_answer(module: Any, call_type: str, data: dict[str, Any], output: int | None) -> None:
    seen = []

    class Recording:
        def call(self, _user: str, **named: Any) -> None:
            seen.append(named["max_tokens"])
            raise HTTPException(418)

    with pytest.raises(HTTPException):
        asyncio.run(begin(module.Hook(Recording()), {"user": "u", **data}, call_type))
    assert seen == [output]


def test_refusal_is_an_http_exception(play: Callable[..., dict[str, int]]) -> None:
    async def run(hook: Any, data: dict[str, Any]) -> None:
        # An id of the client's own.
        data |= {"max_tokens": 2000, "metadata": {"rlaas_reservation": ["of another call"]}}
        await hook.async_post_call_failure_hook(
            dict(data, metadata=dict(data["metadata"])), ProviderError(401), CALLER
        )
        with pytest.raises(HTTPException) as raised:
            await begin(hook, data)
        assert raised.value.status_code == 429
        assert raised.value.headers is not None
        assert raised.value.headers["x-should-retry"] == "false"
        assert data["metadata"] == {}
        await hook.async_post_call_failure_hook(data, raised.value, CALLER)

    assert play(run, "too-much")["chat"] == 0


@pytest.mark.parametrize(("error", "charged"), [(ProviderError(500), 0), (ProviderError(499), 12), (OSError(), 12)])
def test_failure(play: Callable[..., dict[str, int]], error: Exception, charged: int) -> None:
    async def run(hook: Any, data: dict[str, Any]) -> None:
        await hook.async_post_call_failure_hook(await begin(hook, data), error, CALLER)

    assert play(run, f"failure-{error!r}-{getattr(error, 'status_code', 0)}")["chat"] == charged


def test_stream_is_charged(play: Callable[..., dict[str, int]]) -> None:
    async def run(hook: Any, data: dict[str, Any]) -> None:
        data = await begin(hook, data | {"stream": True, "litellm_metadata": {}})
        assert data["stream_options"] == {"include_usage": True}
        assert "metadata" not in data, "which may go to the model"
        chunks = hook.async_post_call_streaming_iterator_hook(CALLER, each(objects(CHUNKS)), data)
        assert len([chunk async for chunk in chunks]) == 2

    assert play(run, "hooked-stream")["chat"] == 30


def test_stream_holds_on_until_its_end(play: Callable[..., dict[str, int]]) -> None:
    extended = []

    async def slow() -> AsyncIterator[Any]:
        for chunk in CHUNKS:
            await asyncio.sleep(0.4)
            yield chunk

    async def run(hook: Any, data: dict[str, Any]) -> None:
        data = await begin(hook, data)
        call = next(iter(hook._calls.values()))
        extend = call._extend

        async def counted() -> None:
            extended.append(call._is_settled)
            await extend()

        call._extend = counted
        async for _ in hook.async_post_call_streaming_iterator_hook(CALLER, slow(), data):
            pass
        await asyncio.sleep(0.3)

    assert play(run, "slow", hold=0.4)["chat"] == 30
    assert len(extended) > 1
    assert not any(extended), "nothing is extended after its end"


def test_usage_may_be_where_litellm_hides_it(play: Callable[..., dict[str, int]]) -> None:
    async def run(hook: Any, data: dict[str, Any]) -> None:
        last = objects(CHUNKS[1])
        last._hidden_params = ANSWER
        data = await begin(hook, data)
        chunks = hook.async_post_call_streaming_iterator_hook(CALLER, each([last]), data)
        assert [chunk async for chunk in chunks] == [last]

    assert play(run, "hidden")["chat"] == 42


def test_client_that_leaves_is_charged_what_was_streamed(play: Callable[..., dict[str, int]]) -> None:
    async def run(hook: Any, data: dict[str, Any]) -> None:
        chunks = hook.async_post_call_streaming_iterator_hook(CALLER, each(CHUNKS), await begin(hook, data))
        await anext(chunks)
        await chunks.aclose()

    assert play(run, "left")["chat"] == 13


def test_broken_stream_is_charged_once(play: Callable[..., dict[str, int]]) -> None:
    async def broken() -> AsyncIterator[Any]:
        yield CHUNKS[0]
        raise ProviderError(500)

    async def run(hook: Any, data: dict[str, Any]) -> None:
        data = await begin(hook, data)
        with pytest.raises(ProviderError) as raised:
            async for _ in hook.async_post_call_streaming_iterator_hook(CALLER, broken(), data):
                pass
        await hook.async_post_call_failure_hook(data, raised.value, CALLER)

    assert play(run, "broken")["chat"] == 13


def test_hit_of_the_cache_costs_nothing(play: Callable[..., dict[str, int]]) -> None:
    async def run(hook: Any, data: dict[str, Any]) -> None:
        answer = SimpleNamespace(**ANSWER, _hidden_params={"cache_hit": True})
        await hook.async_post_call_success_hook(await begin(hook, data), CALLER, answer)

    assert play(run, "cached-answer")["chat"] == 0


def test_other_calls_are_not_limited(play: Callable[..., dict[str, int]], caplog: pytest.LogCaptureFixture) -> None:
    async def run(hook: Any, data: dict[str, Any]) -> None:
        for _ in range(2):
            assert await begin(hook, data, "aimage_generation") is data
        await hook.async_post_call_success_hook(data, CALLER, ANSWER)
        async for _ in hook.async_post_call_streaming_iterator_hook(CALLER, each(CHUNKS), data):
            pass

    assert play(run, "image")["chat"] == 0
    assert [record.getMessage() for record in caplog.records] == [
        "calls of the type aimage_generation are not limited"
    ]


def test_environment(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    stub(monkeypatch)
    for name, value in {
        "ADDRESS": address,
        "RESOURCE": "/chat",
        "MONEY": "money",
        "TIMEOUT": "5",
    }.items():
        monkeypatch.setenv(f"RLAAS_{name}", value)
    hook = importlib.import_module("rlaas_client.litellm").hook

    async def run() -> None:
        data = await begin(hook, request("environment"))
        await hook.async_post_call_success_hook(data, CALLER, ANSWER)
        await hook._budget.client.close()

    asyncio.run(run())
    assert used(address, "environment") == {"chat": 42, "money": 42}
