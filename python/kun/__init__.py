"""Kun runs DeepSeek-family language models on CPUs; this package is it from within Python.

>>> from kun import LLM, SamplingParams
>>> llm = LLM(model="smollm2")
>>> llm.generate("The capital of France is", SamplingParams(temperature=0))[0].outputs[0].text

The names and shapes are vLLM's. docs/python.md says where the two differ.
"""

from ._core import Tokenizer
from ._kun import __version__, kernel_names, set_log_level
from .async_llm import AsyncEngineArgs, AsyncLLM, EngineArgs
from .beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
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
from .pooling import (
    EmbeddingOutput,
    PoolingOutput,
    PoolingParams,
    PoolingRequestOutput,
    ScoringOutput,
)
from .sampling_params import RequestOutputKind, SamplingParams
from .structured_outputs import GuidedDecodingParams, StructuredOutputsParams

__all__ = [
    "AsyncEngineArgs",
    "AsyncLLM",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "CancelledError",
    "ChatMessage",
    "CompletionOutput",
    "DataLossError",
    "EmbeddingOutput",
    "EngineArgs",
    "GuidedDecodingParams",
    "InternalError",
    "InvalidArgumentError",
    "KunError",
    "KunWarning",
    "LLM",
    "Logprob",
    "NotFoundError",
    "PoolingOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "PromptType",
    "RequestMetrics",
    "RequestOutput",
    "RequestOutputKind",
    "ResourceExhaustedError",
    "SamplingParams",
    "ScoringOutput",
    "StructuredOutputsParams",
    "TextPrompt",
    "Tokenizer",
    "TokensPrompt",
    "UnavailableError",
    "UnimplementedError",
    "__version__",
    "kernel_names",
    "set_log_level",
]
