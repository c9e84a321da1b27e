"""Named shapes: the config.json of released models, for weights that are random.

Numbers are those of the released config.json files. What a benchmark may change is the depth and
the number of experts; everything that sets the cost of one layer stays.
"""

import copy
import json
import pathlib

R1_DISTILL_QWEN_1_5B = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 1536,
    "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
    "num_key_value_heads": 2, "vocab_size": 151936, "rope_theta": 10000.0, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False, "max_position_embeddings": 131072, "bos_token_id": 151646,
    "eos_token_id": 151643,
}

R1_DISTILL_QWEN_7B = R1_DISTILL_QWEN_1_5B | {
    "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28,
    "num_key_value_heads": 4, "vocab_size": 152064,
}

QWEN2_5_0_5B = R1_DISTILL_QWEN_1_5B | {
    "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
    "num_attention_heads": 14, "rope_theta": 1000000.0, "tie_word_embeddings": True,
    "max_position_embeddings": 32768, "bos_token_id": 151643, "eos_token_id": 151645,
}

R1_0528_QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096,
    "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "max_position_embeddings": 131072,
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                     "original_max_position_embeddings": 32768,
                     "attn_factor": 0.8782488562869419},
    "bos_token_id": 151643, "eos_token_id": 151645,
}

SMOLLM2_135M = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576,
    "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "vocab_size": 49152, "rope_theta": 100000.0, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True, "max_position_embeddings": 8192, "bos_token_id": 1,
    "eos_token_id": 2,
}

LLAMA_3_2_1B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048,
    "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256, "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "max_position_embeddings": 131072,
    "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
                     "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
    "bos_token_id": 128000, "eos_token_id": 128001,
}

LLAMA_3_1_8B = LLAMA_3_2_1B | {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "head_dim": 128,
    "tie_word_embeddings": False,
    "rope_scaling": LLAMA_3_2_1B["rope_scaling"] | {"factor": 8.0},
}

YARN_40 = {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1,
           "original_max_position_embeddings": 4096, "mscale": 1.0, "mscale_all_dim": 1.0}

DEEPSEEK_V2_LITE = {
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "hidden_size": 2048,
    "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_hidden_layers": 27,
    "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": None,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6,
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "scoring_func": "softmax",
    "topk_method": "greedy", "n_group": 1, "topk_group": 1, "norm_topk_prob": False,
    "routed_scaling_factor": 1.0, "vocab_size": 102400, "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "max_position_embeddings": 163840,
    "rope_scaling": YARN_40 | {"mscale": 0.707, "mscale_all_dim": 0.707},
    "bos_token_id": 100000, "eos_token_id": 100001,
}

DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 7168,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61,
    "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "first_k_dense_replace": 3, "moe_layer_freq": 1, "scoring_func": "sigmoid",
    "topk_method": "noaux_tc", "n_group": 8, "topk_group": 4, "norm_topk_prob": True,
    "routed_scaling_factor": 2.5, "vocab_size": 129280, "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "max_position_embeddings": 163840,
    "rope_scaling": YARN_40, "bos_token_id": 0, "eos_token_id": 1,
}

DEEPSEEK_V3_2 = DEEPSEEK_V3 | {
    "architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32",
    "index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048,
}

DEEPSEEK_V4_FLASH = {
    "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "hidden_size": 4096,
    "num_hidden_layers": 43, "num_attention_heads": 64, "num_key_value_heads": 1,
    "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 1024, "o_lora_rank": 1024,
    "o_groups": 8, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 6, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc",
    "norm_topk_prob": True, "routed_scaling_factor": 1.5, "num_hash_layers": 3,
    "swiglu_limit": 10.0, "sliding_window": 128, "hc_mult": 4, "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6, "index_n_heads": 64, "index_head_dim": 128, "index_topk": 512,
    "rope_theta": 10000.0, "compress_rope_theta": 160000.0,
    "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536,
                     "beta_fast": 32, "beta_slow": 1},
    "compress_ratios": [0, 0] + [4, 128] * 20 + [4, 0], "num_nextn_predict_layers": 0,
    "max_position_embeddings": 1048576, "rms_norm_eps": 1e-6, "vocab_size": 129280,
    "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1,
}

# Small ones for tests: every width a multiple of 256, so that every block format fits.
TINY_QWEN2 = R1_DISTILL_QWEN_1_5B | {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1024, "bos_token_id": 1000,
    "eos_token_id": 1001, "max_position_embeddings": 4096,
}
TINY_LLAMA = LLAMA_3_2_1B | {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1024, "bos_token_id": 1000,
    "eos_token_id": 1001, "max_position_embeddings": 4096,
}

NAMED = {
    "r1-distill-qwen-1.5b": R1_DISTILL_QWEN_1_5B,
    "r1-distill-qwen-7b": R1_DISTILL_QWEN_7B,
    "qwen2.5-0.5b": QWEN2_5_0_5B,
    "r1-0528-qwen3-8b": R1_0528_QWEN3_8B,
    "smollm2-135m": SMOLLM2_135M,
    "llama-3.2-1b": LLAMA_3_2_1B,
    "llama-3.1-8b": LLAMA_3_1_8B,
    "deepseek-v2-lite": DEEPSEEK_V2_LITE,
    "deepseek-v3": DEEPSEEK_V3,
    "deepseek-v3.2": DEEPSEEK_V3_2,
    "deepseek-v4-flash": DEEPSEEK_V4_FLASH,
    "tiny-qwen2": TINY_QWEN2,
    "tiny-llama": TINY_LLAMA,
}


def read_shape(name):
    """The config of a named shape, or of a config.json."""
    if name in NAMED:
        config = copy.deepcopy(NAMED[name])
        config["hidden_act"] = "silu"
        return config
    path = pathlib.Path(name)
    if not path.is_file():
        raise SystemExit(f"make_model: {name} is neither a config.json nor one of "
                         f"{', '.join(sorted(NAMED))}")
    return json.loads(path.read_text(encoding="utf-8"))


def cut(config, layers, experts):
    """Fewer layers or experts than the shape has; dense and hashed layers at its start stay."""
    if layers is not None:
        if not 1 <= layers <= config["num_hidden_layers"]:
            raise SystemExit(f"make_model: --layers must be 1 to {config['num_hidden_layers']}")
        config["num_hidden_layers"] = layers
        if "compress_ratios" in config:
            config["compress_ratios"] = config["compress_ratios"][:layers]
    if experts is not None:
        had = config.get("n_routed_experts")
        if had is None:
            raise SystemExit("make_model: --experts is given, and this shape has none")
        groups = config.get("n_group") or 1
        least = max(config["num_experts_per_tok"], 2 * groups)
        if not least <= experts <= had or experts % groups != 0:
            raise SystemExit(f"make_model: --experts must be {least} to {had}"
                             f" in steps of {groups}")
        config["n_routed_experts"] = experts
    return config
