#!/usr/bin/env python3
"""make_configs.py: what Transformers' AutoConfig reads of the config.json files in configs.json. Needs transformers 5.24.

    python tests/reference/make_configs.py            writes "is" of every entry of configs.json again

An entry is {"name", "config", "is"}: the keys of a published model's config.json that matter ("like": completed from what is known
of the model, the file itself could not be had), and what comes of them; the keys of "is" are those of test_configs.c. New models: add
an entry with an empty "is"."""
import json
import pathlib
import tempfile

from transformers import AutoConfig

PATH = pathlib.Path(__file__).with_name("configs.json")


def first(config, *names):
    return next((value for value in (getattr(config, name, None) for name in names) if value is not None), None)


def read(config):
    """By this program's names of the fields (llmc/model/config.h)."""
    with tempfile.TemporaryDirectory() as folder:
        kimi = config["model_type"] == "kimi_k2"
        named = {key: value for key, value in config.items() if key != "auto_map"} | ({"model_type": "deepseek_v3"} if kimi else {})
        pathlib.Path(folder, "config.json").write_text(json.dumps(named))
        c = AutoConfig.from_pretrained(folder)
    rope = c.rope_parameters
    experts = first(c, "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts") or 1
    latent = first(c, "kv_lora_rank") or 0
    heads = c.num_attention_heads
    size = c.qk_nope_head_dim + c.qk_rope_head_dim if latent else first(c, "head_dim") or c.hidden_size // heads
    types = first(c, "layer_types") or []
    return {"vocab": c.vocab_size, "channels": c.hidden_size, "layers": c.num_hidden_layers, "heads": heads,
            "kv_heads": heads if latent else c.num_key_value_heads, "head_size": size, "experts": experts,
            "topk": first(c, "num_experts_per_tok", "moe_k") or 1 if experts > 1 else 1,
            "width": first(c, "moe_intermediate_size", "intermediate_size") if experts > 1 else c.intermediate_size,
            "context": c.max_position_embeddings, "tied": int(c.tie_word_embeddings), "eps": c.rms_norm_eps, "theta": rope["rope_theta"],
            "factor": rope.get("factor", 1), "kv_rank": latent, "query_rank": first(c, "q_lora_rank") or 0,
            "windows": types.count("sliding_attention"),
            "rotated": first(c, "qk_rope_head_dim") or int(size * rope.get("partial_rotary_factor", 1))}


def main():
    entries = json.loads(PATH.read_text())
    lines = [json.dumps({"name": e["name"], "config": e["config"], "is": read(e["config"])}, separators=(",", ":")) for e in entries]
    PATH.write_text("[\n" + ",\n".join(lines) + "\n]\n")


main()
