"""modeling_smoe.py: a model of smoe.c in PyTorch, for Transformers: AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True).

Every block of the residual stream x has two parts:

    x = x + attention(norm(x))
    x = x + mlp(norm(x))

Both may be mixtures. A router gives every token K of E experts, each with a weight, and the answer is the weighted sum of theirs. An
expert of the MLP is a small MLP. An expert of attention (Zhang et al. 2022, arXiv 2210.05144) is a projection of queries and one of the
output; keys and values are shared by all. This is the same arithmetic as the trainer's, written to be read, not to be fast. Before a block,
rows of a table of pairs of tokens and the embedding may be mixed into x. The losses that balance experts are not here: to train the model
further, use smoe.c."""
import torch
from torch import nn
from torch.nn import functional as F
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicCache, DynamicLayer
from transformers.modeling_outputs import CausalLMOutputWithPast


class SmoeConfig(PretrainedConfig):
    model_type = "smoe"

    def __init__(self, vocab_size=256, hidden_size=128, num_hidden_layers=4, max_position_embeddings=2048, intermediate_size=128,
                 rms_norm_eps=1e-6, block_norm_eps=1e-6, tie_word_embeddings=True, num_attention_heads=4, num_key_value_heads=None,
                 head_dim=None, num_local_experts=8, num_experts_per_tok=2, num_attention_experts=1, num_attention_experts_per_tok=1,
                 shared_intermediate_size=0, router_scores="topk-softmax", router_choice_bias=0,
                 routed_scaling_factor=0.0, hidden_act="silu", universal=False, output_bias=False, qk_norm=0,
                 value_embedding_interval=0, value_embedding_gate=0, key_shift_interval=0, attention_window=0,
                 bigram_table_factor=0, stream_scalars=0, final_logit_softcapping=0.0, rope_theta=10000.0, rope_parameters=None, **others):
        self.vocab_size, self.hidden_size, self.num_hidden_layers = vocab_size, hidden_size, num_hidden_layers
        self.max_position_embeddings, self.intermediate_size = max_position_embeddings, intermediate_size
        self.rms_norm_eps, self.block_norm_eps = rms_norm_eps, block_norm_eps       # of the last norm, and of all others
        self.num_attention_heads, self.num_key_value_heads = num_attention_heads, num_key_value_heads or num_attention_heads
        self.head_dim = head_dim or hidden_size // num_attention_heads
        self.num_local_experts, self.num_experts_per_tok = num_local_experts, num_experts_per_tok       # 1, 1: one MLP, no router
        self.num_attention_experts, self.num_attention_experts_per_tok = num_attention_experts, num_attention_experts_per_tok
        self.shared_intermediate_size = shared_intermediate_size                    # of an MLP that every token has besides; 0: none
        self.router_scores, self.router_choice_bias = router_scores, router_choice_bias
        self.routed_scaling_factor = routed_scaling_factor                          # of MLP experts' weights; 0: none
        self.hidden_act = hidden_act                                                # silu (gated), gelu_pytorch_tanh or relu2
        self.universal = universal                                                  # every pass has the weights of one block
        self.output_bias, self.qk_norm = output_bias, qk_norm                       # qk_norm 1: of every head, 2: of all heads together
        self.value_embedding_interval, self.value_embedding_gate = value_embedding_interval, value_embedding_gate
        self.key_shift_interval = key_shift_interval        # the last layer and each n-th before it; 0: none
        self.attention_window = attention_window            # keys that a query sees in the other layers, itself included; 0: all
        self.bigram_table_factor, self.stream_scalars = bigram_table_factor, stream_scalars     # rows over the vocabulary's; 0 or 1
        self.final_logit_softcapping = final_logit_softcapping
        self.rope_theta = (rope_parameters or {}).get("rope_theta", rope_theta)
        self.rope_parameters = {"rope_type": "default", "rope_theta": self.rope_theta}
        if others.get("num_always_on_attention_experts"):
            raise ValueError("attention experts that every token has: the modeling_smoe.py that was saved with the model has them")
        super().__init__(tie_word_embeddings=tie_word_embeddings, **others)


class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        y = x if x.dtype == torch.float64 else x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight


