"""The hook of LiteLLM's proxy: `callbacks: rlaas_client.litellm.hook` in its config.yaml, set up by `RLAAS_*`.

A client's call is one reservation, which lives in this process: from the hook before the call to that of its answer,
its failure or the end of its stream. Retries and fallbacks of the router belong to it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import litellm
from fastapi import HTTPException
from litellm.integrations.custom_logger import CustomLogger

from rlaas_client._request import Error
from rlaas_client._usage import find
from rlaas_client.async_client import AsyncClient
from rlaas_client.llm import AsyncBudget, AsyncCall, Refused, litellm_price

_LOG = logging.getLogger("rlaas")
# Of LiteLLM, what a call is, by its route. Others are not limited.
CALL_TYPES = {"completion", "text_completion", "embedding", "responses", "anthropic_messages"}
# The place in the metadata of a call for its id.
ID = "rlaas_reservation"
# Calls of which the proxy never says how they end are forgotten, beyond this number.
MAX_CALLS = 100_000
# What a prompt has beside its text, for each message.
TOKENS_OF_MESSAGE = 4
# Prompts with more characters are counted in another thread.
MAX_SIZE_IN_LOOP = 20_000
_PROMPT = ("messages", "prompt", "input", "system", "instructions")
_TOOLS = ("tools", "functions")
_OUTPUT = ("max_completion_tokens", "max_output_tokens", "max_tokens")
# Names of attributes, and where LiteLLM has them.
_ATTRIBUTES = {
    "key": ("key_alias", "api_key"),
    "team": ("team_alias", "team_id"),
    "user": ("user_id",),
    "end_user": ("end_user_id",),
    "organization": ("org_id",),
}


class Hook(CustomLogger):
    """Holds the most that a call can take, refuses it with 429, and charges what its answer says."""

    def __init__(self, budget: AsyncBudget) -> None:
        """Creates a hook, which connects with the first call."""
        super().__init__()
        self._budget, self._calls = budget, dict[str, AsyncCall]()
        self._warned = set[str]()

    async def async_pre_call_hook(
        self, user_api_key_dict: Any, cache: Any, data: dict[str, Any], call_type: str
    ) -> dict[str, Any] | None:
        """Reserves. A refusal is an `HTTPException`."""
        for metadata in _metadata(data):
            # An id of the client would settle the call of another one.
            metadata.pop(ID, None)
        if call_type not in CALL_TYPES and call_type.removeprefix("a") not in CALL_TYPES:
            if call_type not in self._warned:
                self._warned.add(call_type)
                _LOG.warning("calls of the type %s are not limited", call_type)
            return None
        call = await self._begin(user_api_key_dict, data, 0 if call_type.endswith("embedding") else _output(data))
        if call_type.endswith("completion"):
            data.update(call.arguments(**{name: data[name] for name in ("stream", "stream_options") if name in data}))
        # Nobody can guess it: a request that is not authenticated gets to the hook of failures, too.
        key = uuid.uuid4().hex
        if not isinstance(data.get("litellm_metadata"), dict) and not isinstance(data.get("metadata"), dict):
            data["metadata"] = {}
        next(_metadata(data))[ID] = key
        self._calls[key] = call
        if len(self._calls) > MAX_CALLS:
            del self._calls[next(iter(self._calls))]
        return data

    async def async_post_call_success_hook(self, data: dict[str, Any], user_api_key_dict: Any, response: Any) -> None:
        """Commits, before the client has the answer."""
        call = self._take(data)
        if call is not None:
            _cancel_if_cached(call, response)
            call.usage(response)
            await call._end(None)

    async def async_post_call_streaming_iterator_hook(
        self, user_api_key_dict: Any, response: Any, request_data: dict[str, Any]
    ) -> AsyncGenerator[Any, None]:
        """Passes a stream through, and commits at its end, whatever that is."""
        call = self._take(request_data)
        if call is None:
            async for chunk in response:
                yield chunk
            return
        _cancel_if_cached(call, response)
        # The stream settles.
        call._is_left = True
        async with aclosing(call.stream(response)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def async_post_call_failure_hook(
        self,
        request_data: dict[str, Any],
        original_exception: Exception,
        user_api_key_dict: Any,
        traceback_str: str | None = None,
    ) -> None:
        """Returns what is held if the model has refused, or charges what is known. Our own refusal holds nothing."""
        call = self._take(request_data)
        if call is not None:
            # LiteLLM's status of a client that has gone.
            has_gone = getattr(original_exception, "status_code", None) == 499
            await call._end(asyncio.CancelledError() if has_gone else original_exception)

    async def _begin(self, caller: Any, data: dict[str, Any], output: int | None) -> AsyncCall:
        attributes = dict[str, str]()
        for name, fields in _ATTRIBUTES.items():
            if value := next((value for field in fields if (value := getattr(caller, field, None))), None):
                attributes[name] = str(value)
        try:
            call = self._budget.call(
                attributes.get("key", "anonymous"),
                estimate=await _estimate(data),
                max_tokens=output,
                model=str(data.get("model", "")),
                attributes=attributes,
            )
            return await call.__aenter__()
        except Refused as refused:
            detail = {"error": f"rate limit: {refused}"}
            raise HTTPException(int(refused.status), detail, refused.headers) from refused
        except Error as error:
            raise HTTPException(400, {"error": str(error)}) from error

    def _take(self, data: Mapping[str, Any]) -> AsyncCall | None:
        """Takes the call of a request, which is settled once."""
        keys = [str(metadata.pop(ID, None)) for metadata in _metadata(data)]
        return next((call for key in keys if (call := self._calls.pop(key, None))), None)


def _metadata(data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the metadata of a request, first those of the proxy: of some routes `metadata` goes to the model."""
    for name in ("litellm_metadata", "metadata"):
        if isinstance(found := data.get(name), dict):
            yield found


