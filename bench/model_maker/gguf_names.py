"""How a checkpoint looks as GGUF: metadata keys, tensor names, and what is rearranged.

The correspondence of llama.cpp's converter (conversion/*.py, gguf-py/gguf/constants.py), checked
against files that it read.
"""

import dataclasses
import re

from model_maker import tensors

ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "deepseek": "deepseek",
                 "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2",
                 "deepseek_v32": "deepseek32", "deepseek_v4": "deepseek4"}

OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
           "embed": "token_embd", "norm": "output_norm", "head": "output",
           "hc_head_fn": "output_hc_fn", "hc_head_base": "output_hc_base",
           "hc_head_scale": "output_hc_scale"}

IN_LAYER = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.indexer.wq_b": "indexer.attn_q_b", "self_attn.indexer.wk": "indexer.attn_k",
    "self_attn.indexer.k_norm": "indexer.k_norm",
    "self_attn.indexer.weights_proj": "indexer.proj",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp", "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp", "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
    "attn_norm": "attn_norm", "ffn_norm": "ffn_norm", "attn.attn_sink": "attn_sinks",
    "attn.wq_a": "attn_q_a", "attn.q_norm": "attn_q_a_norm", "attn.wq_b": "attn_q_b",
    "attn.wkv": "attn_kv", "attn.kv_norm": "attn_kv_a_norm", "attn.wo_a": "attn_output_a",
    "attn.wo_b": "attn_output_b", "attn.compressor.ape": "attn_compressor_ape",
    "attn.compressor.wkv": "attn_compressor_kv", "attn.compressor.wgate": "attn_compressor_gate",
    "attn.compressor.norm": "attn_compressor_norm", "attn.indexer.wq_b": "indexer.attn_q_b",
    "attn.indexer.weights_proj": "indexer.proj",
    "attn.indexer.compressor.ape": "indexer_compressor_ape",
    "attn.indexer.compressor.wkv": "indexer_compressor_kv",
    "attn.indexer.compressor.wgate": "indexer_compressor_gate",
    "attn.indexer.compressor.norm": "indexer_compressor_norm",
    "hc_attn_fn": "hc_attn_fn", "hc_attn_base": "hc_attn_base", "hc_attn_scale": "hc_attn_scale",
    "hc_ffn_fn": "hc_ffn_fn", "hc_ffn_base": "hc_ffn_base", "hc_ffn_scale": "hc_ffn_scale",
    "ffn.gate": "ffn_gate_inp", "ffn.gate.bias": "exp_probs_b.bias",
    "ffn.gate.tid2eid": "ffn_gate_tid2eid", "ffn.shared_experts.w1": "ffn_gate_shexp",
    "ffn.shared_experts.w3": "ffn_up_shexp", "ffn.shared_experts.w2": "ffn_down_shexp",
}

EXPERTS = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps",
           "w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps"}

# Converters keep these in F32 whatever the file's type is.
KEPT = re.compile(r"(norm|ffn_gate_inp|_ape|hc_\w+)\.weight$|\.bias$|attn_sinks\.weight$")


@dataclasses.dataclass
class GgufTensor:
    """dims are ggml's, the contiguous one first. Values are those of `parts`, one after another,
    rearranged by `change`: "", "interleave" (rows of rotated heads), "key" or "value" (one half
    of kv_b_proj), "integers"."""
    name: str
    dims: tuple
    parts: list
    change: str = ""

    def is_kept(self):
        return len(self.dims) == 1 or KEPT.search(self.name) is not None


def split_name(name):
    """Layer prefix of the GGUF name, what is left of the Hugging Face name, suffix."""
    stem, dot, suffix = name.rpartition(".")
    if suffix not in ("weight", "bias") or name.endswith("ffn.gate.bias"):
        stem, dot, suffix = name, "", ""
    match = re.match(r"(?:model\.)?layers\.(\d+)\.(.*)$", stem)
    if match is None:
        return "", stem, dot + suffix
    return f"blk.{match.group(1)}.", match.group(2), dot + suffix