class Router(nn.Module):
    def __init__(self, config, E, K):
        super().__init__()
        self.layer, self.K, self.scores = nn.Linear(config.hidden_size, E, bias=False), K, config.router_scores
        self.choice_bias = nn.Parameter(torch.zeros(E), requires_grad=False) if config.router_choice_bias else None

    def forward(self, x):
        """(N,C) -> the experts of every token and their weights, both (N,K). A bias counts for the choice, not in the weights."""
        logits = self.layer(x)
        logits = logits if x.dtype == torch.float64 else logits.float()
        p, s = logits.softmax(-1), logits.sigmoid()
        score = {"topk-softmax": logits, "softmax-topk": p, "softmax-renorm": p, "sigmoid": s, "sigmoid-each": s}[self.scores]
        choice = score if self.choice_bias is None else score + self.choice_bias
        expert = choice.topk(self.K, dim=-1).indices
        if self.scores in ("topk-softmax", "softmax-renorm"):
            weight = logits.gather(-1, expert).softmax(-1)
        else:
            weight = score.gather(-1, expert)
            if self.scores == "sigmoid":
                weight = weight / weight.sum(-1, keepdim=True)
        return expert, weight.to(x.dtype)


class Experts(nn.Module):
    """E matrices, of which every row of x is multiplied by one."""

    def __init__(self, E, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(E, outputs, inputs))

    def forward(self, x, expert):
        """x (N,K,inputs), expert (N,K) -> (N,K,outputs)"""
        y = x.new_empty(*expert.shape, self.weight.shape[1])
        for e in expert.unique().tolist():
            rows = expert == e
            y[rows] = F.linear(x[rows], self.weight[e])
        return y


def activation(x, kind):
    if kind == "silu":
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * up
    if kind == "gelu_pytorch_tanh":
        return F.gelu(x, approximate="tanh")
    if kind == "relu2":
        return F.relu(x).square()
    raise ValueError(f"hidden_act {kind} is not known here")


class SmoeMLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        C, width, E = config.hidden_size, config.intermediate_size, config.num_local_experts
        gate = 2 if config.hidden_act == "silu" else 1
        self.config, self.bias, shared = config, None, config.shared_intermediate_size
        if E > 1:
            self.router = Router(config, E, config.num_experts_per_tok)
            self.input_linear, self.output_linear = Experts(E, C, gate * width), Experts(E, width, C)
            if config.output_bias:
                self.bias = nn.Parameter(torch.zeros(C))
            if shared:
                self.shared_input_linear = nn.Linear(C, gate * shared, bias=False)
                self.shared_output_linear = nn.Linear(shared, C, bias=False)
        else:
            self.input_linear, self.output_linear = nn.Linear(C, gate * width, bias=False), nn.Linear(width, C, bias=False)

    def forward(self, x):
        """(N,C) -> (N,C)"""
        kind = self.config.hidden_act
        if self.config.num_local_experts == 1:
            return self.output_linear(activation(self.input_linear(x), kind))
        expert, weight = self.router(x)
        rows = x[:, None].expand(-1, expert.shape[1], -1)
        y = self.output_linear(activation(self.input_linear(rows, expert), kind), expert)
        y = (y * weight[..., None]).sum(1) * (self.config.routed_scaling_factor or 1)
        if self.bias is not None:
            y = y + self.bias
        if self.config.shared_intermediate_size:
            y = y + self.shared_output_linear(activation(self.shared_input_linear(x), kind))
        return y


class AttentionExperts(nn.Module):
    def __init__(self, config, heads):
        super().__init__()
        C, E = config.hidden_size, config.num_attention_experts
        self.router = Router(config, E, config.num_attention_experts_per_tok)
        self.input_linear, self.output_linear = Experts(E, C, heads), Experts(E, heads, C)
        self.bias = nn.Parameter(torch.zeros(C)) if config.output_bias and config.num_local_experts > 1 else None

    def answer(self, heads, expert, weight):
        y = (self.output_linear(heads, expert) * weight[..., None]).sum(1)
        return y if self.bias is None else y + self.bias


