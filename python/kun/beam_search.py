"""Beam search: the likeliest continuations of a prompt, in vLLM's shapes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import List, Optional, Union

from .errors import InvalidArgumentError, UnimplementedError
from .outputs import RequestOutput, SampleLogprobs
from .sampling_params import SamplingParams


@dataclass
class BeamSearchParams:
    """How to search; names and defaults are vLLM's.

    Args:
        beam_width: Continuations that are kept, and given back.
        max_tokens: Output tokens at most.
        ignore_eos: Go on behind the model's own end tokens.
        temperature: 0: a beam search samples nothing.
        length_penalty: A continuation of n tokens is worth its cumulative logprob by n to this.
        include_stop_str_in_output: False; a beam search looks for no strings.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        for name in ("beam_width", "max_tokens"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InvalidArgumentError(f"{name} must be a positive integer, got {value!r}")
        if self.temperature != 0:
            raise UnimplementedError(
                "temperature has no meaning in a beam search, which samples nothing"
            )
        if not -100.0 <= float(self.length_penalty) <= 100.0:
            raise InvalidArgumentError("length_penalty must be between -100 and 100")

    def sampling_params(self) -> SamplingParams:
        """What the engine is asked for beside the search itself."""
        return SamplingParams(
            n=self.beam_width,
            temperature=0.0,
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
            logprobs=0,
        )


@dataclass
class BeamSearchSequence:
    """One continuation; ``tokens`` and ``text`` begin with the prompt, as vLLM's do."""

    tokens: List[int]
    logprobs: SampleLogprobs
    cum_logprob: float = 0.0
    text: Optional[str] = None
    finish_reason: Optional[str] = None
    stop_reason: Union[int, str, None] = None


@dataclass
class BeamSearchOutput:
    """The continuations of one prompt, best first."""

    sequences: List[BeamSearchSequence] = field(default_factory=list)


def beam_output(output: RequestOutput, prompt: str) -> BeamSearchOutput:
    """In vLLM's shape."""
    return BeamSearchOutput(
        [
            BeamSearchSequence(
                tokens=output.prompt_token_ids + completion.token_ids,
                logprobs=completion.logprobs or [],
                cum_logprob=completion.cumulative_logprob or 0.0,
                text=prompt + completion.text,
                finish_reason=completion.finish_reason,
                stop_reason=completion.stop_reason,
            )
            for completion in output.outputs
        ]
    )
