"""What LLM and AsyncLLM share: an open model, how a prompt becomes a request, and how updates add
up to results."""

from __future__ import annotations

import atexit
import json
import os
import random
import sys
import threading
import time
import weakref
from typing import Any, Dict, List, Optional, Union

from . import _kun
from ._options import LlmOptions
from ._progress import progress_bar
from .errors import InvalidArgumentError, UnimplementedError
from .inputs import Prompt, is_conversation, read_messages
from .outputs import CompletionOutput, Logprob, PromptLogprobs, RequestMetrics, RequestOutput
from .pooling import PoolingParams
from .sampling_params import RequestOutputKind, SamplingParams
from .structured_outputs import StructuredOutputsParams


class Core:
    """An open model with its engine. Thread-safe."""

    def __init__(self, options: LlmOptions) -> None:
        self.options = options
        self.native = _open(options)
        self.max_model_len: int = self.native.context_length
        self._random = random.Random(options.seed)
        self._lock = threading.Lock()
        self._texts: Dict[int, str] = {}
        _open_cores.add(self)

    def close(self) -> None:
        """Ends all generations and frees the model. Idempotent."""
        self.native.close()

    def default_params(self) -> SamplingParams:
        """Sampling parameters as the model's makers recommend them."""
        values: Dict[str, Any] = {}
        if self.options.generation_config == "auto":
            values.update(self.native.generation_defaults())
            values.pop("max_tokens", None)
        values.update(self.options.override_generation_config or {})
        if "max_new_tokens" in values:
            values["max_tokens"] = values.pop("max_new_tokens")
        try:
            return SamplingParams(**values)
        except TypeError as error:
            raise InvalidArgumentError(f"override_generation_config: {error}") from None

    def token_text(self, token: int) -> str:
        """The text of one token, kept because logprobs ask for the same ones again and again."""
        text = self._texts.get(token)
        if text is None:
            text = self._texts[token] = self.native.token_text(token)
        return text

    def tokenize(
        self, prompt: Prompt, params: Union[SamplingParams, PoolingParams], where: str
    ) -> List[int]:
        """The ids of a prompt, shortened as asked; they leave room for one output token."""
        ids = prompt.token_ids
        if ids is None:
            ids = self.native.encode(prompt.text or "", prompt.add_special_tokens)
        keep = params.truncate_prompt_tokens
        if keep is not None:
            room = self.max_model_len - max(1, params.max_tokens or 1)
            ids = ids[-(max(1, room) if keep < 0 else keep) :]
        if not ids:
            raise InvalidArgumentError(f"{where} is empty")
        size = self.native.vocabulary_size
        wrong = next((token for token in ids if not 0 <= token < size), None)
        if wrong is not None:
            raise InvalidArgumentError(f"{where} has {wrong}, which is none of {size} token ids")
        if len(ids) >= self.max_model_len:
            raise InvalidArgumentError(
                f"{where} has {len(ids)} tokens, and with the output at most {self.max_model_len} "
                "fit; shorten it, or give truncate_prompt_tokens or a larger max_model_len"
            )
        return ids

    def request(self, prompt: Prompt, ids: List[int], params: SamplingParams,
                priority: int = 0) -> _kun.Request:
        """The engine's form of a request."""
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(params, name) or 0
            if count > self.options.max_logprobs:
                raise InvalidArgumentError(
                    f"{name} is {count}, and at most {self.options.max_logprobs} are given; "
                    "LLM(max_logprobs=...) raises that"
                )
        if params.n > self.options.max_num_seqs:
            raise InvalidArgumentError(
                f"n is {params.n}, and at most max_num_seqs={self.options.max_num_seqs} sequences "
                "run at once"
            )
        request = _kun.Request()
        room = self.max_model_len - len(ids)
        request.prompt = ids
        request.max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        request.min_tokens = min(params.min_tokens, request.max_tokens)
        request.n = params.n
        request.end_tokens = list(params.stop_token_ids or [])
        request.priority = priority
        request.cache_salt = prompt.cache_salt
        if params.skip_reading_prefix_cache:
            request.cache_salt = os.urandom(16).hex()  # nobody else's prompts are under it
        request.temperature = params.temperature
        request.top_k = max(0, params.top_k)
        request.top_p = params.top_p
        request.min_p = params.min_p
        request.repetition_penalty = params.repetition_penalty
        request.frequency_penalty = params.frequency_penalty
        request.presence_penalty = params.presence_penalty
        request.seed = self._seed(params)
        request.logprobs = -1 if params.logprobs is None else params.logprobs
        request.logit_bias = self._logit_bias(params)
        request.prompt_logprobs = -1 if params.prompt_logprobs is None else params.prompt_logprobs
        request.allowed_token_ids = self._allowed(params)
        request.bad_words = self._bad_words(params)
        self._constrain(request, prompt, params)
        request.stop = list(params.stop or [])
        request.stop_token_ids = list(params.stop_token_ids or [])
        request.include_stop = params.include_stop_str_in_output
        request.skip_special_tokens = params.skip_special_tokens
        request.spaces_between_special_tokens = params.spaces_between_special_tokens
        request.detokenize = params.detokenize
        return request

    def pooling_request(self, prompt: Prompt, ids: List[int],
                        params: PoolingParams) -> _kun.Request:
        """The engine's form of a request for a hidden state."""
        request = _kun.Request()
        request.prompt = ids
        request.cache_salt = prompt.cache_salt
        request.pool(params.pooling, params.dimensions or 0, params.scaled)
        return request

    def _seed(self, params: SamplingParams) -> int:
        if params.seed is not None:
            return params.seed % 2**64
        with self._lock:
            return self._random.getrandbits(64)

    def _logit_bias(self, params: SamplingParams) -> List[Any]:
        size = self.native.vocabulary_size
        for token in params.logit_bias or {}:
            if not 0 <= token < size:
                raise InvalidArgumentError(f"logit_bias has {token}, which is no token id")
        return [(token, float(bias)) for token, bias in (params.logit_bias or {}).items()]

    def _allowed(self, params: SamplingParams) -> List[int]:
        allowed = sorted(set(params.allowed_token_ids or []))
        if allowed and allowed[-1] >= self.native.vocabulary_size:
            raise InvalidArgumentError(f"allowed_token_ids has {allowed[-1]}, which is no token id")
        return allowed

    def _bad_words(self, params: SamplingParams) -> List[List[int]]:
        # Inside of a text and at its beginning words have other tokens.
        forms = [form for word in params.bad_words or [] for form in (word, " " + word)]
        return [ids for ids in (self.native.encode(form, False) for form in forms) if ids]

    def _constrain(self, request: _kun.Request, prompt: Prompt, params: SamplingParams) -> None:
        wanted = params.structured_outputs
        if not isinstance(wanted, StructuredOutputsParams):
            return
        kind, texts = wanted.demand()
        grammar = self.native.compile_grammar(
            kind,
            texts,
            wanted.whitespace_pattern or "",
            wanted.disable_any_whitespace,
            wanted.disable_additional_properties,
        )
        thinks = (prompt.text or "").rstrip(" \t\r\n").endswith("<think>")
        request.constrain(grammar, thinks)

    def chat_prompt(
        self,
        messages: Any,
        where: str = "messages",
        *,
        chat_template: Optional[str] = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Optional[List[Dict[str, Any]]] = None,
        chat_template_kwargs: Optional[Dict[str, Any]] = None,
    ) -> Prompt:
        """The prompt that the model's template makes of a conversation."""
        read = read_messages(messages, where)
        if continue_final_message and add_generation_prompt:
            raise InvalidArgumentError(
                "continue_final_message needs add_generation_prompt=False"
            )
        final = read[-1]["content"]
        if continue_final_message and not (final or "").strip():
            raise InvalidArgumentError(f"{where} ends with nothing that could be continued")
        text = self.native.render_chat(
            _json(read, where),
            _json(tools, "tools") if tools else "",
            _json(chat_template_kwargs, "chat_template_kwargs") if chat_template_kwargs else "",
            add_generation_prompt,
            chat_template,
        )
        if continue_final_message:
            # Templates trim contents, so what counts is the trimmed content's last place.
            begin = text.rfind(final.strip())
            if begin < 0:
                raise InvalidArgumentError("the template does not show the message to continue")
            end = begin + len(final.strip())
            text = text[: begin + len(final)] if text.startswith(final, begin) else text[:end]
        return Prompt(text=text, add_special_tokens=False)

    def chat_prompts(self, messages: Any, **options: Any) -> List[Prompt]:
        """Prompts of one conversation or of several."""
        if is_conversation(messages):
            return [self.chat_prompt(messages, **options)]
        if not isinstance(messages, (list, tuple)) or not messages:
            raise InvalidArgumentError("messages must be a list of messages, and not empty")
        return [
            self.chat_prompt(conversation, f"messages[{i}]", **options)
            for i, conversation in enumerate(messages)
        ]