def rotate(x, position, theta):
    """Positions rotate the pairs (i, i + D/2) of every head. x (B,T,heads,D), position (B,T)"""
    D = x.shape[-1]
    exact = torch.float64 if x.dtype == torch.float64 else torch.float32
    frequency = 1.0 / theta ** (torch.arange(0, D, 2, dtype=exact, device=x.device) / D)
    angle = (position[..., None].to(exact) * frequency)[:, :, None]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def shifted(k, position):
    """Of every key a part becomes that of the token before, in its own sequence. k (B,G,keys,D), position (B,T) of the last T"""
    D, keys = k.shape[-1], torch.arange(k.shape[2], device=k.device)
    first = keys == k.shape[2] - 1 - position[:, -1:]                                   # after padding
    before = torch.where(first[:, None, :, None], k, k.roll(1, 2))
    return torch.where(torch.arange(D, device=k.device) % (D // 2) < D // 4, k, before)


class SmoeAttention(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        C, G, H, D = config.hidden_size, config.num_key_value_heads, config.num_attention_heads, config.head_dim
        self.config, self.layer = config, layer
        self.kv_proj = nn.Linear(C, 2 * G * D, bias=False)
        if config.num_attention_experts > 1:
            self.experts = AttentionExperts(config, G * D)
        else:
            self.q_proj, self.o_proj = nn.Linear(C, H * D, bias=False), nn.Linear(H * D, C, bias=False)
        if config.qk_norm:
            sizes = (D, D) if config.qk_norm == 1 else (H * D, G * D)
            self.q_norm, self.k_norm = (RMSNorm(size, config.block_norm_eps) for size in sizes)
        every = config.value_embedding_interval
        if every and (config.num_hidden_layers - 1 - layer) % every == 0:
            self.value_embed = nn.Embedding(config.vocab_size, G * D)
            if config.value_embedding_gate:
                self.value_gate = nn.Linear(min(C, 16), G, bias=False)

    def forward(self, x, tokens, position, mask, cache, layer):
        """x (B,T,C), tokens and position (B,T), mask (B,1,T,keys) -> (B,T,C). layer: of the cache"""
        c = self.config
        (B, T, C), G, D, Q = x.shape, c.num_key_value_heads, c.head_dim, c.num_attention_heads // c.num_key_value_heads
        mixture = c.num_attention_experts > 1
        if mixture:
            rows = x.reshape(B * T, C)
            expert, weight = self.experts.router(rows)
            q = self.experts.input_linear(rows[:, None].expand(-1, Q, -1), expert).reshape(B, T, Q * G * D)
        else:
            q = self.q_proj(x)
        k, v = self.kv_proj(x).chunk(2, dim=-1)
        if hasattr(self, "value_embed"):
            values = self.value_embed(tokens)
            if c.value_embedding_gate:
                gate = 2 * torch.sigmoid(self.value_gate(x[..., :self.value_gate.in_features]))
                values = (values.view(B, T, G, D) * gate[..., None]).view(B, T, G * D)
            v = v + values
        if c.qk_norm == 2:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = q.view(B, T, -1, D), k.view(B, T, G, D), v.view(B, T, G, D)
        if c.qk_norm == 1:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (y.transpose(1, 2) for y in (rotate(q, position, c.rope_theta), rotate(k, position, c.rope_theta), v))
        if cache is not None:
            k, v = cache.update(k, v, layer)
        if c.key_shift_interval and (c.num_hidden_layers - 1 - self.layer) % c.key_shift_interval == 0:
            k = shifted(k, position)
        elif c.attention_window:
            mask = mask & ~torch.ones_like(mask).tril(mask.shape[-1] - T - c.attention_window)
        # of a mixture the heads are (expert, G): head h has keys h % G; else h // Q
        k, v = (y.repeat(1, Q, 1, 1) if mixture else y.repeat_interleave(Q, 1) for y in (k, v))
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)
        if mixture:
            return self.experts.answer(heads.reshape(B * T, Q, G * D), expert, weight).view(B, T, C)
        return self.o_proj(heads.reshape(B, T, -1))


class SmoeBlock(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.block_norm_eps)
        self.self_attention = SmoeAttention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.block_norm_eps)
        self.mlp = SmoeMLP(config)
        if config.bigram_table_factor or config.stream_scalars:
            self.stream = nn.Parameter(torch.zeros(3))

    def forward(self, x, first, extra, *where):
        if first is not None:
            x = self.stream[0].exp() * x + self.stream[1] * first
        if extra is not None:
            x = x + (1 + self.stream[2]) * extra
        x = x + self.self_attention(self.input_layernorm(x), *where)
        return x + self.mlp(self.post_attention_layernorm(x).flatten(0, 1)).view_as(x)


def pair_bits(before, token, index):
    """64 random bits of a pair of tokens: splitmix64 in 64-bit integers, whose right shifts must not copy the sign."""
    def wrapped(n):
        return (n + 2 ** 63) % 2 ** 64 - 2 ** 63
    z = (before << 32 | token) + wrapped((index + 1) * 0x9E3779B97F4A7C15)
    for shift, factor in (30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB):
        z = (z ^ z >> shift & 2 ** (64 - shift) - 1) * wrapped(factor)
    return z ^ z >> 31 & 2 ** 33 - 1


class BigramEmbedding(nn.Embedding):
    def forward(self, token, before):
        """Row hash(pair), with signs of the pair. before: 1 + the token before, 0: there is none"""
        x = super().forward((pair_bits(before, token, 2 ** 32) >> 33 & 2 ** 31 - 1) % self.num_embeddings)
        bits = torch.stack([pair_bits(before, token, i) for i in range((x.shape[-1] + 63) // 64)], -1)
        signs = bits[..., None] >> torch.arange(64, device=token.device) & 1
        return x * (1 - 2 * signs.flatten(-2)[..., :x.shape[-1]]).to(x.dtype)


def tokens_before(tokens, position, cache, layer):
    """As BigramEmbedding has them. One more layer of the cache has the tokens."""
    seen = tokens[:, None, :, None]
    if cache is not None:
        while len(cache.layers) <= layer:
            cache.layers.append(DynamicLayer())
        seen, _ = cache.update(seen, seen, layer)
    before = F.pad(seen[:, 0, :, 0], (1, -1))[:, -tokens.shape[1]:]
    return torch.where(position == 0, 0, 1 + before)


class SmoePreTrainedModel(PreTrainedModel):
    config_class = SmoeConfig
    base_model_prefix = "model"
    _no_split_modules = ["SmoeBlock"]
    _supports_sdpa = True

    def _init_weights(self, module):
        for parameter in module.parameters(recurse=False):
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=getattr(self.config, "initializer_range", 0.02))


class SmoeModel(SmoePreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(SmoeBlock(config, i) for i in range(1 if config.universal else config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        if config.stream_scalars:
            self.embed_norm = RMSNorm(config.hidden_size, config.block_norm_eps)
        if config.bigram_table_factor:
            self.bigram_embed = BigramEmbedding(config.bigram_table_factor * config.vocab_size, config.hidden_size)
        self.post_init()

    def forward(self, tokens, attention_mask=None, position_ids=None, cache=None):
        (B, T), past = tokens.shape, 0 if cache is None else cache.get_seq_length()
        here = torch.arange(past, past + T, device=tokens.device)
        position = here.expand(B, -1) if position_ids is None else position_ids
        mask = (torch.arange(past + T, device=tokens.device) <= here[:, None])[None, None]
        if attention_mask is not None:          # 0: padding; a token always sees itself, so that no row is empty
            mask = mask & (attention_mask[:, None, None, :].bool() | (torch.arange(past + T, device=tokens.device) == here[:, None]))
        x, c, first, extra = self.embed_tokens(tokens), self.config, None, None
        if c.stream_scalars:
            x = first = self.embed_norm(x)
        if c.bigram_table_factor:
            extra = self.bigram_embed(tokens, tokens_before(tokens, position, cache, c.num_hidden_layers))
        for i in range(c.num_hidden_layers):
            x = self.layers[0 if c.universal else i](x, first, extra, tokens, position, mask, cache, i)
        return self.norm(x)


class SmoeForCausalLM(SmoePreTrainedModel, GenerationMixin):
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config):
        super().__init__(config)
        self.model = SmoeModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, input_ids, attention_mask=None, position_ids=None, past_key_values=None, labels=None, use_cache=None,
                logits_to_keep=0, cache=None, **unused):
        cache = past_key_values if cache is None else cache             # cache: its name since Transformers 5.24
        if use_cache and cache is None:
            cache = DynamicCache()
        x = self.model(input_ids, attention_mask, position_ids, cache)
        logits, cap = self.lm_head(x[:, -logits_to_keep:]), self.config.final_logit_softcapping
        if cap:
            logits = cap * torch.tanh(logits / cap)
        loss = None
        if labels is not None:                  # every token is to predict the next; -100: not counted
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
        name = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
        return CausalLMOutputWithPast(loss=loss, logits=logits, **{name: cache})
