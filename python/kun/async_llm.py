"""AsyncLLM: the same engine for asyncio; results come as they are generated."""

from __future__ import annotations

import asyncio
import itertools
import threading
import weakref
from typing import Any, AsyncGenerator, Dict, List, Optional, Tuple, Union

from . import _kun
from ._core import Collector, Core, Tokenizer, refuse_lora
from ._options import read_options
from .errors import CancelledError, InvalidArgumentError
from .inputs import ChatMessage, Prompt, PromptType, read_prompt
from .outputs import RequestOutput
from .pooling import (
    PoolingCollector,
    PoolingOutput,
    PoolingParams,
    PoolingRequestOutput,
    read_pooling_params,
)
from .sampling_params import RequestOutputKind, SamplingParams

# Above this a text is tokenized in a thread of its own, so that the event loop goes on.
_LONG_TEXT = 1 << 14


class EngineArgs:
    """The arguments of an engine, kept for AsyncLLM.from_engine_args()."""

    def __init__(self, model: str, **options: Any) -> None:
        self.model = model
        self.options = options


AsyncEngineArgs = EngineArgs


class _Reader:
    """What a task waits on. Touched by its event loop only, but for hand_over()."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._updates: List[Any] = []  # bounded by the tokens of one request

    def hand_over(self, updates: List[Any]) -> bool:
        """From any thread; false when the event loop has gone."""
        try:
            self._loop.call_soon_threadsafe(self._take, updates)
        except RuntimeError:
            return False
        return True

    def _take(self, updates: List[Any]) -> None:
        self._updates += updates
        self._arrived.set()

    async def updates(self) -> List[Any]:
        await self._arrived.wait()
        self._arrived.clear()
        updates, self._updates = self._updates, []
        return updates


class _Aborted:
    """The update by which abort() ends a request."""

    def __init__(self) -> None:
        self.error = CancelledError("the request was aborted")


class _Pump:
    """One thread that waits for all requests of an engine and hands their updates to the tasks."""

    def __init__(self, core: Core) -> None:
        self._batch = _kun.Batch(core.native)
        self._lock = threading.Lock()
        self._readers: Dict[int, _Reader] = {}
        self._stopping = False
        self._thread: Optional[threading.Thread] = None

    def add(self, request: Any, model_end_tokens: bool, reader: _Reader) -> int:
        with self._lock:
            number: int = self._batch.add(request, model_end_tokens)
            self._readers[number] = reader
            if self._thread is None:
                # A daemon, for its end is arranged by stop(), which runs after such threads are
                # waited for.
                self._thread = threading.Thread(target=self._run, name="kun-pump", daemon=True)
                self._thread.start()
        return number

    def cancel(self, number: int) -> None:
        with self._lock:
            self._readers.pop(number, None)
            self._batch.cancel(number)

    def abort(self, number: int) -> None:
        with self._lock:
            reader = self._readers.get(number)
        self.cancel(number)
        if reader is not None:
            reader.hand_over([_Aborted()])

    def stop(self) -> None:
        self._stopping = True
        self._batch.wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        stopping = False
        while not stopping:
            stopping = self._stopping  # what came before stop() is still handed over
            waiting: Dict[int, List[Any]] = {}
            for update in self._batch.wait(0.0 if stopping else 10.0):
                waiting.setdefault(update.request, []).append(update)
            for number, updates in waiting.items():
                with self._lock:
                    reader = self._readers.get(number)
                if reader is not None and not reader.hand_over(updates):
                    self.cancel(number)


class AsyncLLM:
    """A model for asyncio; takes the same arguments as LLM.

    Every request is an async generator. Leaving it early (break, an exception, cancellation of the
    task) cancels the request. One AsyncLLM serves any number of tasks, of several event loops too.
    """

    def __init__(self, model: str, **options: Any) -> None:
        self._core = Core(read_options(model, options, "AsyncLLM"))
        self._pump = _Pump(self._core)
        self._numbers: Dict[str, int] = {}
        self._ids = itertools.count()
        # The pump's thread must end before the engine does: at exit, and when nobody holds this.
        self._finalizer = weakref.finalize(self, _shut_down, self._core, self._pump)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> "AsyncLLM":
        """An engine from arguments that were put together before."""
        return cls(engine_args.model, **engine_args.options)

    def generate(
        self,
        prompt: PromptType,
        sampling_params: Optional[SamplingParams] = None,
        request_id: Optional[str] = None,
        *,
        lora_request: Any = None,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Continues one prompt; gives results as ``sampling_params.output_kind`` says: each holding
        everything so far (the default), what is new, or only one at the end.

        Args:
            prompt: As for LLM.generate().
            sampling_params: None: get_default_sampling_params().
            request_id: The name for abort(); must not be in use. None: one is made.
            priority: Lower runs earlier.
        """
        refuse_lora(lora_request)
        return self._stream(read_prompt(prompt), sampling_params, request_id, priority)

    def chat(
        self,
        messages: List[ChatMessage],
        sampling_params: Optional[SamplingParams] = None,
        request_id: Optional[str] = None,
        *,
        priority: int = 0,
        **template: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Answers one conversation; ``template`` are the arguments of LLM.chat() about it."""
        prompt = self._core.chat_prompt(messages, **template)
        return self._stream(prompt, sampling_params, request_id, priority)

    async def abort(self, request_id: Union[str, List[str]]) -> None:
        """Cancels requests; their generators raise CancelledError. Unknown names are ignored."""
        for name in [request_id] if isinstance(request_id, str) else request_id:
            number = self._numbers.pop(name, None)
            if number is not None:
                self._pump.abort(number)

    async def encode(
        self,
        prompt: PromptType,
        pooling_params: Optional[PoolingParams] = None,
        request_id: Optional[str] = None,
        *,
        lora_request: Any = None,
    ) -> AsyncGenerator[PoolingRequestOutput[PoolingOutput], None]:
        """The hidden state of a prompt as one vector, in the one result there is."""
        refuse_lora(lora_request)
        params = read_pooling_params(pooling_params, {})
        read = read_prompt(prompt)
        ids = self._core.tokenize(read, params, "the prompt")
        name = request_id if request_id is not None else f"request-{next(self._ids)}"
        if name in self._numbers:
            raise InvalidArgumentError(f"the request id {name!r} is in use")
        collector = PoolingCollector(name, ids)
        reader = _Reader()
        number = self._pump.add(self._core.pooling_request(read, ids, params), True, reader)
        self._numbers[name] = number
        try:
            while not collector.finished:
                for update in await reader.updates():
                    collector.add(update)
            yield collector.output()
        finally:
            self._pump.cancel(number)
            if self._numbers.get(name) == number:
                del self._numbers[name]

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return Tokenizer(self._core)

    def get_default_sampling_params(self) -> SamplingParams:
        """The model makers' recommendation."""
        return self._core.default_params()

    def stats(self) -> Dict[str, Any]:
        """Figures of the engine since it was opened."""
        figures: Dict[str, Any] = self._core.native.stats()
        return figures

    @property
    def max_model_len(self) -> int:
        """Tokens that a prompt and its output may have together."""
        return self._core.max_model_len

    def shutdown(self) -> None:
        """Ends what runs and frees the model. Idempotent; also done at exit."""
        self._finalizer()

    close = shutdown

    async def __aenter__(self) -> "AsyncLLM":
        return self

    async def __aexit__(self, *exception: Any) -> None:
        self.shutdown()

    async def _stream(
        self,
        prompt: Prompt,
        sampling_params: Optional[SamplingParams],
        request_id: Optional[str],
        priority: int,
    ) -> AsyncGenerator[RequestOutput, None]:
        params = sampling_params if sampling_params is not None else self._core.default_params()
        name = request_id if request_id is not None else f"request-{next(self._ids)}"
        if name in self._numbers:
            raise InvalidArgumentError(f"the request id {name!r} is in use")
        ids, request = await self._prepare(prompt, params, priority)
        collector = Collector(self._core, name, prompt, ids, params)
        reader = _Reader()
        number = self._pump.add(request, not params.ignore_eos, reader)
        self._numbers[name] = number
        try:
            while not collector.finished:
                for update in await reader.updates():
                    collector.add(update)
                if collector.finished or params.output_kind is not RequestOutputKind.FINAL_ONLY:
                    yield collector.output(params.output_kind)
        finally:
            self._pump.cancel(number)
            if self._numbers.get(name) == number:
                del self._numbers[name]

    async def _prepare(self, prompt: Prompt, params: SamplingParams,
                       priority: int) -> Tuple[List[int], Any]:
        if prompt.text is not None and len(prompt.text) > _LONG_TEXT:
            loop = asyncio.get_running_loop()
            ids = await loop.run_in_executor(
                None, self._core.tokenize, prompt, params, "the prompt"
            )
        else:
            ids = self._core.tokenize(prompt, params, "the prompt")
        return ids, self._core.request(prompt, ids, params, priority)


def _shut_down(core: Core, pump: _Pump) -> None:
    core.close()  # its requests end, so that their tasks hear of it
    pump.stop()
