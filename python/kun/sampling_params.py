"""How tokens are chosen: vLLM's SamplingParams, every field honoured or refused."""

from __future__ import annotations

import copy
import enum
import math
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Union

from .errors import InvalidArgumentError, UnimplementedError
from .structured_outputs import StructuredOutputsParams, read_structured_outputs


class RequestOutputKind(enum.Enum):
    """What each result of a stream holds."""

    CUMULATIVE = 0  # everything so far
    DELTA = 1  # what is new
    FINAL_ONLY = 2  # one result, at the end


# Fields that are refused, with what to do instead.
_UNSUPPORTED = {
    "best_of": "generate n continuations and keep those of the highest cumulative_logprob",
    "use_beam_search": "call LLM.beam_search()",
    "length_penalty": "it belongs to LLM.beam_search()",
    "early_stopping": "it belongs to LLM.beam_search()",
    "logits_processors": "logit_bias and the penalties run in the engine",
    "logprob_token_ids": "logprobs gives the likeliest tokens of each position",
    "flat_logprobs": "logprobs come as one dict for each position",
    "thinking_token_budget": "limit max_tokens",
    "repetition_detection": "use repetition_penalty, frequency_penalty or stop",
    "extra_args": "Kun has no plug-ins that would read it",
}


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidArgumentError(message)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass
class SamplingParams:
    """Sampling parameters; names, defaults and meanings are vLLM's.

    Args:
        n: Continuations of each prompt.
        presence_penalty: In [-2, 2]; above 0 discourages tokens that are in the output.
        frequency_penalty: In [-2, 2]; as above, once for each time the token is there.
        repetition_penalty: Above 0; above 1 discourages tokens of the prompt and the output.
        temperature: 0 is greedy.
        top_p: In (0, 1]: only the likeliest tokens that together have this probability.
        top_k: Only this many of the likeliest tokens; 0 or -1 is all.
        min_p: In [0, 1]: only tokens at least this likely, relative to the likeliest.
        seed: The same seed and prompt give the same output. None: drawn from the LLM's own seed.
        stop: Strings that end the output.
        stop_token_ids: Tokens that end the output.
        ignore_eos: Go on behind the model's own end tokens.
        max_tokens: Output tokens at most; None is what is left of the context.
        min_tokens: No end before this many output tokens.
        logprobs: For each output token the log probabilities of this many of the likeliest, and of
            the token itself. None: none at all.
        detokenize: False gives token ids only.
        skip_special_tokens: Leave special tokens out of the text.
        spaces_between_special_tokens: False drops the space before a special token that follows
            another.
        truncate_prompt_tokens: Keep only this many tokens of the prompt's end; -1: what fits.
        include_stop_str_in_output: Let the text end with what stopped it.
        output_kind: What each result of a stream holds; generate() gives the final one anyway.
        logit_bias: Token id to what is added to its logit, in [-100, 100].
        prompt_logprobs: For each token of the prompt but the first its log probability, and those
            of this many of the likeliest. None: none at all.
        allowed_token_ids: No other tokens are sampled.
        bad_words: Words that the output does not have.
        structured_outputs: What the output must look like: a StructuredOutputsParams, or its dict.
            Where the prompt ends in <think>, thoughts are free until </think>.
        guided_decoding: vLLM's older name of structured_outputs.
        skip_reading_prefix_cache: Compute the whole prompt anew.

    The remaining fields of vLLM are refused with UnimplementedError, which says what to use
    instead.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: Optional[int] = None
    stop: Union[None, str, List[str]] = None
    stop_token_ids: Optional[List[int]] = None
    bad_words: Optional[List[str]] = None
    ignore_eos: bool = False
    max_tokens: Optional[int] = 16
    min_tokens: int = 0
    logprobs: Optional[int] = None
    prompt_logprobs: Optional[int] = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: Optional[int] = None
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    logit_bias: Optional[Dict[int, float]] = None
    allowed_token_ids: Optional[List[int]] = None
    skip_reading_prefix_cache: Optional[bool] = None
    structured_outputs: Union[None, StructuredOutputsParams, Dict[str, Any]] = None
    guided_decoding: Union[None, StructuredOutputsParams, Dict[str, Any]] = None
    logits_processors: Optional[List[Callable[..., Any]]] = None
    logprob_token_ids: Optional[List[int]] = None
    flat_logprobs: bool = False
    thinking_token_budget: Optional[int] = None
    repetition_detection: Any = None
    extra_args: Optional[Dict[str, Any]] = None
    best_of: Optional[int] = None
    use_beam_search: bool = False
    length_penalty: Optional[float] = None
    early_stopping: Optional[bool] = None

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            self.stop = [self.stop]
        self.stop = list(self.stop or [])
        self.stop_token_ids = list(self.stop_token_ids or [])
        if self.seed == -1:  # vLLM's other way to say None
            self.seed = None
        self._refuse_unsupported()
        self._check_numbers()
        self._check_stops()
        self._check_token_limits()
        if self.structured_outputs is not None and self.guided_decoding is not None:
            raise InvalidArgumentError("give structured_outputs or guided_decoding, not both")
        self.structured_outputs = read_structured_outputs(
            self.structured_outputs, "structured_outputs"
        ) or read_structured_outputs(self.guided_decoding, "guided_decoding")
        self.guided_decoding = None

    def _refuse_unsupported(self) -> None:
        for name, instead in _UNSUPPORTED.items():
            value = getattr(self, name)
            if value is None or value is False or value == [] or value == {}:
                continue
            if name == "best_of" and value == self.n:
                continue
            raise UnimplementedError(f"SamplingParams({name}=...) is not supported: {instead}")

    def _check_numbers(self) -> None:
        def real(name: str, low: float, high: float, is_open: bool = False) -> None:
            value = getattr(self, name)
            # Numbers of other libraries (NumPy's) are numbers too, strings and None are not.
            is_real = hasattr(value, "__float__") and not isinstance(value, bool)
            inside = is_real and low <= float(value) <= high and not (is_open and value == low)
            _check(
                inside and math.isfinite(float(value)),
                f"{name} must be {'above' if is_open else 'at least'} {low:g}"
                f"{'' if math.isinf(high) else f' and at most {high:g}'}, got {value!r}",
            )
            setattr(self, name, float(value))

        def integer(name: str, low: int, high: int = 2**31 - 1, optional: bool = False) -> None:
            value = getattr(self, name)
            if optional and value is None:
                return
            _check(
                _is_integer(value) and low <= value <= high,
                f"{name} must be an integer of at least {low}"
                f"{'' if high == 2**31 - 1 else f' and at most {high}'}, got {value!r}",
            )

        real("temperature", 0.0, math.inf)
        real("top_p", 0.0, 1.0, is_open=True)
        real("min_p", 0.0, 1.0)
        real("presence_penalty", -2.0, 2.0)
        real("frequency_penalty", -2.0, 2.0)
        real("repetition_penalty", 0.0, math.inf, is_open=True)
        integer("n", 1)
        integer("top_k", -1)
        integer("max_tokens", 1, optional=True)
        integer("min_tokens", 0)
        integer("logprobs", 0, optional=True)
        integer("prompt_logprobs", 0, optional=True)
        integer("truncate_prompt_tokens", -1, optional=True)
        integer("seed", -(2**63), 2**64 - 1, optional=True)
        _check(self.truncate_prompt_tokens != 0, "truncate_prompt_tokens must not be 0")
        _check(
            self.max_tokens is None or self.min_tokens <= self.max_tokens,
            f"min_tokens is {self.min_tokens}, more than max_tokens, which is {self.max_tokens}",
        )
        for token, bias in (self.logit_bias or {}).items():
            _check(
                _is_integer(token) and not isinstance(bias, str) and -100.0 <= bias <= 100.0,
                f"logit_bias maps token ids to numbers between -100 and 100, got {token!r}: "
                f"{bias!r}",
            )

    def _check_stops(self) -> None:
        stops = self.stop or []
        _check(
            all(isinstance(text, str) and text for text in stops),
            "stop must be a string that is not empty, or a list of such",
        )
        _check(
            all(_is_integer(token) and 0 <= token < 2**31 for token in self.stop_token_ids or []),
            "stop_token_ids must be a list of token ids",
        )
        _check(self.detokenize or not stops, "stop needs detokenize, or its text is never seen")

    def _check_token_limits(self) -> None:
        allowed = self.allowed_token_ids
        _check(
            allowed is None
            or (
                isinstance(allowed, (list, tuple))
                and len(allowed) > 0
                and all(_is_integer(token) and 0 <= token < 2**31 for token in allowed)
            ),
            "allowed_token_ids must be a list of token ids that is not empty",
        )
        words = self.bad_words
        _check(
            words is None
            or (
                isinstance(words, (list, tuple))
                and all(isinstance(word, str) and word for word in words)
            ),
            "bad_words must be a list of words that are not empty",
        )

    def clone(self) -> "SamplingParams":
        """A copy that shares nothing with this one."""
        return copy.deepcopy(self)
