"""The tensors of a model under their Hugging Face names, with the spread of their random values.

Spreads keep activations near one: a matrix has 1/sqrt(inputs), and what is added to the residual
stream is scaled down by the depth. So attention scores, gates and logits look like a trained
model's in magnitude, and nothing overflows in any format.
"""

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Tensor:
    """One tensor of the checkpoint. shape is [out, in]; dtype is safetensors' name."""
    name: str
    shape: tuple
    std: float
    mean: float = 0.0
    dtype: str = "BF16"
    index_max: int = 0  # for integers: uniform in [0, index_max)

    def count(self):
        return math.prod(self.shape)


def matrix(name, out, width, scale=1.0, dtype="BF16"):
    return Tensor(f"{name}.weight", (out, width), scale / math.sqrt(width), dtype=dtype)


def norm(name, width):
    return Tensor(f"{name}.weight", (width,), 0.1, mean=1.0)


class Builder:
    """Walks a config and collects tensors in the order of the files."""

    def __init__(self, config):
        self.config = config
        self.tensors = []
        self.hidden = config["hidden_size"]
        # What a layer adds twice: o_proj and down_proj.
        self.residual = 1.0 / math.sqrt(2.0 * config["num_hidden_layers"])

    def add(self, *tensors):
        self.tensors.extend(tensors)

    def build(self):
        model = self.config["model_type"]
        if model == "deepseek_v4":
            self.add_v4()
            return self.tensors
        vocabulary = self.config["vocab_size"]
        self.add(matrix("model.embed_tokens", vocabulary, self.hidden))
        layers = self.config["num_hidden_layers"]
        for layer in range(layers):
            self.add_layer(layer)
        for layer in range(layers, layers + self.config.get("num_nextn_predict_layers", 0)):
            self.add_next_token_module(layer)
        self.add(norm("model.norm", self.hidden))
        if not self.config.get("tie_word_embeddings", False):
            self.add(matrix("lm_head", vocabulary, self.hidden, 2.0))
        return self.tensors

    def add_layer(self, layer):
        prefix = f"model.layers.{layer}"
        self.add(norm(f"{prefix}.input_layernorm", self.hidden))
        if "kv_lora_rank" in self.config:
            self.add_latent_attention(f"{prefix}.self_attn")
        else:
            self.add_attention(f"{prefix}.self_attn")
        self.add(norm(f"{prefix}.post_attention_layernorm", self.hidden))
        if is_expert_layer(self.config, layer):
            self.add_experts(f"{prefix}.mlp")
        else:
            self.add_mlp(f"{prefix}.mlp", self.config["intermediate_size"])

    def add_next_token_module(self, layer):
        prefix = f"model.layers.{layer}"
        self.add(norm(f"{prefix}.enorm", self.hidden), norm(f"{prefix}.hnorm", self.hidden),
                 matrix(f"{prefix}.eh_proj", self.hidden, 2 * self.hidden))
        self.add_layer(layer)
        self.add(norm(f"{prefix}.shared_head.norm", self.hidden))

    def add_attention(self, prefix):
        heads, kv_heads, dim = attention_shape(self.config)
        bias = self.config["model_type"] == "qwen2"
        for part, rows in (("q_proj", heads * dim), ("k_proj", kv_heads * dim),
                           ("v_proj", kv_heads * dim)):
            self.add(matrix(f"{prefix}.{part}", rows, self.hidden))
            if bias:
                self.add(Tensor(f"{prefix}.{part}.bias", (rows,), 0.1))
        self.add(matrix(f"{prefix}.o_proj", self.hidden, heads * dim, self.residual))
        if self.config["model_type"] == "qwen3":
            self.add(norm(f"{prefix}.q_norm", dim), norm(f"{prefix}.k_norm", dim))

    def add_latent_attention(self, prefix):
        config = self.config
        heads = config["num_attention_heads"]
        key = config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
        latent = config["kv_lora_rank"]
        query_rank = config.get("q_lora_rank")
        if query_rank:
            self.add(matrix(f"{prefix}.q_a_proj", query_rank, self.hidden),
                     norm(f"{prefix}.q_a_layernorm", query_rank),
                     matrix(f"{prefix}.q_b_proj", heads * key, query_rank))
        else:
            self.add(matrix(f"{prefix}.q_proj", heads * key, self.hidden))
        self.add(
            matrix(f"{prefix}.kv_a_proj_with_mqa", latent + config["qk_rope_head_dim"],
                   self.hidden),
            norm(f"{prefix}.kv_a_layernorm", latent),
            matrix(f"{prefix}.kv_b_proj",
                   heads * (config["qk_nope_head_dim"] + config["v_head_dim"]), latent),
            matrix(f"{prefix}.o_proj", self.hidden, heads * config["v_head_dim"], self.residual))
        if config["model_type"] != "deepseek_v32":
            return
        index_dim, index_heads = config["index_head_dim"], config["index_n_heads"]
        self.add(matrix(f"{prefix}.indexer.wq_b", index_heads * index_dim, query_rank),
                 matrix(f"{prefix}.indexer.wk", index_dim, self.hidden),
                 norm(f"{prefix}.indexer.k_norm", index_dim),
                 Tensor(f"{prefix}.indexer.k_norm.bias", (index_dim,), 0.1),
                 matrix(f"{prefix}.indexer.weights_proj", index_heads, self.hidden))

    def add_mlp(self, prefix, width, names=("gate_proj", "up_proj", "down_proj")):
        gate, up, down = names
        self.add(matrix(f"{prefix}.{gate}", width, self.hidden),
                 matrix(f"{prefix}.{up}", width, self.hidden),
                 matrix(f"{prefix}.{down}", self.hidden, width, self.residual))

    def add_experts(self, prefix):
        config = self.config
        experts, width = config["n_routed_experts"], config["moe_intermediate_size"]
        self.add(matrix(f"{prefix}.gate", experts, self.hidden))
        if config.get("topk_method") == "noaux_tc":
            self.add(Tensor(f"{prefix}.gate.e_score_correction_bias", (experts,), 0.02,
                            dtype="F32"))
        for expert in range(experts):
            self.add_mlp(f"{prefix}.experts.{expert}", width)
        if config.get("n_shared_experts"):
            self.add_mlp(f"{prefix}.shared_experts", width * config["n_shared_experts"])

    # --- V4 --------------------------------------------------------------------------------------

    def add_v4(self):
        vocabulary, streams = self.config["vocab_size"], self.config["hc_mult"]
        self.add(matrix("embed", vocabulary, self.hidden))
        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"layers.{layer}"
            self.add(norm(f"{prefix}.attn_norm", self.hidden))
            self.add_v4_attention(f"{prefix}.attn", self.config["compress_ratios"][layer])
            mix = (2 + streams) * streams
            for site in ("hc_attn", "hc_ffn"):
                self.add_mix(f"{prefix}.{site}", mix, 3)
            self.add(norm(f"{prefix}.ffn_norm", self.hidden))
            self.add_v4_experts(f"{prefix}.ffn", layer)
        self.add_mix("hc_head", streams, 1)
        self.add(norm("norm", self.hidden), matrix("head", vocabulary, self.hidden, 2.0))

    def add_mix(self, prefix, count, scales):
        width = self.config["hc_mult"] * self.hidden
        self.add(Tensor(f"{prefix}_fn", (count, width), 1.0 / math.sqrt(width), dtype="F32"),
                 Tensor(f"{prefix}_base", (count,), 0.1, dtype="F32"),
                 Tensor(f"{prefix}_scale", (scales,), 0.05, mean=0.5, dtype="F32"))

    def add_v4_attention(self, prefix, ratio):
        config = self.config
        heads, dim = config["num_attention_heads"], config["head_dim"]
        rank, groups = config["q_lora_rank"], config["o_groups"]
        joined = groups * config["o_lora_rank"]
        self.add(Tensor(f"{prefix}.attn_sink", (heads,), 0.5, dtype="F32"),
                 matrix(f"{prefix}.wq_a", rank, self.hidden), norm(f"{prefix}.q_norm", rank),
                 matrix(f"{prefix}.wq_b", heads * dim, rank),
                 matrix(f"{prefix}.wkv", dim, self.hidden), norm(f"{prefix}.kv_norm", dim),
                 matrix(f"{prefix}.wo_a", joined, heads // groups * dim),
                 matrix(f"{prefix}.wo_b", self.hidden, joined, self.residual))
        if ratio == 0:
            return
        self.add_compressor(f"{prefix}.compressor", ratio, dim)
        if ratio != 4:
            return
        index_dim, index_heads = config["index_head_dim"], config["index_n_heads"]
        self.add(matrix(f"{prefix}.indexer.wq_b", index_heads * index_dim, rank),
                 matrix(f"{prefix}.indexer.weights_proj", index_heads, self.hidden))
        self.add_compressor(f"{prefix}.indexer.compressor", ratio, index_dim)

    def add_compressor(self, prefix, ratio, dim):
        channels = dim * (2 if ratio == 4 else 1)
        self.add(Tensor(f"{prefix}.ape", (ratio, channels), 0.1, dtype="F32"),
                 matrix(f"{prefix}.wkv", channels, self.hidden),
                 matrix(f"{prefix}.wgate", channels, self.hidden), norm(f"{prefix}.norm", dim))

    def add_v4_experts(self, prefix, layer):
        config = self.config
        experts, chosen = config["n_routed_experts"], config["num_experts_per_tok"]
        self.add(matrix(f"{prefix}.gate", experts, self.hidden))
        if layer < config["num_hash_layers"]:
            self.add(Tensor(f"{prefix}.gate.tid2eid", (config["vocab_size"], chosen), 0.0,
                            dtype="I64", index_max=experts))
        else:
            self.add(Tensor(f"{prefix}.gate.bias", (experts,), 0.02, dtype="F32"))
        names = ("w1", "w3", "w2")
        for expert in range(experts):
            self.add_mlp(f"{prefix}.experts.{expert}", config["moe_intermediate_size"], names)
        self.add_mlp(f"{prefix}.shared_experts",
                     config["moe_intermediate_size"] * config["n_shared_experts"], names)


def attention_shape(config):
    """Query heads, key heads, width of a head."""
    heads = config["num_attention_heads"]
    return (heads, config.get("num_key_value_heads", heads),
            config.get("head_dim", config["hidden_size"] // heads))


def is_expert_layer(config, layer):
    if not config.get("n_routed_experts"):
        return False
    return layer >= config["first_k_dense_replace"] and layer % config["moe_layer_freq"] == 0


KNOWN = ("llama", "qwen2", "qwen3", "deepseek", "deepseek_v2", "deepseek_v3", "deepseek_v32",
         "deepseek_v4")


def list_tensors(config):
    if config.get("model_type") not in KNOWN:
        raise SystemExit(f"make_model: model type {config.get('model_type')!r} is none of "
                         f"{', '.join(KNOWN)}")
    return Builder(config).build()
