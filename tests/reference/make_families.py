#!/usr/bin/env python3
"""make_families.py: writes tests/reference/families/, tiny models of the families that Transformers has, for tests/model/test_reference.c.

    python tests/reference/make_families.py [NAME ...]        needs torch, transformers 5 and safetensors

A folder each, of odd shapes, with an ingredient or more of its family: what save_pretrained writes, and expected.safetensors, all
of it computed in float64 (reference.py, all_float64) from the weights in the file:
    tokens, targets   I32 (B,T)    as in reference.py
    logits            F64 (B,T,V)
    loss              F64 (1)
    grad.<name>       F64          of every tensor in the file that has a gradient
    greedy            I32 (64)     the most likely tokens after the first 5 of tokens
and defaults.json: what the keys of config.json are when missing, in every family.
Weights are exact in bf16, so that the type of the file, which differs between families, does not matter. No choice of experts and no
greedy token hangs on a rounding error: perturbed weights choose alike, and in float32 gradients are right to 4e-6. A model whose
seed does not do gets another."""
import json
import pathlib
import shutil
import sys
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from reference import B, EXACT, T, all_float64, difference, gradients_of, mean_loss, require
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import modeling_rope_utils
from transformers.integrations import mxfp4

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "llmc" / "files"))
from modeling_smoe import SmoeConfig, SmoeForCausalLM

