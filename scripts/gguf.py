#!/usr/bin/env python3
"""gguf.py: a folder that train_moe wrote as a GGUF file for llama.cpp, by llama.cpp's own converter.

    python scripts/gguf.py FOLDER LLAMA.CPP [--outfile OUT.gguf] [--outtype f16] ...

LLAMA.CPP: a checkout of github.com/ggml-org/llama.cpp that has the folder conversion/. What follows are options of its
convert_hf_to_gguf.py, which needs torch, transformers and gguf. It recognizes tokenizers by what they make of one text, so only
published ones; here those of train_moe are recognized by their pattern. Models of which llama.cpp would compute something else are
refused."""
import json
import pathlib
import runpy
import sys

# the patterns of train_moe (-tp), and what llama.cpp calls the same cutting into words
PATTERNS = {
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+": "dbrx",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt-2",
}
# what llama.cpp always does with the weights of a token's experts, whatever norm_topk_prob says
RENORMALIZES = {"qwen3_moe": True, "olmoe": False, "qwen2_moe": False}


def refuse(why):
    sys.exit(f"gguf.py: {why}")


def pattern_of(tokenizer):
    """The llama.cpp name of the pre-tokenizer; None: it is for the converter to find."""
    pre = tokenizer.get("pre_tokenizer") or {}
    parts = pre.get("pretokenizers", [pre])
    patterns = [part["pattern"].get("Regex") for part in parts if part["type"] == "Split"]
    if [part["type"] for part in parts] == ["ByteLevel"] and parts[0].get("use_regex", True):
        return "gpt-2"
    return PATTERNS.get(patterns[0]) if len(patterns) == 1 else None


def main():
    if len(sys.argv) < 3:
        refuse(f"two folders are needed\n{__doc__}")
    folder, llama = map(pathlib.Path, sys.argv[1:3])
    try:
        config = json.loads((folder / "config.json").read_text())
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
    except OSError as error:
        refuse(error)
    family = config["model_type"]
    if family in ("smoe", "jetmoe"):
        refuse(f"llama.cpp has no {family}")
    always = RENORMALIZES.get(family)
    if always is not None and bool(config.get("norm_topk_prob", False)) != always:
        refuse(f"llama.cpp {'always' if always else 'never'} renormalizes the weights of a {family}'s experts, and config.json says "
               f"norm_topk_prob {str(not always).lower()}: it would write other text without a word. Train with -rs "
               f"{'topk-softmax' if always else 'softmax-topk'}")
    if family == "olmoe" and config.get("tie_word_embeddings"):
        refuse("llama.cpp loads no olmoe whose head is the embedding: train with a head of its own (-e ...u1)")
    if not tokenizer["model"].get("merges"):
        refuse("llama.cpp loads no tokenizer without merges, as this one of bytes: train with -tk")
    if not (llama / "conversion").is_dir():
        refuse(f"{llama} has no folder conversion/: take a newer llama.cpp")
    sys.path[:0] = [str(llama), str(llama / "gguf-py")]
    from conversion import base
    name = pattern_of(tokenizer)
    if name:
        base.TextModel.get_vocab_base_pre = lambda self, t: name
    sys.argv = [str(llama / "convert_hf_to_gguf.py"), str(folder)] + sys.argv[3:]
    runpy.run_path(sys.argv[0], run_name="__main__")


main()