def gguf_name(prefix, stem, suffix):
    known = (IN_LAYER if prefix else OUTSIDE)[stem]
    if known.endswith(".bias"):
        return prefix + known
    return f"{prefix}{known}{suffix or '.weight'}"


def list_gguf_tensors(config, listed):
    rotated = config["model_type"] in ("llama", "deepseek")
    result, stacks = [], {}
    for tensor in listed:
        prefix, stem, suffix = split_name(tensor.name)
        expert = re.match(r"(?:mlp|ffn)\.experts\.(\d+)\.(\w+)$", stem)
        if expert is not None:
            name = f"{prefix}{EXPERTS[expert.group(2)]}.weight"
            if name not in stacks:
                count = config["n_routed_experts"]
                stacks[name] = GgufTensor(name, (*reversed(tensor.shape), count), [])
                result.append(stacks[name])
            stacks[name].parts.append(tensor)
        elif stem == "self_attn.kv_b_proj":
            result.extend(split_kv_b(config, prefix, tensor))
        else:
            change = ""
            if rotated and stem in ("self_attn.q_proj", "self_attn.k_proj"):
                change = "interleave"
            if tensor.dtype == "I64":
                change = "integers"
            result.append(GgufTensor(gguf_name(prefix, stem, suffix),
                                     tuple(reversed(tensor.shape)), [tensor], change))
    return result


def split_kv_b(config, prefix, tensor):
    heads, latent = config["num_attention_heads"], config["kv_lora_rank"]
    return [GgufTensor(f"{prefix}attn_k_b.weight", (config["qk_nope_head_dim"], latent, heads),
                       [tensor], "key"),
            GgufTensor(f"{prefix}attn_v_b.weight", (latent, config["v_head_dim"], heads),
                       [tensor], "value")]


