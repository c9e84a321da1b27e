"""A DeepSeek-V3 in PyTorch, small enough to train on a CPU: MLA, sigmoid gate with correction bias,
shared expert and the MTP module. Parameter names are those of DeepSeek's checkpoints, so that a
state_dict is a checkpoint. Formulas: DeepSeek-V3's technical report (arXiv 2412.19437) and the
README_WEIGHTS.md beside its weights.
"""

import torch
from torch import nn
from torch.nn import functional as F

CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 512,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_nextn_predict_layers": 1,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "q_lora_rank": 96,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "n_routed_experts": 16,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "max_position_embeddings": 256,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "bfloat16",
}


class Config:
    def __init__(self, values=None):
        self.__dict__.update(CONFIG if values is None else values)


class RmsNorm(nn.Module):
    def __init__(self, size, epsilon):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon) * self.weight


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


def rotate(x, cos, sin):
    """Turns the pairs (2i, 2i + 1) of the last axis; cos and sin: [position, pair]."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


class Attention(nn.Module):
    """Multi-head latent attention, the naive form."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        self.q_a_proj = linear(c.hidden_size, c.q_lora_rank)
        self.q_a_layernorm = RmsNorm(c.q_lora_rank, c.rms_norm_eps)
        self.q_b_proj = linear(c.q_lora_rank,
                               c.num_attention_heads * (c.qk_nope_head_dim + c.qk_rope_head_dim))
        self.kv_a_proj_with_mqa = linear(c.hidden_size, c.kv_lora_rank + c.qk_rope_head_dim)
        self.kv_a_layernorm = RmsNorm(c.kv_lora_rank, c.rms_norm_eps)
        self.kv_b_proj = linear(c.kv_lora_rank,
                                c.num_attention_heads * (c.qk_nope_head_dim + c.v_head_dim))
        self.o_proj = linear(c.num_attention_heads * c.v_head_dim, c.hidden_size)

    def forward(self, x, cos, sin, mask):
        c = self.c
        batch, length, _ = x.shape
        heads = c.num_attention_heads
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        q = q.view(batch, length, heads, -1).transpose(1, 2)
        q_nope, q_rope = q.split([c.qk_nope_head_dim, c.qk_rope_head_dim], -1)
        latent, k_rope = self.kv_a_proj_with_mqa(x).split([c.kv_lora_rank, c.qk_rope_head_dim], -1)
        kv = self.kv_b_proj(self.kv_a_layernorm(latent))
        k_nope, v = kv.view(batch, length, heads, -1).transpose(1, 2).split(
            [c.qk_nope_head_dim, c.v_head_dim], -1)
        k_rope = rotate(k_rope, cos, sin)[:, None].expand(-1, heads, -1, -1)
        q = torch.cat((q_nope, rotate(q_rope, cos, sin)), -1)
        k = torch.cat((k_nope, k_rope), -1)
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + mask
        out = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, -1)
        return self.o_proj(out)


