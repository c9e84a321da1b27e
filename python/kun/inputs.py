"""The forms in which prompts come: text, token ids, or dicts of either, as vLLM takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, TypedDict, Union

from .errors import InvalidArgumentError, UnimplementedError


class TextPrompt(TypedDict, total=False):
    """A prompt as text; ``prompt`` is required."""

    prompt: str
    cache_salt: str


class TokensPrompt(TypedDict, total=False):
    """A prompt as token ids; ``prompt_token_ids`` is required."""

    prompt_token_ids: List[int]
    prompt: str
    cache_salt: str


PromptType = Union[str, TextPrompt, TokensPrompt, List[int]]
ChatMessage = Dict[str, Any]


@dataclass
class Prompt:
    """One prompt, understood: text, or ids, or both where the text is for the record."""

    text: Optional[str] = None
    token_ids: Optional[List[int]] = None
    cache_salt: str = ""
    add_special_tokens: bool = True


def _is_ids(value: Any) -> bool:
    is_list = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    return is_list and len(value) > 0 and all(type(item) is int for item in value)


def read_prompt(prompt: Any, where: str = "prompt") -> Prompt:
    """One prompt of any form."""
    if isinstance(prompt, str):
        return Prompt(text=prompt)
    if _is_ids(prompt):
        return Prompt(token_ids=list(prompt))
    if not isinstance(prompt, dict):
        raise InvalidArgumentError(
            f"{where} must be a string, token ids, or a dict with 'prompt' or 'prompt_token_ids', "
            f"got {type(prompt).__name__}"
        )
    for name in ("multi_modal_data", "multi_modal_uuids", "mm_processor_kwargs", "prompt_embeds",
                 "encoder_prompt", "decoder_prompt"):
        if prompt.get(name):
            raise UnimplementedError(f"{where} has {name}, and Kun takes text and token ids only")
    text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
    if text is not None and not isinstance(text, str):
        raise InvalidArgumentError(f"{where}['prompt'] must be a string")
    if ids is not None and not _is_ids(ids):
        raise InvalidArgumentError(f"{where}['prompt_token_ids'] must be token ids, and not empty")
    if text is None and ids is None:
        raise InvalidArgumentError(f"{where} has neither 'prompt' nor 'prompt_token_ids'")
    salt = prompt.get("cache_salt") or ""
    if not isinstance(salt, str):
        raise InvalidArgumentError(f"{where}['cache_salt'] must be a string")
    return Prompt(text=text, token_ids=list(ids) if ids is not None else None, cache_salt=salt)


def read_prompts(prompts: Any) -> List[Prompt]:
    """One prompt, or a sequence of them."""
    if isinstance(prompts, (str, dict)) or _is_ids(prompts):
        return [read_prompt(prompts)]
    if not isinstance(prompts, Sequence):
        raise InvalidArgumentError(
            f"prompts must be a prompt or a sequence of prompts, got {type(prompts).__name__}"
        )
    return [read_prompt(prompt, f"prompts[{i}]") for i, prompt in enumerate(prompts)]


_ROLES = ("system", "user", "assistant", "tool", "function", "developer")


def _join_parts(parts: Any, where: str) -> str:
    texts: List[str] = []
    for i, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(part, str):
            texts.append(part)
        elif kind in ("text", "input_text", "output_text") and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif kind == "refusal" and isinstance(part.get("refusal"), str):
            texts.append(part["refusal"])
        else:
            raise InvalidArgumentError(f"{where}[{i}] must be a part with text, got {kind!r}")
    return "\n".join(texts)


def read_messages(messages: Any, where: str = "messages") -> List[Dict[str, Any]]:
    """The messages of one conversation, in the form that templates expect."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise InvalidArgumentError(f"{where} must be a list of messages, and not empty")
    read: List[Dict[str, Any]] = []
    for i, message in enumerate(messages):
        at = f"{where}[{i}]"
        if not isinstance(message, dict):
            raise InvalidArgumentError(f"{at} must be a dict with 'role' and 'content'")
        role, content = message.get("role"), message.get("content")
        if role not in _ROLES:
            raise InvalidArgumentError(
                f"{at}['role'] must be one of system, developer, user, assistant, tool, "
                f"got {role!r}"
            )
        if isinstance(content, (list, tuple)):
            content = _join_parts(content, f"{at}['content']")
        elif content is None and role != "assistant":
            raise InvalidArgumentError(f"{at} has no content")
        elif content is not None and not isinstance(content, str):
            raise InvalidArgumentError(f"{at}['content'] must be a string or a list of parts")
        rest = {
            key: value
            for key, value in message.items()
            if key not in ("role", "content") and value is not None
        }
        # Templates do not know OpenAI's new name of the role.
        read.append({"role": "system" if role == "developer" else role, "content": content, **rest})
    return read


def is_conversation(messages: Any) -> bool:
    """Whether these are the messages of one conversation, and not several conversations."""
    return isinstance(messages, Sequence) and len(messages) > 0 and isinstance(messages[0], dict)