transformers.AutoConfig.register("smoe", SmoeConfig)
transformers.AutoModelForCausalLM.register(SmoeConfig, SmoeForCausalLM)
AUTO_MAP = {"AutoConfig": "modeling_smoe.SmoeConfig", "AutoModelForCausalLM": "modeling_smoe.SmoeForCausalLM"}
OUT = pathlib.Path(__file__).resolve().parent / "families"
COMMON = dict(max_position_embeddings=96, bos_token_id=1, eos_token_id=2, pad_token_id=0, vocab_size=29)
THETA = dict(rope_type="default", rope_theta=1e4)
LLAMA3 = dict(rope_type="llama3", rope_theta=500.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=24)
YARN = dict(rope_type="yarn", rope_theta=300.0, factor=3.0, original_max_position_embeddings=32)
GPT_YARN = dict(rope_type="yarn", rope_theta=700.0, factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                original_max_position_embeddings=24)
MLA_YARN = dict(rope_type="yarn", rope_theta=300.0, factor=4.0, original_max_position_embeddings=24, mscale=1.0, mscale_all_dim=0.7)
SIZES = dict(hidden_size=20, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
LATENT = dict(hidden_size=20, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4, moe_intermediate_size=7, intermediate_size=11)
SMOE = dict(**COMMON, hidden_size=20, num_attention_heads=4, num_key_value_heads=2, head_dim=6)
MOE = dict(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=7, intermediate_size=11)
# name: config, number type of the file, bytes of a shard
MODELS = {
    "llama_scaled": (transformers.LlamaConfig(**COMMON, **SIZES, intermediate_size=11, head_dim=6, attention_bias=True,
        rms_norm_eps=1e-4, rope_parameters=LLAMA3), torch.bfloat16, None),
    "qwen3": (transformers.Qwen3Config(**COMMON, hidden_size=20, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=3, head_dim=8, intermediate_size=11, rope_parameters=YARN, tie_word_embeddings=True),
        torch.bfloat16, None),
    "mixtral_linear": (transformers.MixtralConfig(**COMMON, **SIZES, intermediate_size=9, num_local_experts=5,
        num_experts_per_tok=2, head_dim=8, rope_parameters=dict(rope_type="linear", rope_theta=1e3, factor=2.5)),
        torch.float32, None),
    "olmoe": (transformers.OlmoeConfig(**COMMON, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=10, num_experts=5, num_experts_per_tok=2, rope_parameters=THETA),
        torch.float32, None),
    "qwen3_moe": (transformers.Qwen3MoeConfig(**COMMON, **(SIZES | dict(num_hidden_layers=3)), **MOE, head_dim=6,
        norm_topk_prob=True, mlp_only_layers=[1], rope_parameters=THETA), torch.bfloat16, "9KB"),
    "granitemoe": (transformers.GraniteMoeConfig(**COMMON, **(SIZES | dict(hidden_size=24)), num_local_experts=5,
        num_experts_per_tok=2, intermediate_size=9, embedding_multiplier=3.0, residual_multiplier=0.22,
        attention_multiplier=0.17, logits_scaling=1.7, tie_word_embeddings=True, rope_parameters=THETA |
        dict(rope_theta=100.0)), torch.float32, None),
    "granitemoeshared": (transformers.GraniteMoeSharedConfig(**COMMON, **(SIZES | dict(hidden_size=24)),
        num_local_experts=5, num_experts_per_tok=3, intermediate_size=9, shared_intermediate_size=13,
        embedding_multiplier=2.0, residual_multiplier=0.7, attention_multiplier=0.5, logits_scaling=0.9,
        rope_parameters=THETA), torch.bfloat16, None),
    "qwen2_moe": (transformers.Qwen2MoeConfig(**COMMON, **(SIZES | dict(hidden_size=24, num_hidden_layers=3)), **MOE,
        shared_expert_intermediate_size=13, mlp_only_layers=[0], rope_parameters=THETA), torch.float32, None),
    "dots1": (transformers.Dots1Config(**COMMON, **(SIZES | dict(num_hidden_layers=3, hidden_size=24)),
        moe_intermediate_size=7, intermediate_size=11, n_routed_experts=6, num_experts_per_tok=2, n_shared_experts=2,
        first_k_dense_replace=1, routed_scaling_factor=2.5, norm_topk_prob=True, rope_parameters=THETA), torch.float64,
        None),
    "glm4_moe": (transformers.Glm4MoeConfig(**COMMON, **(SIZES | dict(num_hidden_layers=3)), head_dim=8,
        moe_intermediate_size=7, intermediate_size=11, n_routed_experts=9, num_experts_per_tok=2, n_group=3,
        topk_group=2, n_shared_experts=1, first_k_dense_replace=1, attention_bias=True, use_qk_norm=True,
        routed_scaling_factor=1.5, norm_topk_prob=True, rope_parameters=dict(rope_type="default", rope_theta=1e4,
        partial_rotary_factor=0.5)), torch.float32, None),
    "ernie4_5_moe": (transformers.Ernie4_5_MoeConfig(**COMMON, **(SIZES | dict(num_hidden_layers=3, hidden_size=24)),
        moe_intermediate_size=7, intermediate_size=11, moe_num_experts=6, moe_k=2, moe_num_shared_experts=2,
        moe_layer_start_index=1, rope_parameters=THETA), torch.bfloat16, None),
    "gpt_oss": (transformers.GptOssConfig(**COMMON, **(SIZES | dict(hidden_size=18, num_hidden_layers=3,
        num_attention_heads=6)), head_dim=8, intermediate_size=7, num_local_experts=5, num_experts_per_tok=2,
        sliding_window=4, rope_parameters=GPT_YARN), torch.bfloat16, None),
    "gpt_oss_mxfp4": (transformers.GptOssConfig(**COMMON, **(SIZES | dict(hidden_size=32)), head_dim=8,
        intermediate_size=32, num_local_experts=3, num_experts_per_tok=2, sliding_window=5, rope_parameters=GPT_YARN),
        torch.bfloat16, None),
    # latent attention: queries through a latent or not, keys with neighbouring pairs rotated or not, values narrower than keys or as wide
    "deepseek_v3": (transformers.DeepseekV3Config(**COMMON, **LATENT, q_lora_rank=6, kv_lora_rank=9, qk_nope_head_dim=5,
        qk_rope_head_dim=4, v_head_dim=7, n_routed_experts=9, num_experts_per_tok=2, n_group=3, topk_group=2,
        n_shared_experts=2, first_k_dense_replace=1, routed_scaling_factor=2.5, rms_norm_eps=1e-5,
        rope_parameters=MLA_YARN), torch.bfloat16, None),
    "deepseek_v3_plain": (transformers.DeepseekV3Config(**COMMON, **LATENT, q_lora_rank=None, kv_lora_rank=5,
        qk_nope_head_dim=4, qk_rope_head_dim=6, v_head_dim=10, n_routed_experts=6, num_experts_per_tok=3, n_group=1,
        topk_group=1, n_shared_experts=1, first_k_dense_replace=0, norm_topk_prob=False, rope_interleave=False,
        tie_word_embeddings=True, rope_parameters=THETA), torch.float32, None),
    "deepseek_v2": (transformers.DeepseekV2Config(**COMMON, **LATENT, q_lora_rank=None, kv_lora_rank=10,
        qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5, n_routed_experts=6, num_experts_per_tok=2,
        n_shared_experts=2, first_k_dense_replace=1, topk_method="greedy", rope_parameters=MLA_YARN | dict(
        mscale=0.707, mscale_all_dim=0.707)), torch.bfloat16, None),
    "deepseek_v2_groups": (transformers.DeepseekV2Config(**COMMON, **LATENT, q_lora_rank=7, kv_lora_rank=6,
        qk_nope_head_dim=4, qk_rope_head_dim=2, v_head_dim=4, n_routed_experts=9, num_experts_per_tok=2,
        n_shared_experts=1, first_k_dense_replace=1, topk_method="group_limited_greedy", n_group=3, topk_group=2,
        routed_scaling_factor=1.5, rope_parameters=THETA), torch.float64, None),
    # as it is published: weights in FP8 with scales, here powers of two, so that bf16 holds them
    "deepseek_v3_fp8": (transformers.DeepseekV3Config(**COMMON, **(LATENT | dict(num_hidden_layers=2)), q_lora_rank=6, kv_lora_rank=9,
        qk_nope_head_dim=5, qk_rope_head_dim=4, v_head_dim=7, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
        n_shared_experts=1, first_k_dense_replace=1, routed_scaling_factor=2.5, rope_parameters=THETA), torch.bfloat16, None),
    "glm4_moe_lite": (transformers.Glm4MoeLiteConfig(**COMMON, **LATENT, q_lora_rank=7, kv_lora_rank=6, qk_nope_head_dim=5,
        qk_rope_head_dim=4, v_head_dim=8, n_routed_experts=6, num_experts_per_tok=2, n_group=1, topk_group=1, n_shared_experts=1,
        mlp_layer_types=["dense", "sparse", "dense"], routed_scaling_factor=1.75, rope_parameters=THETA), torch.bfloat16, None),
    "solar_open": (transformers.SolarOpenConfig(**COMMON, **SIZES, head_dim=6, moe_intermediate_size=7, n_routed_experts=6,
        num_experts_per_tok=2, n_group=1, topk_group=1, n_shared_experts=1, attention_bias=True, routed_scaling_factor=1.5,
        rope_parameters=YARN), torch.float32, None),
    "minimax_m2": (transformers.MiniMaxM2Config(**COMMON, **SIZES, head_dim=8, intermediate_size=9, num_local_experts=5,
        num_experts_per_tok=2, rope_parameters=THETA | dict(partial_rotary_factor=0.5)), torch.bfloat16, None),
    "qwen2": (transformers.Qwen2Config(**COMMON, **(SIZES | dict(hidden_size=24)), intermediate_size=11, use_sliding_window=True, sliding_window=6,
        max_window_layers=1, tie_word_embeddings=True, rope_parameters=THETA), torch.float32, None),
    # windows: in all layers, in those that a family's rule says, and in those that are listed
    "mistral_window": (transformers.MistralConfig(**COMMON, **SIZES, intermediate_size=11, head_dim=6, sliding_window=5,
        rope_parameters=THETA), torch.bfloat16, None),
    "dots1_windows": (transformers.Dots1Config(**COMMON, **(SIZES | dict(num_hidden_layers=3, hidden_size=24)),
        moe_intermediate_size=7, intermediate_size=11, n_routed_experts=6, num_experts_per_tok=2, n_shared_experts=1,
        first_k_dense_replace=1, norm_topk_prob=True, sliding_window=4, max_window_layers=1, rope_parameters=THETA),
        torch.float32, None),
    "qwen2_moe_windows": (transformers.Qwen2MoeConfig(**COMMON, **(SIZES | dict(hidden_size=24, num_hidden_layers=3)),
        **MOE, shared_expert_intermediate_size=13, use_sliding_window=True, sliding_window=7,
        layer_types=["full_attention", "sliding_attention", "sliding_attention"], rope_parameters=THETA),
        torch.bfloat16, None),
    # what no published family has, by llmc/files/modeling_smoe.py
    "smoe_universal": (SmoeConfig(**SMOE, num_hidden_layers=3, intermediate_size=7, num_attention_experts=5,
        num_attention_experts_per_tok=2, num_local_experts=4, num_experts_per_tok=2, hidden_act="relu2",
        router_scores="sigmoid-each", universal=True, output_bias=True, tie_word_embeddings=True), torch.float32, None),
    "smoe_whole": (SmoeConfig(**SMOE, num_hidden_layers=2, intermediate_size=7, num_local_experts=5,
        num_experts_per_tok=2, hidden_act="gelu_pytorch_tanh", router_scores="softmax-topk", qk_norm=2,
        router_choice_bias=1, tie_word_embeddings=False), torch.float32, None),
    "smoe_renormalized": (SmoeConfig(**SMOE, num_hidden_layers=2, intermediate_size=7, num_local_experts=5,
        num_experts_per_tok=2, router_scores="softmax-renorm", value_embedding_interval=1, shared_intermediate_size=8,
        tie_word_embeddings=False), torch.float32, None),
    "smoe_dense": (SmoeConfig(**SMOE, num_hidden_layers=2, intermediate_size=11, num_local_experts=1,
        num_experts_per_tok=1, hidden_act="relu2", qk_norm=1, final_logit_softcapping=6.0, tie_word_embeddings=True),
        torch.float64, None),
    "smoe_tables": (SmoeConfig(**{**SMOE, "head_dim": 8}, num_hidden_layers=3, intermediate_size=7, num_local_experts=5,
        num_experts_per_tok=2, qk_norm=1, value_embedding_interval=2, value_embedding_gate=1, bigram_table_factor=2,
        stream_scalars=1, key_shift_interval=2, attention_window=7, tie_word_embeddings=True), torch.float32, None),
}
TOKENS = 64


# What a config.json of each family means where it says nothing: the defaults of its class, for tests/files/test_configs.c.
CLASSES = ["GptOss", "JetMoe", "Mixtral", "Llama", "Mistral", "Olmoe", "Qwen3", "Qwen3Moe", "Qwen2Moe", "GraniteMoe", "GraniteMoeShared", "Dots1",
           "Glm4Moe", "Ernie4_5_Moe", "DeepseekV3", "DeepseekV2", "Qwen2", "Glm4MoeLite", "SolarOpen", "MiniMaxM2"]


def write_defaults():
    """With what they leave open (the number of Dots' experts), and few layers."""
    given = {"Dots1": dict(n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1), "Mistral": dict(sliding_window=None),
             "Glm4Moe": dict(hidden_size=6144), "DeepseekV2": dict(num_experts_per_tok=6)}
    kept = {"transformers_version", "architectures", "dtype", "use_cache", "output_router_logits", "attention_dropout"}
    all_ = {}
    for name in CLASSES:
        c = getattr(transformers, name + "Config")(num_hidden_layers=4, **given.get(name, {}))
        all_[c.model_type] = {k: v for k, v in c.to_dict().items() if k not in kept and not k.endswith("token_id")
                              and not k.startswith(("_", "id2", "label2", "return_", "is_enc", "problem", "chunk", "output_"))}
    (OUT / "defaults.json").write_text(json.dumps(all_, indent=1, sort_keys=True) + "\n")


def randomize(model, seed, in_mxfp4=False):
    """in_mxfp4: experts are those of random codes and scales, which are returned."""
    packed, clamps = {}, model.config.model_type == "gpt_oss"
    rng = torch.Generator().manual_seed(seed)
    for name, p in list(model.named_parameters()) + [(n, b) for n, b in model.named_buffers() if "correction" in n]:
        noise = torch.randn(p.shape, generator=rng)
        value = (1 + 0.2 * noise if "norm" in name else 0.1 * noise if name.endswith("bias") else
                 0.5 * noise if "gate.weight" in name or "router" in name else noise if clamps and "gate_up_proj" in name else 0.25 * noise)
        p.data = value.bfloat16().to(p.dtype)
        if in_mxfp4 and name.endswith(("gate_up_proj", "down_proj")):
            E, columns, rows = p.shape
            blocks = torch.randint(256, (E, rows, columns // 32, 16), generator=rng, dtype=torch.uint8)
            scales = torch.randint(124, 127, (E, rows, columns // 32), generator=rng, dtype=torch.uint8)
            p.data = mxfp4.convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
            packed |= {name + "_blocks": blocks, name + "_scales": scales}
    return packed


def in_fp8(model):
    """Rounds weights of layers to e4m3 times a power of two."""
    for name, p in model.named_parameters():
        if is_in_fp8(name, p):
            codes, scale = fp8_of(p.data)
            p.data = (codes.float() * scale).to(p.dtype)


def is_in_fp8(name, t):
    return ".layers." in name and t.dim() > 1 and not name.endswith("gate.weight")


def fp8_of(t):
    scale = 2.0 ** torch.floor(torch.log2(t.float().abs().max() / 240))
    return (t.float() / scale).to(torch.float8_e4m3fn), scale


def write_fp8(folder):
    """Of a saved folder: codes and scales, all smaller than a block."""
    saved = json.loads((folder / "config.json").read_text())
    saved["quantization_config"] = dict(activation_scheme="dynamic", fmt="e4m3", quant_method="fp8", weight_block_size=[128, 128])
    (folder / "config.json").write_text(json.dumps(saved, indent=2, sort_keys=True) + "\n")
    out = {}
    for name, t in load_file(folder / "model.safetensors").items():
        if is_in_fp8(name, t):
            out[name], scale = fp8_of(t)
            out[name + "_scale_inv"] = scale.view(1, 1)
            require(torch.equal(out[name].float() * scale, t.float()), f"{name} is not exact in FP8")
        else:
            out[name] = t
    save_file(out, folder / "model.safetensors", {"format": "pt"})


def routers(model):
    return [m for m in model.modules() if type(m).__name__.endswith("Router")]


def chosen(model, tokens):
    """The sorted experts of every token at every router, and the logits."""
    seen = []
    hooks = [m.register_forward_hook(lambda m, i, o: seen.append(o[-1 if len(o) > 2 else 0].sort(-1).values)) for m in routers(model)]
    with torch.no_grad():
        logits = model(tokens, use_cache=False).logits
    for h in hooks:
        h.remove()
    return seen, logits


def greedy(model, prompt):
    ids = prompt.clone()
    for _ in range(TOKENS):
        with torch.no_grad():
            ids = torch.cat([ids, model(ids, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)], 1)
    return ids


def robust(model, tokens, text):
    """Do slightly different weights choose the same experts and tokens? Has every expert work?"""
    state = {n: t.clone() for n, t in model.state_dict().items()}
    first = [chosen(model, x)[0] for x in (tokens, text)]
    experts = [int(getattr(m, "layer", m).weight.shape[0]) for m in routers(model)]
    if any(torch.bincount(c.flatten(), minlength=E).min() < 2 for c, E in zip(first[0], experts * len(first[0]))):
        return False
    rng, good = torch.Generator().manual_seed(5), True
    for _ in range(3):
        model.load_state_dict({n: t * (1 + 2e-5 * torch.randn(t.shape, generator=rng)) for n, t in state.items()})
        again = [chosen(model, x) for x in (tokens, text)]
        good &= all(torch.equal(a, b) for x, y in zip(first, again) for a, b in zip(x, y[0]))
        good &= torch.equal(again[1][1][:, 4:-1].argmax(-1), text[:, 5:])
    model.load_state_dict(state)
    return good


def f32_error(stock, exact, tokens, targets):
    """The largest relative error of a gradient that Transformers computes in float32: none may be a difference of large numbers."""
    stock.zero_grad()
    mean_loss(stock(tokens, use_cache=False).logits, targets).backward()
    return max(difference(p.grad, q.grad) for p, q in zip(stock.parameters(), exact.parameters()) if q.grad is not None)


def write(name, config, dtype, shard):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    rng = torch.Generator().manual_seed(1)
    text = torch.randint(config.vocab_size, (B, T + 1), generator=rng)
    tokens, targets = text[:, :-1], text[:, 1:].clone()
    targets[0, 3] = targets[1, 0] = targets[1, 10] = -1
    stock = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, **EXACT).eval()
    plain = modeling_rope_utils.torch
    for seed in range(1000):
        packed = randomize(stock, seed, name.endswith("mxfp4"))
        if name.endswith("fp8"):
            in_fp8(stock)
        with all_float64(type(stock)):
            modeling_rope_utils.torch = sys.modules[type(stock).__module__].torch
            exact = transformers.AutoModelForCausalLM.from_config(config, **EXACT).double().eval()
            exact.load_state_dict(stock.state_dict())
            written = greedy(exact, tokens[:1, :5])
            good = robust(exact, tokens, written)
            logits = exact(tokens, use_cache=False).logits
            loss = mean_loss(logits, targets)
            loss.backward()
        modeling_rope_utils.torch = plain
        if good and f32_error(stock, exact, tokens, targets) <= 4e-6:
            break
    else:
        require(False, f"{name}: no seed routes well")
    exact.config.dtype = stock.config.dtype = None
    for p in list(exact.parameters()):
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, **EXACT)
    model.load_state_dict(stock.state_dict())
    model.to(dtype).save_pretrained(folder, **(dict(max_shard_size=shard) if shard else {}))
    if packed:                                  # as it is published: experts in two tensors, positions in older keys
        saved = json.loads((folder / "config.json").read_text())
        rope = saved.pop("rope_parameters")
        saved |= dict(rope_theta=rope.pop("rope_theta"), rope_scaling=rope, quantization_config=dict(
            modules_to_not_convert=["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"], quant_method="mxfp4"))
        (folder / "config.json").write_text(json.dumps(saved, indent=2, sort_keys=True) + "\n")
        weights = load_file(folder / "model.safetensors")
        save_file({n: t for n, t in weights.items() if n + "_blocks" not in packed} | packed, folder / "model.safetensors", {"format": "pt"})
    if name.endswith("fp8"):
        write_fp8(folder)
    grads = {n: g for n, g in gradients_of(exact).items() if "correction" not in n and "choice_bias" not in n}
    if config.model_type == "smoe":             # as the trainer writes it
        saved = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(saved | {"auto_map": AUTO_MAP}, indent=2, sort_keys=True) + "\n")
        shutil.copy(sys.modules[SmoeConfig.__module__].__file__, folder)
        EXACT_OPEN = dict(trust_remote_code=True)
    else:
        EXACT_OPEN = EXACT | (dict(quantization_config=transformers.FineGrainedFP8Config(dequantize=True)) if name.endswith("fp8") else {})
    with torch.no_grad():
        opened = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **EXACT_OPEN).eval()(tokens).logits
    (folder / "modeling_smoe.py").unlink(missing_ok=True)
    require(difference(opened, logits) <= 2e-5, f"{name}: opened as users do, the logits differ by {difference(opened, logits):.1e}")
    require(all(g.norm() > 1e-6 for g in grads.values()), f"{name}: a gradient is zero")
    expected = dict(tokens=tokens.int(), targets=targets.int(), logits=logits.detach(), loss=loss.detach().view(1),
                    greedy=written[0, 5:].int()) | {f"grad.{n}": g for n, g in grads.items()}
    save_file({n: t.contiguous() for n, t in expected.items()}, folder / "expected.safetensors")
    bytes_ = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{name}: seed {seed}, {sum(p.numel() for p in exact.parameters())} weights, loss {float(loss.detach()):.6f}, {bytes_} bytes")


if __name__ == "__main__":
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    OUT.mkdir(exist_ok=True)
    write_defaults()
    for name in sys.argv[1:] or MODELS:
        write(name, *MODELS[name])