class Mlp(nn.Module):
    def __init__(self, hidden, inner):
        super().__init__()
        self.gate_proj = linear(hidden, inner)
        self.up_proj = linear(hidden, inner)
        self.down_proj = linear(inner, hidden)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Gate(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.weight = nn.Parameter(torch.empty(c.n_routed_experts, c.hidden_size))
        # Not trained by gradients: it is moved against each expert's load.
        self.e_score_correction_bias = nn.Parameter(torch.zeros(c.n_routed_experts),
                                                    requires_grad=False)

    def forward(self, x):
        c = self.c
        scores = F.linear(x, self.weight).sigmoid()
        choice = scores.detach() + self.e_score_correction_bias
        groups = choice.view(len(x), c.n_group, -1)
        kept = groups.topk(2, -1).values.sum(-1).topk(c.topk_group, -1).indices
        allowed = torch.zeros(len(x), c.n_group, dtype=torch.bool).scatter_(1, kept, True)
        allowed = allowed.repeat_interleave(groups.shape[-1], 1)
        experts = choice.masked_fill(~allowed, -torch.inf).topk(c.num_experts_per_tok, -1).indices
        weights = scores.gather(1, experts)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * c.routed_scaling_factor
        return experts, weights


class Moe(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate = Gate(c)
        self.experts = nn.ModuleList(
            Mlp(c.hidden_size, c.moe_intermediate_size) for _ in range(c.n_routed_experts))
        self.shared_experts = Mlp(c.hidden_size, c.moe_intermediate_size * c.n_shared_experts)
        self.load = None  # tokens per expert, of the last forward()

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        chosen, weights = self.gate(flat)
        out = self.shared_experts(flat)
        per_token = chosen.shape[1]
        order = chosen.flatten().argsort()
        self.load = chosen.flatten().bincount(minlength=len(self.experts))
        begin = 0
        for expert, count in zip(self.experts, self.load.tolist()):
            mine = order[begin:begin + count]
            begin += count
            rows = torch.div(mine, per_token, rounding_mode="floor")
            out = out.index_add(0, rows, expert(flat[rows]) * weights.flatten()[mine, None])
        return out.view_as(x)


class Layer(nn.Module):
    def __init__(self, c, index):
        super().__init__()
        self.self_attn = Attention(c)
        dense = index < c.first_k_dense_replace
        self.mlp = Mlp(c.hidden_size, c.intermediate_size) if dense else Moe(c)
        self.input_layernorm = RmsNorm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, x, *where):
        x = x + self.self_attn(self.input_layernorm(x), *where)
        return x + self.mlp(self.post_attention_layernorm(x))


class MtpLayer(Layer):
    """Predicts the token after the next from the main model's hidden state and the next token."""

    def __init__(self, c, embedding, head):
        super().__init__(c, c.num_hidden_layers)
        self.embed_tokens = embedding
        self.enorm = RmsNorm(c.hidden_size, c.rms_norm_eps)
        self.hnorm = RmsNorm(c.hidden_size, c.rms_norm_eps)
        self.eh_proj = linear(2 * c.hidden_size, c.hidden_size)
        self.shared_head = nn.ModuleDict(
            {"norm": RmsNorm(c.hidden_size, c.rms_norm_eps), "head": head})

    def forward(self, hidden, next_tokens, *where):
        both = torch.cat((self.enorm(self.embed_tokens(next_tokens)), self.hnorm(hidden)), -1)
        x = super().forward(self.eh_proj(both), *where)
        return self.shared_head["head"](self.shared_head["norm"](x))


class Backbone(nn.Module):
    def __init__(self, c, head):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        layers = [Layer(c, i) for i in range(c.num_hidden_layers)]
        self.layers = nn.ModuleList(layers + [MtpLayer(c, self.embed_tokens, head)])
        self.norm = RmsNorm(c.hidden_size, c.rms_norm_eps)


class DeepseekV3(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.lm_head = linear(c.hidden_size, c.vocab_size)
        self.model = Backbone(c, self.lm_head)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def moe_layers(self):
        return [m for m in self.modules() if isinstance(m, Moe)]

    def forward(self, tokens):
        """tokens [batch, n] -> logits [batch, n, V], and MTP's [batch, n - 1, V], whose row i has
        seen token i + 1 and speaks of token i + 2."""
        c = self.c
        length = tokens.shape[1]
        frequency = c.rope_theta ** -(torch.arange(0, c.qk_rope_head_dim, 2) / c.qk_rope_head_dim)
        angle = torch.arange(length)[:, None] * frequency
        cos, sin = angle.cos(), angle.sin()
        mask = torch.full((length, length), -torch.inf).triu(1)
        x = self.model.embed_tokens(tokens)
        for layer in self.model.layers[:-1]:
            x = layer(x, cos, sin, mask)
        x = self.model.norm(x)
        mtp = self.model.layers[-1](x[:, :-1], tokens[:, 1:], cos[:-1], sin[:-1], mask[:-1, :-1])
        return self.lm_head(x), mtp