def _cancel_if_cached(call: AsyncCall, response: Any) -> None:
    """Has a hit of LiteLLM's cache cost nothing."""
    is_hit = find(response, "_hidden_params", "cache_hit") is True
    if is_hit or find(response, "custom_llm_provider") == "cached_response":
        call.cancel()


def _output(data: Mapping[str, Any]) -> int | None:
    """Returns the most tokens of an answer, if the request has them."""
    most = next((data[name] for name in _OUTPUT if isinstance(data.get(name), int)), None)
    choices = data.get("n")
    return most * choices if most is not None and isinstance(choices, int) else most


async def _estimate(data: Mapping[str, Any]) -> int:
    """Returns the tokens of a prompt, as OpenAI's models count them. Images and files are left out."""
    tools = [json.dumps(data[name]) for name in _TOOLS if name in data]
    text = " ".join([*_texts([data.get(name) for name in _PROMPT]), *tools])
    count = partial(litellm.token_counter, model="gpt-4o", text=text)
    tokens: int = await asyncio.to_thread(count) if len(text) > MAX_SIZE_IN_LOOP else count()
    messages = data.get("messages")
    return tokens + TOKENS_OF_MESSAGE * (1 + len(messages) if isinstance(messages, list) else 1)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str) and not value.startswith("data:"):
        yield value
    elif isinstance(value, int):
        # Such as a prompt of numbers of tokens.
        yield "0"
    elif isinstance(value, Mapping):
        for name, part in value.items():
            # Of images and files.
            if name not in ("data", "file_data"):
                yield from _texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)


def _from_environment() -> AsyncBudget:
    """Returns the budget that the variables `RLAAS_*` set up. The README explains them."""
    values = {name[6:].lower(): value for name, value in os.environ.items() if name.startswith("RLAAS_")}

    def chosen(*names: str) -> dict[str, Any]:
        return {name: values[name] for name in names if name in values}

    settings = chosen("address", "token", "api_key", "on_no_answer", "on_overload")
    for name, path in chosen("ca", "certificate", "private_key").items():
        settings[name] = Path(path).read_bytes()
    client = AsyncClient(**settings, timeout=float(values.get("timeout", "0.25")))
    output = int(values.get("default_output", "4096"))
    price = litellm_price if "money" in values else None
    return AsyncBudget(
        client, default_output=output, price=price, **chosen("resource", "money", "tokens", "requests")
    )


hook = Hook(_from_environment())
