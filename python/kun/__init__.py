"""Kun runs DeepSeek-family language models on CPUs; this package is it from within Python.

>>> from kun import LLM, SamplingParams
>>> llm = LLM(model="smollm2")
>>> llm.generate("The capital of France is", SamplingParams(temperature=0))[0].outputs[0].text

The names and shapes are vLLM's. docs/python.md says where the two differ.
"""

from ._core import Tokenizer
from ._kun import __version__, kernel_names, set_log_level
from .async_llm import AsyncEngineArgs, AsyncLLM, EngineArgs
from .errors import (
    CancelledError,
    DataLossError,
    InternalError,
    InvalidArgumentError,
    KunError,
    KunWarning,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
    UnimplementedError,
)
from .inputs import ChatMessage, PromptType, TextPrompt, TokensPrompt
from .llm import LLM
from .outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from .sampling_params import RequestOutputKind, SamplingParams

__all__ = [
    "AsyncEngineArgs",
    "AsyncLLM",
    "CancelledError",
    "ChatMessage",
    "CompletionOutput",
    "DataLossError",
    "EngineArgs",
    "InternalError",
    "InvalidArgumentError",
    "KunError",
    "KunWarning",
    "LLM",
    "Logprob",
    "NotFoundError",
    "PromptType",
    "RequestMetrics",
    "RequestOutput",
    "RequestOutputKind",
    "ResourceExhaustedError",
    "SamplingParams",
    "TextPrompt",
    "Tokenizer",
    "TokensPrompt",
    "UnavailableError",
    "UnimplementedError",
    "__version__",
    "kernel_names",
    "set_log_level",
]
