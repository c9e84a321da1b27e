"""Embeddings and scores: what becomes of the hidden states of a prompt that is only read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Generic, List, Optional, Sequence, TypeVar

from .errors import InvalidArgumentError, UnimplementedError
from .inputs import Prompt

Output = TypeVar("Output")

# vLLM's tasks; Kun's models generate, so that they have hidden states and no heads that judge.
_TASKS = (None, "embed")


@dataclass
class PoolingParams:
    """How hidden states become one vector; names are vLLM's but for ``pooling``.

    Args:
        truncate_prompt_tokens: Keep only this many tokens of the prompt's end; -1: what fits.
        dimensions: Only so many of the first numbers, scaled to length 1 again.
        normalize: False: the vector as it is, not scaled to length 1.
        use_activation: vLLM's newer name of normalize.
        pooling: "last": the state of the last token; "mean": the mean over all tokens.
        task: "embed", the only one.
    """

    truncate_prompt_tokens: Optional[int] = None
    dimensions: Optional[int] = None
    normalize: Optional[bool] = None
    use_activation: Optional[bool] = None
    pooling: str = "last"
    task: Optional[str] = None

    def __post_init__(self) -> None:
        if self.pooling not in ("last", "mean"):
            raise InvalidArgumentError(f"pooling must be 'last' or 'mean', got {self.pooling!r}")
        if self.task not in _TASKS:
            raise UnimplementedError(
                f"task={self.task!r} is not supported: the models generate and have no heads to "
                "classify, reward or rerank with; 'embed' gives embeddings"
            )
        for name in ("dimensions", "truncate_prompt_tokens"):
            value = getattr(self, name)
            low = 1 if name == "dimensions" else -1
            if value is not None and (
                not isinstance(value, int) or isinstance(value, bool) or value < low or value == 0
            ):
                raise InvalidArgumentError(f"{name} must be a positive integer, got {value!r}")
        for name in ("normalize", "use_activation"):
            if getattr(self, name) not in (None, True, False):
                raise InvalidArgumentError(f"{name} must be True or False")

    @property
    def scaled(self) -> bool:
        """Whether the vector is scaled to length 1."""
        given = self.use_activation if self.normalize is None else self.normalize
        return given is not False

    @property
    def max_tokens(self) -> int:
        """Room for output: none is made."""
        return 1


@dataclass
class PoolingOutput:
    """The vector of a prompt."""

    data: List[float]


@dataclass
class EmbeddingOutput:
    """The embedding of a prompt."""

    embedding: List[float]

    @property
    def hidden_size(self) -> int:
        """How many numbers it has."""
        return len(self.embedding)


@dataclass
class ScoringOutput:
    """How alike two texts are: the cosine of their embeddings, from -1 to 1."""

    score: float


@dataclass
class PoolingRequestOutput(Generic[Output]):
    """What became of one prompt."""

    request_id: str
    outputs: Output
    prompt_token_ids: List[int]
    finished: bool = True
    num_cached_tokens: int = 0


class PoolingCollector:
    """Takes in the one update of a pooling request; like Collector to those who wait."""

    def __init__(self, request_id: str, ids: List[int]) -> None:
        self._request_id = request_id
        self._ids = ids
        self._cached = 0
        self._vector: List[float] = []
        self.finished = False

    @property
    def token_count(self) -> int:
        return 0

    @property
    def prompt_token_count(self) -> int:
        return len(self._ids)

    def add(self, update: Any) -> None:
        """Raises what the request failed with."""
        if update.error is not None:
            raise update.error
        if update.finish_reason is not None:
            self._vector = update.pooled
            self._cached = update.cached_count
            self.finished = True

    def output(self) -> PoolingRequestOutput[PoolingOutput]:
        """The result."""
        return PoolingRequestOutput(
            self._request_id, PoolingOutput(self._vector), self._ids, True, self._cached
        )


def pairs_of(data_1: Any, data_2: Any) -> List[Sequence[Any]]:
    """The pairs that score() compares: one text with any number, or as many with as many."""
    first = list(data_1) if isinstance(data_1, (list, tuple)) else [data_1]
    second = list(data_2) if isinstance(data_2, (list, tuple)) else [data_2]
    if len(first) == 1:
        first = first * len(second)
    if not first or len(first) != len(second):
        raise InvalidArgumentError(
            f"there are {len(first)} texts to compare with {len(second)}: give one for all, or one "
            "for each"
        )
    return list(zip(first, second))


def cosine(left: List[float], right: List[float]) -> float:
    """Of vectors of length 1."""
    return max(-1.0, min(1.0, sum(a * b for a, b in zip(left, right))))


def read_pooling_params(given: Any, options: Dict[str, Any]) -> PoolingParams:
    """A PoolingParams, or None for the default; ``options`` go before it."""
    params = PoolingParams() if given is None else given
    if not isinstance(params, PoolingParams):
        raise InvalidArgumentError(f"pooling_params must be a PoolingParams, got {given!r}")
    values = {name: getattr(params, name) for name in PoolingParams.__dataclass_fields__}
    values.update({name: value for name, value in options.items() if value is not None})
    return PoolingParams(**values)


def prompt_of(text: Any, where: str) -> Prompt:
    """A text to compare."""
    if not isinstance(text, str) or not text:
        raise InvalidArgumentError(f"{where} must be a text that is not empty, got {text!r}")
    return Prompt(text=text)
