"""What an output must look like: vLLM's StructuredOutputsParams, and its older name."""

from __future__ import annotations

import json as json_module
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple, Union

from .errors import InvalidArgumentError

_DEMANDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


@dataclass
class StructuredOutputsParams:
    """One demand on the output; the engine lets only tokens through that satisfy it.

    Args:
        json: A JSON schema: a dict, JSON text, or a class of pydantic's.
        regex: A regular expression for the whole output.
        choice: Strings, of which the output is one.
        grammar: A grammar in GBNF (llama.cpp's) or in Lark's notation.
        json_object: Any JSON object.
        disable_any_whitespace: JSON without white space.
        disable_additional_properties: Objects have the properties of the schema and no others.
        whitespace_pattern: A regular expression for the white space between parts of JSON.
        disable_fallback: There is one implementation, and nothing to fall back to.
        structural_tag: Free text in which certain beginnings lead into a form: JSON text as vLLM
            has it, or a dict, with "structures" and "triggers" or with "format".
    """

    json: Union[None, str, Dict[str, Any], Any] = None
    regex: Optional[str] = None
    choice: Optional[List[str]] = None
    grammar: Optional[str] = None
    json_object: Optional[bool] = None
    disable_fallback: bool = False
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: Optional[str] = None
    structural_tag: Union[None, str, Dict[str, Any]] = None

    def __post_init__(self) -> None:
        given = [name for name in _DEMANDS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            raise InvalidArgumentError(
                f"structured_outputs needs exactly one of {', '.join(_DEMANDS)}, got "
                f"{' and '.join(given) or 'none'}"
            )
        if self.structural_tag is not None and not isinstance(self.structural_tag, (str, dict)):
            raise InvalidArgumentError("structural_tag must be JSON text or a dict")
        for name in ("regex", "grammar"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise InvalidArgumentError(f"{name} must be a text that is not empty")
        choice = self.choice
        if choice is not None and (
            isinstance(choice, str) or not all(isinstance(text, str) for text in choice)
        ):
            raise InvalidArgumentError("choice must be a list of strings")

    def demand(self) -> Tuple[str, List[str]]:
        """Its kind and its texts, as the engine takes them."""
        if self.regex is not None:
            return "regex", [self.regex]
        if self.grammar is not None:
            return "grammar", [self.grammar]
        if self.choice is not None:
            return "choice", list(self.choice)
        if self.structural_tag is not None:
            return "structural_tag", [_json_text(self.structural_tag, "structural_tag")]
        return "json", [_schema_text(self.json)]


class GuidedDecodingParams(StructuredOutputsParams):
    """vLLM's older name of StructuredOutputsParams."""


def _schema_text(schema: Any) -> str:
    if schema is None:
        return '{"type":"object"}'
    if hasattr(schema, "model_json_schema"):
        schema = schema.model_json_schema()
    return _json_text(schema, "json")


def _json_text(value: Any, name: str) -> str:
    if isinstance(value, str):
        return value
    try:
        return json_module.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"{name} cannot be written as JSON: {error}") from None


def read_structured_outputs(value: Any, name: str) -> Optional[StructuredOutputsParams]:
    """The demand that a field of SamplingParams makes: an object of the class, or its dict."""
    if value is None or isinstance(value, StructuredOutputsParams):
        return value
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"{name} must be a StructuredOutputsParams, got {value!r}")
    try:
        return StructuredOutputsParams(**value)
    except TypeError as error:
        raise InvalidArgumentError(f"{name}: {error}") from None
