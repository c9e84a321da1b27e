"""The keyword arguments of LLM: Kun's own, and all that vLLM knows, each of them honoured, accepted
with a warning, or refused with what to use instead."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, field, fields
from typing import Any, Dict, Optional, Tuple, Union

from .errors import InvalidArgumentError, KunWarning, UnimplementedError


@dataclass
class LlmOptions:
    """What LLM and AsyncLLM take by keyword, and honour."""

    model: str
    tokenizer: Optional[str] = None
    chat_template: Optional[str] = None
    dtype: Any = "auto"
    kv_cache_dtype: str = "auto"
    seed: Optional[int] = 0
    max_model_len: Union[None, int, str] = None
    kv_cache_memory_bytes: Optional[int] = None
    gpu_memory_utilization: Optional[float] = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_logprobs: int = 20
    enable_prefix_caching: bool = True
    generation_config: str = "auto"
    override_generation_config: Dict[str, Any] = field(default_factory=dict)
    speculative_config: Optional[Dict[str, Any]] = None
    tensor_parallel_size: int = 1
    threads: int = 0
    kernels: Optional[str] = None
    use_tqdm_on_load: bool = True


# Names of vLLM that make no difference here: the value that nobody needs to hear about, and why.
_NO_EFFECT: Dict[str, Tuple[Any, str]] = {
    "enforce_eager": (False, "Kun captures no graphs, every step runs eagerly"),
    "swap_space": (None, "a preempted sequence is computed again, nothing is swapped"),
    "trust_remote_code": (False, "Kun never runs code of a checkpoint"),
    "disable_custom_all_reduce": (False, "there is no all-reduce in one process"),
    "max_seq_len_to_capture": (None, "Kun captures no graphs"),
    "compilation_config": (None, "Kun compiles nothing at run time"),
    "cuda_graph_sizes": (None, "Kun captures no graphs"),
    "optimization_level": (None, "Kun compiles nothing at run time"),
    "disable_log_stats": (True, "Kun logs no statistics here; LLM.stats() gives them"),
    "enable_chunked_prefill": (True, "prompts are always computed in chunks"),
    "disable_async_output_proc": (False, "there is no such processor"),
    "async_scheduling": (None, "Kun plans steps its own way"),
    "num_scheduler_steps": (1, "Kun plans one step at a time"),
    "scheduling_policy": ("priority", "priorities always count, equal ones run in order"),
    "max_num_partial_prefills": (1, "the scheduler decides"),
    "max_long_partial_prefills": (1, "the scheduler decides"),
    "long_prefill_token_threshold": (0, "the scheduler decides"),
    "block_size": (None, "the model decides the length of its cache blocks"),
    "attention_backend": (None, "kernels= names Kun's kernel tables"),
    "model_impl": ("auto", "Kun has one implementation of each model"),
    "load_format": ("auto", "the files say what they are"),
    "quantization": (None, "the checkpoint says how its weights are stored"),
    "tokenizer_mode": ("auto", "Kun has one tokenizer"),
    "device": ("cpu", "Kun computes on the CPU"),
    "distributed_executor_backend": (None, "one process does all the work"),
    "served_model_name": (None, "names are for servers"),
    "hf_token": (None, "LLM downloads nothing; `kun pull` reads HF_TOKEN"),
    "limit_mm_per_prompt": (None, "Kun takes text only"),
    "mm_processor_kwargs": (None, "Kun takes text only"),
    "allowed_local_media_path": ("", "Kun takes text only"),
    "disable_mm_preprocessor_cache": (False, "Kun takes text only"),
    "structured_outputs_config": (None, "there is one implementation of structured outputs"),
    "guided_decoding_backend": ("auto", "there is one implementation of structured outputs"),
    "worker_cls": ("auto", "one process does all the work"),
    "attention_config": (None, "kernels= names Kun's kernel tables"),
    "collect_detailed_traces": (None, "Kun writes no traces here"),
}

# Names of vLLM whose other values change results or promise something: refused, with what to do.
_REFUSED: Dict[str, Tuple[Any, str]] = {
    "pipeline_parallel_size": (1, "threads= sets how many cores one process uses"),
    "data_parallel_size": (1, "start one process for each replica"),
    "enable_expert_parallel": (False, "threads= sets how many cores one process uses"),
    "cpu_offload_gb": (0, "the weights are in main memory already"),
    "revision": (None, "fetch that revision with `kun pull` and give its folder as model"),
    "code_revision": (None, "Kun never runs code of a checkpoint"),
    "tokenizer_revision": (None, "fetch it with `kun pull` and give its folder as tokenizer"),
    "download_dir": (None, "`kun pull` fetches models; KUN_HOME says where they are"),
    "hf_config_path": (None, "edit the config.json of the model's folder"),
    "hf_overrides": (None, "edit the config.json of the model's folder"),
    "skip_tokenizer_init": (False, "give prompt_token_ids and detokenize=False"),
    "runner": ("auto", "every model generates and embeds; none classifies"),
    "convert": ("auto", "every model generates and embeds; none classifies"),
    "task": ("auto", "every model generates and embeds; none classifies"),
    "override_pooler_config": (None, "give PoolingParams(pooling=...)"),
    "pooler_config": (None, "give PoolingParams(pooling=...)"),
    "enable_lora": (False, "merge the adapter into the checkpoint"),
    "max_loras": (None, "merge the adapter into the checkpoint"),
    "max_lora_rank": (None, "merge the adapter into the checkpoint"),
    "speculative_model": (None, "give speculative_config={'model': ...}"),
    "logits_processors": (None, "logit_bias and the penalties run in the engine"),
    "kv_transfer_config": (None, "the cache stays in its process"),
    "kv_events_config": (None, "the cache stays in its process"),
    "enable_sleep_mode": (False, "close() frees all memory"),
    "rope_scaling": (None, "edit the config.json of the model's folder"),
    "rope_theta": (None, "edit the config.json of the model's folder"),
    "logprobs_mode": ("raw_logprobs", "logprobs are those of the model's own distribution"),
    "enable_prompt_embeds": (False, "give text or token ids"),
}

_EQUIVALENT = {
    "runner": ("auto", "generate", "pooling"),
    "task": ("auto", "generate", "embed"),
    "convert": ("auto", "none", "embed"),
    "scheduling_policy": ("priority", "fcfs"),
    "load_format": ("auto", "gguf", "safetensors"),
    "tokenizer_mode": ("auto", "fast", "hf"),
    "device": ("cpu", "auto"),
    "distributed_executor_backend": ("mp", "uni"),
}

_DTYPES = {
    "auto": "auto",
    "bfloat16": "bfloat16",
    "float32": "float32",
    "float": "float32",
}


def read_options(model: Any, given: Dict[str, Any], function: str) -> LlmOptions:
    """Sorts out the keyword arguments of ``function``."""
    if not isinstance(model, (str, os.PathLike)):
        raise InvalidArgumentError(f"model must be a path or a name, got {model!r}")
    own = {option.name for option in fields(LlmOptions)}
    taken: Dict[str, Any] = {}
    for name, value in given.items():
        if name in own:
            taken[name] = value
        elif name in _NO_EFFECT:
            usual, reason = _NO_EFFECT[name]
            if not _is_usual(name, value, usual):
                warnings.warn(f"{name}={value!r} has no effect: {reason}", KunWarning, 3)
        elif name in _REFUSED:
            usual, instead = _REFUSED[name]
            if not _is_usual(name, value, usual):
                raise UnimplementedError(f"{name}={value!r} is not supported: {instead}")
        else:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
    options = LlmOptions(model=os.fspath(model), **taken)
    _check(options)
    return options


def _is_usual(name: str, value: Any, usual: Any) -> bool:
    return value is None or value == usual or value in _EQUIVALENT.get(name, ())


def _check(options: LlmOptions) -> None:
    def at_least(name: str, low: int) -> None:
        value = getattr(options, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            raise InvalidArgumentError(
                f"{name} must be an integer of at least {low}, got {value!r}"
            )

    if options.tensor_parallel_size != 1:
        raise UnimplementedError(
            f"tensor_parallel_size={options.tensor_parallel_size!r} is not supported: one process "
            "computes on all cores that it may use; threads= sets how many"
        )
    at_least("max_num_seqs", 1)
    at_least("max_num_batched_tokens", 1)
    at_least("max_logprobs", 0)
    at_least("threads", 0)
    options.dtype = _dtype(options.dtype)
    options.max_model_len = _length(options.max_model_len)
    if options.kv_cache_memory_bytes is not None:
        at_least("kv_cache_memory_bytes", 1)
    if options.gpu_memory_utilization is not None:
        _check_memory_share(options)
    if options.generation_config not in ("auto", "vllm"):
        raise UnimplementedError(
            f"generation_config={options.generation_config!r} is not supported: give 'auto' (the "
            "model's own defaults), 'vllm' (neutral ones) or override_generation_config"
        )


def _check_memory_share(options: LlmOptions) -> None:
    share = options.gpu_memory_utilization
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0.01 <= share <= 0.95:
        raise InvalidArgumentError(
            f"gpu_memory_utilization must be between 0.01 and 0.95, got {share!r}"
        )
    warnings.warn(
        f"gpu_memory_utilization={share!r} is the share of free main memory that the KV cache may "
        "take, for there is no GPU; kv_cache_memory_bytes= says it in bytes",
        KunWarning,
        5,
    )


def _dtype(value: Any) -> str:
    name = str(value)
    if name.startswith("torch."):
        name = name[len("torch.") :]
    if name in _DTYPES:
        return _DTYPES[name]
    if name in ("float16", "half"):
        raise UnimplementedError(
            f"dtype={name!r} is not supported: use 'auto' or 'bfloat16', which is as small, or "
            "'float32', which is exact; the weights may be stored in any of them"
        )
    raise InvalidArgumentError(f"dtype {name!r} is none of 'auto', 'bfloat16', 'float32'")


def _length(value: Union[None, int, str]) -> int:
    """4096, "32k" (x 1000), "32K" (x 1024), None, -1 or "auto": the model's own, which is 0."""
    if value in (None, -1, "auto", "-1"):
        return 0
    scale = 1
    text = str(value)
    if text[-1:] in ("k", "K"):
        scale = 1000 if text[-1] == "k" else 1024
        text = text[:-1]
    try:
        length = int(float(text) * scale)
    except (ValueError, OverflowError):
        length = 0
    if isinstance(value, bool) or not 1 <= length <= 2**30:
        raise InvalidArgumentError(
            f"max_model_len={value!r} is no length: give tokens, as 4096, '32k' or '32K'"
        )
    return length
