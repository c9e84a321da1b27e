"""LLM: a model in this process, used as vLLM's LLM is used."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, NoReturn, Optional, Sequence, Union

from . import _kun
from ._core import Collector, Core, Tokenizer, refuse_lora, refuse_pooling
from ._options import read_options
from ._progress import UseTqdm, progress_bar
from .beam_search import BeamSearchOutput, BeamSearchParams, beam_output
from .errors import InvalidArgumentError
from .inputs import ChatMessage, Prompt, PromptType, read_prompts
from .outputs import RequestOutput
from .pooling import (
    EmbeddingOutput,
    PoolingCollector,
    PoolingOutput,
    PoolingParams,
    PoolingRequestOutput,
    ScoringOutput,
    cosine,
    pairs_of,
    prompt_of,
    read_pooling_params,
)
from .sampling_params import RequestOutputKind, SamplingParams

# How long a wait may last before Python looks for signals: Ctrl-C is answered within this time.
_WAIT_SECONDS = 0.05


class LLM:
    """A model with an engine that batches continuously.

    Args:
        model: A GGUF file, a Hugging Face folder, "script:FILE", or a name that `kun pull` knows.
        tokenizer: Folder of another tokenizer.json.
        chat_template: File with another chat template.
        dtype: "auto" (fast: quantized arithmetic where that helps, bfloat16 cache), "bfloat16" (the
            same) or "float32" (exact).
        kv_cache_dtype: What the KV cache holds: "auto" (as dtype says), "bfloat16", "float32", or
            "int8" (half of bfloat16, with a scale for every head of a token).
        seed: What the seeds of requests without one are drawn from; None is chance.
        max_model_len: The longest context: 4096, "32k", "32K"; None is the model's own.
        kv_cache_memory_bytes: Size of the KV cache; None is half of the free memory, and never more
            than max_num_seqs full contexts.
        max_num_seqs: Sequences that are computed together.
        max_num_batched_tokens: Tokens in one step.
        max_logprobs: The most that SamplingParams(logprobs=...) may ask for.
        enable_prefix_caching: Reuse the cache of prompts that begin alike.
        generation_config: Where sampling defaults come from: "auto" (the model), "vllm" (neutral).
        override_generation_config: Sampling defaults that go before those.
        speculative_config: As `kun serve --speculative-config` takes it, as a dict:
            {"method": "ngram", "num_speculative_tokens": 4} or {"model": ..., ...}.
        threads: Compute threads; 0 is one for each core this process may use.
        kernels: A kernel table by name; None is the best of this machine.
        tensor_parallel_size: 1.
        use_tqdm_on_load: Show on a terminal how loading proceeds.

    What else vLLM's LLM takes is accepted with a KunWarning where it makes no difference here, and
    refused with UnimplementedError where it would.

    An LLM may be used from several threads at once. It does not survive fork(): make it in the
    process that uses it. Use it in a `with` statement, or close() it, to free the memory at once.
    """

    def __init__(self, model: str, **options: Any) -> None:
        self._core = Core(read_options(model, options, "LLM"))
        self._next_id = 0

    def generate(
        self,
        prompts: Union[None, PromptType, Sequence[PromptType]] = None,
        sampling_params: Union[None, SamplingParams, Sequence[SamplingParams]] = None,
        *,
        prompt_token_ids: Union[None, List[int], List[List[int]]] = None,
        use_tqdm: UseTqdm = True,
        lora_request: Any = None,
        priority: Optional[List[int]] = None,
    ) -> List[RequestOutput]:
        """Continues every prompt, all of them batched by the engine.

        Args:
            prompts: A prompt or several: text, token ids, {"prompt": text} or
                {"prompt_token_ids": ids}, with a "cache_salt" if caches shall be apart.
            sampling_params: For all prompts, or one for each. None: get_default_sampling_params().
            prompt_token_ids: The older way to give token ids.
            use_tqdm: Show a progress bar (tqdm's if installed); or a function that makes one.
            priority: One for each prompt; lower runs earlier.

        Returns:
            One result for each prompt, in their order.

        Raises:
            InvalidArgumentError: A prompt does not fit, or a parameter is wrong; nothing has run.
            KeyboardInterrupt: Ctrl-C, after all of these requests were cancelled.
        """
        refuse_lora(lora_request)
        if prompt_token_ids is not None:
            if prompts is not None:
                raise InvalidArgumentError("give prompts or prompt_token_ids, not both")
            prompts = prompt_token_ids
        if prompts is None:
            raise InvalidArgumentError("there are no prompts")
        return self._run(read_prompts(prompts), sampling_params, use_tqdm, priority)

    def chat(
        self,
        messages: Union[List[ChatMessage], List[List[ChatMessage]]],
        sampling_params: Union[None, SamplingParams, Sequence[SamplingParams]] = None,
        use_tqdm: UseTqdm = True,
        lora_request: Any = None,
        chat_template: Optional[str] = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Optional[List[Dict[str, Any]]] = None,
        chat_template_kwargs: Optional[Dict[str, Any]] = None,
    ) -> List[RequestOutput]:
        """Answers one conversation, or several of them together.

        Args:
            messages: Dicts with "role" and "content", or a list of such lists.
            sampling_params: As for generate().
            use_tqdm: As for generate().
            chat_template: The text of another template for this call.
            chat_template_content_format: "auto" or "string"; parts of text are joined.
            add_generation_prompt: End the prompt where the model's answer begins.
            continue_final_message: Go on with the last message instead; needs
                add_generation_prompt=False.
            tools: Tools for the template, in OpenAI's form. Calls come back as text.
            chat_template_kwargs: Further variables for the template.
        """
        refuse_lora(lora_request)
        if chat_template_content_format not in ("auto", "string"):
            raise InvalidArgumentError(
                f"chat_template_content_format={chat_template_content_format!r} is not supported: "
                "'string' joins the parts of a message"
            )
        prompts = self._core.chat_prompts(
            messages,
            chat_template=chat_template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            chat_template_kwargs=chat_template_kwargs,
        )
        return self._run(prompts, sampling_params, use_tqdm, None)

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer: encode(), decode(), apply_chat_template()."""
        return Tokenizer(self._core)

    def get_default_sampling_params(self) -> SamplingParams:
        """What generate() uses when it is given none: the model makers' recommendation."""
        return self._core.default_params()

    def encode(
        self,
        prompts: Union[PromptType, Sequence[PromptType]],
        pooling_params: Union[None, PoolingParams, Sequence[PoolingParams]] = None,
        *,
        use_tqdm: UseTqdm = True,
        lora_request: Any = None,
        truncate_prompt_tokens: Optional[int] = None,
        pooling_task: Optional[str] = None,
    ) -> List[PoolingRequestOutput[PoolingOutput]]:
        """Reads prompts and gives the hidden state of each as one vector; vLLM's name for that.
        Token ids of a text are get_tokenizer().encode(text).

        Args:
            prompts: As for generate().
            pooling_params: For all prompts, or one for each: which state, and how it is scaled.
            use_tqdm: As for generate().
            truncate_prompt_tokens: As in PoolingParams.
            pooling_task: "embed", the only one.
        """
        refuse_lora(lora_request)
        read = read_prompts(prompts)
        given = pooling_params if isinstance(pooling_params, (list, tuple)) else [pooling_params]
        if len(given) == 1:
            given = list(given) * len(read)
        if len(given) != len(read):
            raise InvalidArgumentError(
                f"there are {len(read)} prompts and {len(given)} pooling_params: give one for all, "
                "or one for each"
            )
        options = {"truncate_prompt_tokens": truncate_prompt_tokens, "task": pooling_task}
        return self._pool(read, [read_pooling_params(one, options) for one in given], use_tqdm)

    def embed(
        self,
        prompts: Union[PromptType, Sequence[PromptType]],
        *,
        use_tqdm: UseTqdm = True,
        pooling_params: Union[None, PoolingParams, Sequence[PoolingParams]] = None,
        lora_request: Any = None,
        truncate_prompt_tokens: Optional[int] = None,
    ) -> List[PoolingRequestOutput[EmbeddingOutput]]:
        """The embedding of every prompt; arguments as for encode()."""
        outputs = self.encode(
            prompts,
            pooling_params,
            use_tqdm=use_tqdm,
            lora_request=lora_request,
            truncate_prompt_tokens=truncate_prompt_tokens,
        )
        return [
            PoolingRequestOutput(
                output.request_id,
                EmbeddingOutput(output.outputs.data),
                output.prompt_token_ids,
                True,
                output.num_cached_tokens,
            )
            for output in outputs
        ]

    def score(
        self,
        data_1: Union[str, List[str]],
        data_2: Union[str, List[str]],
        *,
        use_tqdm: UseTqdm = True,
        pooling_params: Optional[PoolingParams] = None,
        lora_request: Any = None,
        truncate_prompt_tokens: Optional[int] = None,
    ) -> List[PoolingRequestOutput[ScoringOutput]]:
        """How alike texts are: the cosine of their embeddings. One text is compared with each of
        the others, or as many with as many."""
        refuse_lora(lora_request)
        pairs = pairs_of(data_1, data_2)
        prompts = [
            prompt_of(text, f"text_{i + 1}") for pair in pairs for i, text in enumerate(pair)
        ]
        options = {"truncate_prompt_tokens": truncate_prompt_tokens, "normalize": True}
        params = [read_pooling_params(pooling_params, options)] * len(prompts)
        outputs = self._pool(prompts, params, use_tqdm)
        return [
            PoolingRequestOutput(
                left.request_id,
                ScoringOutput(cosine(left.outputs.data, right.outputs.data)),
                left.prompt_token_ids + right.prompt_token_ids,
                True,
                left.num_cached_tokens + right.num_cached_tokens,
            )
            for left, right in zip(outputs[::2], outputs[1::2])
        ]

    def classify(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Classification; refused: the models have no heads for it."""
        del args, kwargs
        raise refuse_pooling("classify()", "ask for one token and its logprobs with generate()")

    def reward(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Reward models; refused: the models have no heads for it."""
        del args, kwargs
        raise refuse_pooling("reward()", "ask for one token and its logprobs with generate()")

    def beam_search(
        self,
        prompts: Union[PromptType, Sequence[PromptType]],
        params: BeamSearchParams,
        lora_request: Any = None,
        use_tqdm: UseTqdm = False,
        concurrency_limit: Optional[int] = None,
    ) -> List[BeamSearchOutput]:
        """The likeliest continuations of every prompt, best first.

        Args:
            prompts: As for generate().
            params: How wide and how far to search.
            use_tqdm: As for generate().
            concurrency_limit: Without effect: the engine decides how many run at once.
        """
        refuse_lora(lora_request)
        del concurrency_limit
        core = self._core
        core.native.check_usable()
        read = read_prompts(prompts)
        own = params.sampling_params()
        collectors: List[Collector] = []
        requests: List[Any] = []
        for prompt in read:
            ids = core.tokenize(prompt, own, "the prompt")
            request = core.request(prompt, ids, own)
            request.beam_search(params.beam_width, params.length_penalty)
            requests.append(request)
            collectors.append(Collector(core, str(self._next_id), prompt, ids, own))
            self._next_id += 1
        bar = progress_bar(use_tqdm, len(read), "Beam search")
        try:
            _compute(core, requests, [own] * len(read), collectors, bar)
        finally:
            bar.close()
        outputs = [collector.output(RequestOutputKind.FINAL_ONLY) for collector in collectors]
        return [
            beam_output(output, output.prompt or core.native.decode(output.prompt_token_ids, True))
            for output in outputs
        ]

    def stats(self) -> Dict[str, Any]:
        """Figures of the engine since it was opened: tokens, steps, cache hits."""
        figures: Dict[str, Any] = self._core.native.stats()
        return figures

    @property
    def max_model_len(self) -> int:
        """Tokens that a prompt and its output may have together."""
        return self._core.max_model_len

    def close(self) -> None:
        """Ends what runs and frees the model. Idempotent; also done at exit."""
        self._core.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def _pool(
        self, prompts: List[Prompt], params: List[PoolingParams], use_tqdm: UseTqdm
    ) -> List[PoolingRequestOutput[PoolingOutput]]:
        core = self._core
        core.native.check_usable()
        collectors: List[PoolingCollector] = []
        requests: List[Any] = []
        for i, (prompt, own) in enumerate(zip(prompts, params)):
            ids = core.tokenize(prompt, own, "the prompt" if len(prompts) == 1 else f"prompts[{i}]")
            requests.append(core.pooling_request(prompt, ids, own))
            collectors.append(PoolingCollector(str(self._next_id), ids))
            self._next_id += 1
        bar = progress_bar(use_tqdm, len(prompts), "Processed prompts")
        try:
            _compute(core, requests, [SamplingParams()] * len(prompts), collectors, bar)
        finally:
            bar.close()
        return [collector.output() for collector in collectors]

    def _run(
        self,
        prompts: List[Prompt],
        sampling_params: Union[None, SamplingParams, Sequence[SamplingParams]],
        use_tqdm: UseTqdm,
        priority: Optional[List[int]],
    ) -> List[RequestOutput]:
        core = self._core
        core.native.check_usable()
        params = _one_each(sampling_params, len(prompts), core.default_params)
        if priority is not None and len(priority) != len(prompts):
            raise InvalidArgumentError(
                f"there are {len(prompts)} prompts and {len(priority)} priorities"
            )
        collectors: List[Collector] = []
        requests: List[Any] = []
        for i, (prompt, own) in enumerate(zip(prompts, params)):
            ids = core.tokenize(prompt, own, "the prompt" if len(prompts) == 1 else f"prompts[{i}]")
            requests.append(core.request(prompt, ids, own, priority[i] if priority else 0))
            collectors.append(Collector(core, str(self._next_id), prompt, ids, own))
            self._next_id += 1
        bar = progress_bar(use_tqdm, len(prompts), "Processed prompts")
        try:
            _compute(core, requests, params, collectors, bar)
        finally:
            bar.close()
        return [collector.output(RequestOutputKind.FINAL_ONLY) for collector in collectors]


def _one_each(
    given: Union[None, SamplingParams, Sequence[SamplingParams]],
    count: int,
    default: Callable[[], SamplingParams],
) -> List[SamplingParams]:
    if given is None:
        given = default()
    if isinstance(given, SamplingParams):
        return [given] * count
    if not isinstance(given, Sequence) or not all(isinstance(p, SamplingParams) for p in given):
        raise InvalidArgumentError(
            f"sampling_params must be a SamplingParams or a list of them, got {given!r}"
        )
    if len(given) != count:
        raise InvalidArgumentError(
            f"there are {count} prompts and {len(given)} sampling_params: give one for all, or one "
            "for each"
        )
    return list(given)


def _compute(core: Core, requests: List[Any], params: List[SamplingParams],
             collectors: Sequence[Union[Collector, PoolingCollector]], bar: Any) -> None:
    """Runs the requests; when it is left by an exception, they are cancelled."""
    # Enough that the engine never lacks work; the rest need not stand in its line.
    running_max = 2 * core.options.max_num_seqs
    batch = _kun.Batch(core.native)
    numbers: Dict[int, int] = {}
    next_index = running = ended = 0
    in_tokens = out_tokens = 0
    started = time.monotonic()
    try:
        while ended < len(requests):
            while next_index < len(requests) and (
                running == 0 or running + params[next_index].n <= running_max
            ):
                own = params[next_index]
                number = batch.add(requests[next_index], not own.ignore_eos)
                numbers[number] = next_index
                running += own.n
                next_index += 1
            for update in batch.wait(_WAIT_SECONDS):
                index = numbers[update.request]
                collector = collectors[index]
                collector.add(update)
                if not collector.finished:
                    continue
                ended += 1
                running -= params[index].n
                in_tokens += collector.prompt_token_count
                out_tokens += collector.token_count
                elapsed = max(time.monotonic() - started, 1e-9)
                bar.update(
                    1,
                    f", input {in_tokens / elapsed:.1f} tokens/s, "
                    f"output {out_tokens / elapsed:.1f} tokens/s",
                )
    finally:
        batch.cancel_all()
