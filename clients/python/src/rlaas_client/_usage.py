"""Tokens that a language model has counted, by the answers of OpenAI, Anthropic and Gemini.

An answer is an object of a provider's library, its JSON as a mapping, or bytes of server-sent events.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, TypedDict

# A stream of events that has no end of a line for longer is none.
MAX_EVENT_BYTES = 1 << 20
BYTES_PER_TOKEN = 4


class _Tokens(TypedDict):
    input: int
    cached_read: int
    cached_write: int
    output: int
    reasoning: int
    total: int


class Usage(_Tokens, total=False):
    """Tokens. `input` includes the cached ones, `output` the reasoning, and `total` is their sum."""

    # Set where the model has not counted to the end.
    estimated: bool


def new_usage(prompt: int, output: int, read: int = 0, write: int = 0, reasoning: int = 0) -> Usage:
    """Returns the usage of a prompt, with its cached tokens, and of an output, with its reasoning."""
    return Usage(
        input=prompt, cached_read=read, cached_write=write, output=output, reasoning=reasoning, total=prompt + output
    )


def read_usage(answer: Any) -> Usage | None:
    """Returns the usage of a whole answer, or None if it has none."""
    numbers = _first(answer, "usage_metadata", "usageMetadata")
    if numbers is not None:
        return _gemini(numbers)
    numbers = find(answer, "usage")
    if find(numbers, "prompt_tokens") is not None:
        return _openai(numbers, "prompt_tokens", "completion_tokens")
    if find(numbers, "input_tokens") is None:
        return None
    if find(numbers, "total_tokens") is not None:
        return _openai(numbers, "input_tokens", "output_tokens")
    return _anthropic(numbers)


class Reader:
    """Reads an answer, or the chunks of one."""

    def __init__(self) -> None:
        self.usage: Usage | None = None
        # Whether the usage is that of the end, and of text that was streamed the bytes.
        self.is_final, self.size = False, 0
        self._rest = b""
        # Anthropic's numbers, each the newest.
        self._numbers: dict[str, Any] = {}

    def read(self, chunk: Any) -> None:
        """Reads a chunk, or a whole answer."""
        if isinstance(chunk, (bytes, str)):
            for event in self._events(chunk.encode() if isinstance(chunk, str) else chunk):
                self._read(event)
        else:
            self._read(chunk)

    def charged(self, estimate: int) -> Usage:
        """Returns what is to be charged: the usage, or else what is known, for a prompt of that estimate."""
        if self.usage is not None and self.is_final:
            return self.usage
        known = self.usage or new_usage(estimate, 0)
        output = max(known["output"], -(-self.size // BYTES_PER_TOKEN))
        return Usage(**{**known, "output": output, "total": known["input"] + output, "estimated": True})

    def _events(self, chunk: bytes) -> Iterator[Any]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        self._rest = self._rest if len(self._rest) <= MAX_EVENT_BYTES else b""
        for line in lines:
            if line.startswith(b"data:"):
                try:
                    yield json.loads(line[5:])
                except ValueError:
                    # Such as [DONE].
                    continue

    def _read(self, chunk: Any) -> None:
        kind = find(chunk, "type")
        if kind == "chunk":
            # Of the helpers of OpenAI's library, which wrap what the model has sent.
            chunk, kind = find(chunk, "chunk"), None
        if kind in ("message_start", "message_delta"):
            self._merge(find(chunk, "usage") or find(chunk, "message", "usage"), kind == "message_delta")
        elif kind == "content_block_delta":
            delta = find(chunk, "delta")
            self.size += _bytes(_first(delta, "text", "thinking", "partial_json"))
        elif isinstance(kind, str) and kind.startswith("response."):
            self.size += _bytes(find(chunk, "delta"))
            self._keep(read_usage(find(chunk, "response")))
        else:
            self.size += _size(chunk)
            # The second place is LiteLLM's, where the caller has not asked for the usage.
            self._keep(read_usage(chunk) or read_usage(find(chunk, "_hidden_params")))

    def _merge(self, numbers: Any, is_final: bool) -> None:
        for name in _ANTHROPIC:
            if (value := find(numbers, name)) is not None:
                self._numbers[name] = value
        if self._numbers:
            self.usage = _anthropic(self._numbers)
        self.is_final = self.is_final or is_final

    def _keep(self, usage: Usage | None) -> None:
        if usage is not None:
            self.usage, self.is_final = usage, True


_ANTHROPIC = (
    "input_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "output_tokens",
    "output_tokens_details",
)


def _anthropic(numbers: Any) -> Usage:
    prompt, read, write, output = (_count(numbers, name) for name in _ANTHROPIC[:4])
    reasoning = _count(numbers, "output_tokens_details", "thinking_tokens")
    return new_usage(prompt + read + write, output, read, write, reasoning)


def _openai(numbers: Any, prompt: str, output: str) -> Usage:
    details = find(numbers, f"{prompt}_details")
    # The second name is LiteLLM's.
    write = _count(details, "cache_write_tokens") or _count(details, "cache_creation_tokens")
    reasoning = _count(numbers, f"{output}_details", "reasoning_tokens")
    read = _count(details, "cached_tokens")
    return new_usage(_count(numbers, prompt), _count(numbers, output), read, write, reasoning)


def _gemini(numbers: Any) -> Usage:
    def count(snake: str, camel: str) -> int:
        return _count(numbers, snake) or _count(numbers, camel)

    prompt = count("prompt_token_count", "promptTokenCount")
    tools = count("tool_use_prompt_token_count", "toolUsePromptTokenCount")
    thoughts = count("thoughts_token_count", "thoughtsTokenCount")
    output = count("candidates_token_count", "candidatesTokenCount") + thoughts
    read = count("cached_content_token_count", "cachedContentTokenCount")
    return new_usage(prompt + tools, output, read, reasoning=thoughts)


def _size(answer: Any) -> int:
    """Returns the bytes of text of a chat completion, or of Gemini's answer, or of a part of one."""
    size = 0
    for choice in find(answer, "choices") or ():
        part = _first(choice, "delta", "message")
        calls = find(part, "tool_calls") or ()
        texts = (find(part, "content"), _first(part, "reasoning_content", "reasoning"), find(part, "refusal"))
        size += sum(map(_bytes, (*texts, find(choice, "text"))))
        size += sum(_bytes(find(call, "function", "arguments")) for call in calls)
    for candidate in find(answer, "candidates") or ():
        size += sum(_bytes(find(part, "text")) for part in find(candidate, "content", "parts") or ())
    return size


def _bytes(text: Any) -> int:
    return len(text.encode(errors="replace")) if isinstance(text, str) else 0


def _count(value: Any, *path: str) -> int:
    found = find(value, *path)
    return max(int(found), 0) if isinstance(found, (int, float)) else 0


def _first(value: Any, *names: str) -> Any:
    return next((found for name in names if (found := find(value, name)) is not None), None)


def find(value: Any, *path: str) -> Any:
    """Returns what a mapping or an object has at a path, or None."""
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    return value