def interleave(values, dim):
    """Rows of heads of `dim`: from pairs (i, i + dim/2) to pairs (2i, 2i + 1)."""
    rows, width = values.shape
    return values.reshape(rows // dim, 2, dim // 2, width).swapaxes(1, 2).reshape(rows, width)


def rearrange(config, change, values):
    if change == "interleave":
        return interleave(values, tensors.attention_shape(config)[2])
    heads, nope = config["num_attention_heads"], config["qk_nope_head_dim"]
    slabs = values.reshape(heads, -1, config["kv_lora_rank"])
    if change == "key":
        return slabs[:, :nope].swapaxes(1, 2).reshape(-1, nope)
    return slabs[:, nope:].reshape(-1, config["kv_lora_rank"])


# --- Metadata ------------------------------------------------------------------------------------


class Metadata:
    """Keys in order, as (name, GGUF type, value); an element type for arrays."""

    def __init__(self, prefix):
        self.prefix = prefix
        self.entries = []

    def u32(self, key, value):
        self.entries.append((f"{self.prefix}{key}", "u32", int(value)))

    def f32(self, key, value):
        self.entries.append((f"{self.prefix}{key}", "f32", float(value)))

    def boolean(self, key, value):
        self.entries.append((f"{self.prefix}{key}", "bool", bool(value)))

    def text(self, key, value):
        self.entries.append((f"{self.prefix}{key}", "string", value))

    def array(self, key, element, values):
        self.entries.append((f"{self.prefix}{key}", ("array", element), list(values)))


def metadata(config, name, file_type):
    architecture = ARCHITECTURES[config["model_type"]]
    out = Metadata("")
    out.text("general.architecture", architecture)
    out.text("general.name", name)
    out.u32("general.file_type", file_type)
    out.u32("general.quantization_version", 2)
    out.prefix = f"{architecture}."
    experts = config.get("n_routed_experts")
    out.u32("context_length", config["max_position_embeddings"])
    out.u32("embedding_length", config["hidden_size"])
    out.u32("block_count", config["num_hidden_layers"])
    out.u32("feed_forward_length",
            config.get("intermediate_size", config.get("moe_intermediate_size")))
    out.u32("vocab_size", config["vocab_size"])
    out.u32("attention.head_count", config["num_attention_heads"])
    out.f32("attention.layer_norm_rms_epsilon", config["rms_norm_eps"])
    out.f32("rope.freq_base", config["rope_theta"])
    add_heads(out, config, architecture)
    add_rope_scaling(out, config, architecture)
    if experts:
        add_experts(out, config)
    if "index_n_heads" in config:
        out.u32("attention.indexer.head_count", config["index_n_heads"])
        out.u32("attention.indexer.key_length", config["index_head_dim"])
        out.u32("attention.indexer.top_k", config["index_topk"])
    if architecture == "deepseek4":
        add_v4(out, config)
    out.prefix = ""
    return out


def add_heads(out, config, architecture):
    if "kv_lora_rank" not in config:
        _, kv_heads, dim = tensors.attention_shape(config)
        out.u32("attention.head_count_kv", kv_heads)
        out.u32("attention.key_length", dim)
        out.u32("attention.value_length", dim)
        rotated = config["qk_rope_head_dim"] if architecture == "deepseek4" else dim
        out.u32("rope.dimension_count", rotated)
        return
    latent, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
    out.u32("attention.head_count_kv", 1)
    out.u32("attention.key_length", latent + rope)
    out.u32("attention.value_length", latent)
    out.u32("attention.key_length_mla", config["qk_nope_head_dim"] + rope)
    out.u32("attention.value_length_mla", config["v_head_dim"])
    out.u32("attention.q_lora_rank", config.get("q_lora_rank") or 0)
    out.u32("attention.kv_lora_rank", latent)
    out.u32("rope.dimension_count", rope)


def add_rope_scaling(out, config, architecture):
    scaling = config.get("rope_scaling")
    if not scaling:
        return
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind == "llama3":
        return  # a tensor of divisors instead, see rope_divisors
    out.text("rope.scaling.type", kind)
    out.f32("rope.scaling.factor", scaling["factor"])
    if "original_max_position_embeddings" in scaling:
        out.u32("rope.scaling.original_context_length",
                scaling["original_max_position_embeddings"])
    if "attn_factor" in scaling:
        out.f32("rope.scaling.attn_factor", scaling["attn_factor"])
    if architecture in ("deepseek2", "deepseek32"):
        out.f32("rope.scaling.yarn_log_multiplier", 0.1 * scaling["mscale_all_dim"])


def add_experts(out, config):
    gating = {"softmax": 1, "sigmoid": 2, "sqrtsoftplus": 4}
    if "first_k_dense_replace" in config:
        out.u32("leading_dense_block_count", config["first_k_dense_replace"])
    out.u32("expert_feed_forward_length", config["moe_intermediate_size"])
    out.u32("expert_count", config["n_routed_experts"])
    out.u32("expert_used_count", config["num_experts_per_tok"])
    out.u32("expert_shared_count", config.get("n_shared_experts") or 0)
    out.f32("expert_weights_scale", config.get("routed_scaling_factor", 1.0))
    out.boolean("expert_weights_norm", config.get("norm_topk_prob", False))
    out.u32("expert_gating_func", gating[config["scoring_func"]])
    if (config.get("n_group") or 1) > 1:
        out.u32("expert_group_count", config["n_group"])
        out.u32("expert_group_used_count", config["topk_group"])


def add_v4(out, config):
    layers = config["num_hidden_layers"]
    clamp = [config["swiglu_limit"]] * layers
    out.u32("attention.q_lora_rank", config["q_lora_rank"])
    out.u32("attention.sliding_window", config["sliding_window"])
    out.u32("attention.output_group_count", config["o_groups"])
    out.u32("attention.output_lora_rank", config["o_lora_rank"])
    out.array("attention.compress_ratios", "u32", config["compress_ratios"][:layers])
    out.f32("attention.compress_rope_freq_base", config["compress_rope_theta"])
    out.u32("hyper_connection.count", config["hc_mult"])
    out.u32("hyper_connection.sinkhorn_iterations", config["hc_sinkhorn_iters"])
    out.f32("hyper_connection.epsilon", config["hc_eps"])
    out.u32("hash_layer_count", config["num_hash_layers"])
    out.array("swiglu_clamp_exp", "f32", clamp)
    out.array("swiglu_clamp_shexp", "f32", clamp)
    out.u32("embedding_length_out", config["hc_mult"] * config["hidden_size"])