def _json(value: Any, what: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"{what} cannot be written as JSON: {error}") from None


def _open(options: LlmOptions) -> _kun.Llm:
    arguments = _kun.LlmArguments()
    arguments.model = options.model
    arguments.dtype = options.dtype
    arguments.kv_cache_dtype = str(options.kv_cache_dtype)
    arguments.kernels = options.kernels or ""
    arguments.threads = options.threads
    arguments.tokenizer = options.tokenizer or ""
    arguments.chat_template = options.chat_template or ""
    arguments.max_model_len = int(options.max_model_len or 0)  # read_options() has read it
    arguments.kv_cache_memory_bytes = options.kv_cache_memory_bytes or 0
    if options.gpu_memory_utilization is not None:
        arguments.memory_share = options.gpu_memory_utilization
    arguments.max_num_seqs = options.max_num_seqs
    arguments.max_num_batched_tokens = options.max_num_batched_tokens
    arguments.enable_prefix_caching = options.enable_prefix_caching
    if options.speculative_config:
        arguments.speculative_config = _json(options.speculative_config, "speculative_config")
    # Loading takes moments for small models: a bar is for terminals.
    if not options.use_tqdm_on_load or sys.stderr is None or not sys.stderr.isatty():
        return _kun.open_llm(arguments, None)
    bar = progress_bar(True, 100, "Loading weights")
    shown = 0

    def progress(done: int, total: int) -> None:
        nonlocal shown
        percent = min(100, 100 * done // max(1, total))
        if percent > shown:
            bar.update(percent - shown)
            shown = percent

    try:
        return _kun.open_llm(arguments, progress)
    finally:
        bar.close()


class _Choice:
    def __init__(self, index: int) -> None:
        self.index = index
        self.text = ""
        self.token_ids: List[int] = []
        self.logprobs: List[Dict[int, Logprob]] = []
        self.cumulative = 0.0
        self.finish_reason: Optional[str] = None
        self.stop_reason: Any = None
        self.sent_text = 0  # what DELTA results have given
        self.sent_tokens = 0


class Collector:
    """Adds up the updates of one request."""

    def __init__(self, core: Core, request_id: str, prompt: Prompt, ids: List[int],
                 params: SamplingParams) -> None:
        self._core = core
        self._params = params
        self._request_id = request_id
        self._prompt = prompt.text
        self._ids = ids
        self._choices = [_Choice(i) for i in range(params.n)]
        self._cached = 0
        self._prompt_logprobs: Optional[PromptLogprobs] = None
        if params.prompt_logprobs is not None:
            self._prompt_logprobs = [None]  # nothing comes before the first token
        self._metrics = RequestMetrics(arrival_time=time.monotonic())
        self.finished = False

    @property
    def token_count(self) -> int:
        return sum(len(choice.token_ids) for choice in self._choices)

    @property
    def prompt_token_count(self) -> int:
        return len(self._ids)

    def add(self, update: Any) -> None:
        """Raises what the request failed with."""
        if update.error is not None:
            raise update.error
        if self._prompt_logprobs is not None:
            self._prompt_logprobs += [self._row(row) for row in update.prompt_logprobs]
        choice = self._choices[update.choice]
        choice.text += update.text
        ids = update.token_ids
        choice.token_ids += ids
        if self._params.logprobs is not None and ids:
            self._add_logprobs(choice, update.logprobs)
        self._cached = max(self._cached, update.cached_count)
        if ids:
            self._metrics.last_token_time = time.monotonic()
            if self._metrics.first_token_time is None:
                self._metrics.first_token_time = self._metrics.last_token_time
                self._metrics.time_in_queue = update.queue_seconds
        if update.finish_reason is not None:
            choice.finish_reason = update.finish_reason
            choice.stop_reason = update.stop_reason
            self.finished = all(c.finish_reason is not None for c in self._choices)
            if self.finished:
                self._metrics.finished_time = time.monotonic()

    def _add_logprobs(self, choice: _Choice, rows: Any) -> None:
        for row in rows:
            choice.cumulative += row[0][1]
            choice.logprobs.append(self._row(row))

    def _row(self, row: Any) -> Dict[int, Logprob]:
        return {
            token: Logprob(logprob, rank or None, self._core.token_text(token))
            for token, logprob, rank in row
        }

    def output(self, kind: RequestOutputKind = RequestOutputKind.CUMULATIVE) -> RequestOutput:
        """The result so far; with DELTA, what is new since the last one."""
        is_delta = kind is RequestOutputKind.DELTA
        return RequestOutput(
            request_id=self._request_id,
            prompt=self._prompt,
            prompt_token_ids=self._ids,
            outputs=[self._completion(choice, is_delta) for choice in self._choices],
            finished=self.finished,
            prompt_logprobs=self._prompt_logprobs,
            metrics=self._metrics,
            num_cached_tokens=self._cached,
        )

    def _completion(self, choice: _Choice, is_delta: bool) -> CompletionOutput:
        text_from = choice.sent_text if is_delta else 0
        tokens_from = choice.sent_tokens if is_delta else 0
        choice.sent_text, choice.sent_tokens = len(choice.text), len(choice.token_ids)
        wants_logprobs = self._params.logprobs is not None
        return CompletionOutput(
            index=choice.index,
            text=choice.text[text_from:],
            token_ids=choice.token_ids[tokens_from:],
            cumulative_logprob=choice.cumulative if wants_logprobs else None,
            logprobs=choice.logprobs[tokens_from:] if wants_logprobs else None,
            finish_reason=choice.finish_reason,
            stop_reason=choice.stop_reason,
        )


class Tokenizer:
    """The model's tokenizer. Thread-safe."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def encode(self, text: str, add_special_tokens: bool = True) -> List[int]:
        """The ids of ``text``."""
        ids: List[int] = self._core.native.encode(text, add_special_tokens)
        return ids

    def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
        """The text of ``ids``, which may be one id."""
        listed = [ids] if isinstance(ids, int) else list(ids)
        text: str = self._core.native.decode(listed, skip_special_tokens)
        return text

    def apply_chat_template(
        self,
        messages: List[Dict[str, Any]],
        tools: Optional[List[Dict[str, Any]]] = None,
        *,
        tokenize: bool = False,
        add_generation_prompt: bool = False,
        **kwargs: Any,
    ) -> Any:
        """The text of a conversation, or its ids with ``tokenize``; other keyword arguments are
        variables of the template."""
        prompt = self._core.chat_prompt(
            messages,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            chat_template_kwargs=kwargs or None,
        )
        return self.encode(prompt.text or "", False) if tokenize else prompt.text

    @property
    def vocab_size(self) -> int:
        """The highest id plus one."""
        size: int = self._core.native.vocabulary_size
        return size

    @property
    def bos_token_id(self) -> Optional[int]:
        """What a text begins with, if the model has it so."""
        token: Optional[int] = self._core.native.bos_token_id
        return token

    @property
    def eos_token_id(self) -> Optional[int]:
        """What ends a text."""
        token: Optional[int] = self._core.native.eos_token_id
        return token


def refuse_pooling(what: str, instead: str) -> UnimplementedError:
    """What classify() and reward() raise."""
    return UnimplementedError(
        f"{what} is not supported: the models generate and have no heads for it; {instead}"
    )


def refuse_lora(lora_request: Any) -> None:
    """Adapters change results, so they are not silently left out."""
    if lora_request is not None:
        raise UnimplementedError(
            "lora_request is not supported: merge the adapter into the checkpoint"
        )


# Engines end before the interpreter does: their threads must not outlive it.
_open_cores: "weakref.WeakSet[Core]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for core in list(_open_cores):
        core.close()
