"""Results, in the shapes that vLLM gives them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Optional, Union


@dataclass
class Logprob:
    """The log probability of one token at one position.

    It belongs to the model's own distribution, before temperature and filters. ``rank`` counts from
    1, and is None for a sampled token that is not among the likeliest that were asked for.
    """

    logprob: float
    rank: Optional[int] = None
    decoded_token: Optional[str] = None


SampleLogprobs = List[Dict[int, Logprob]]
PromptLogprobs = List[Optional[Dict[int, Logprob]]]  # None for the first token


@dataclass
class CompletionOutput:
    """One of the ``n`` continuations of a prompt.

    ``token_ids`` ends with the token that ended it (an end token, or the one that completed a stop
    string); ``text`` does not have the end token or the stop string, unless
    ``include_stop_str_in_output`` asked for it. ``finish_reason`` is "stop", "length" or, while it
    is streaming, None; ``stop_reason`` is the stop string or the id from ``stop_token_ids``, and
    None where the model's own end token ended it.
    """

    index: int
    text: str
    token_ids: List[int]
    cumulative_logprob: Optional[float] = None
    logprobs: Optional[SampleLogprobs] = None
    finish_reason: Optional[str] = None
    stop_reason: Union[int, str, None] = None
    lora_request: None = None

    def finished(self) -> bool:
        """Whether nothing more follows."""
        return self.finish_reason is not None


@dataclass
class RequestMetrics:
    """When things happened, in seconds of time.monotonic()."""

    arrival_time: float
    first_token_time: Optional[float] = None
    last_token_time: Optional[float] = None
    time_in_queue: Optional[float] = None
    finished_time: Optional[float] = None


@dataclass
class RequestOutput:
    """What became of one prompt."""

    request_id: str
    prompt: Optional[str]
    prompt_token_ids: List[int]
    outputs: List[CompletionOutput]
    finished: bool
    prompt_logprobs: Optional[PromptLogprobs] = None
    metrics: Optional[RequestMetrics] = None
    lora_request: None = None
    num_cached_tokens: int = 0
    kv_transfer_params: None = field(default=None, repr=False)
