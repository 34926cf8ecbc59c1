#!/usr/bin/env python3
"""check_export.py: does Transformers open a model that our trainer saved, and find the same loss?

    python tests/check_export.py FOLDER TEXT [--loss NATS] [-T CONTEXT] [-n TOKENS]

Needs torch, transformers 5 and tokenizers. Run it by hand together with `infer_moe FOLDER -x TEXT`, and pass that loss as
--loss. Prints the mean loss of TEXT in nats per token, and the model's greedy continuation of its beginning. Exits 1, with the
reason, if
    - the folder does not load as a model, or a tensor is missing, superfluous or of another shape;
    - the tokenizer does not load, does not decode to the text, or gives ids that the model does not have;
    - a logit or the loss is not finite, or differs from --loss by more than --tolerance (relative, default 1e-4, for float32
      against float32; bf16 runs need about 1e-2).

The text is encoded as a whole, without special tokens. A window is T consecutive tokens that predict the T tokens one later;
windows follow each other without overlap. So every token but the first is predicted exactly once, from 1 to T tokens of
context; the last window may be shorter. T is the context that the model was trained with, or -T."""
import argparse
import math
import os
import pathlib
import sys

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", HF_HUB_DISABLE_PROGRESS_BARS="1")
import torch
import transformers


def require(ok, what):
    if not ok:
        sys.exit(f"check_export.py: {what}")


def load_model(folder):
    auto = transformers.AutoModelForCausalLM
    model, info = auto.from_pretrained(folder, dtype=torch.float32, trust_remote_code=True, output_loading_info=True)
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        require(not info.get(problem), f"{folder}: {problem.replace('_', ' ')}: {info.get(problem)}")
    return model.eval()


def load_tokenizer(folder):
    """As users would, if the folder says how; else from tokenizer.json alone."""
    if (folder / "tokenizer_config.json").exists():
        return transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))


def encode(tokenizer, text, V):
    ids = tokenizer.encode(text, add_special_tokens=False)
    require(len(ids) >= 2, f"the text has {len(ids)} tokens, at least 2 are needed")
    require(max(ids) < V, f"the tokenizer makes id {max(ids)}, the model has {V} tokens")
    back = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    same = next((i for i, (a, b) in enumerate(zip(text, back)) if a != b), min(len(text), len(back)))
    require(back == text, f"decode(encode(text)) is not the text: from character {same} {text[same:same + 20]!r} became "
                          f"{back[same:same + 20]!r}")
    return torch.tensor(ids)


def mean_loss(model, ids, T):
    total = 0.0
    with torch.no_grad():
        for start in range(0, len(ids) - 1, T):
            window = ids[start:start + T + 1]
            logits = model(window[None, :-1], use_cache=False).logits[0]
            require(bool(logits.isfinite().all()), f"logits that are not finite in the window at token {start}")
            total += torch.nn.functional.cross_entropy(logits.double(), window[1:], reduction="sum").item()
    return total / (len(ids) - 1)


def continue_greedily(model, ids, T, count):
    """count tokens after a prompt that leaves room for them in the context; nothing ends it early."""
    prompt = ids[:max(1, min(len(ids), 32, T - count))]
    with torch.no_grad():
        out = model.generate(prompt[None], attention_mask=torch.ones_like(prompt)[None], do_sample=False,
                             max_new_tokens=count, min_new_tokens=count, eos_token_id=None, pad_token_id=0)[0]
    require(len(out) == len(prompt) + count, f"asked for {count} tokens, got {len(out) - len(prompt)}")
    return prompt, out[len(prompt):]


def main():
    parser = argparse.ArgumentParser(description="Does Transformers open what our trainer wrote?")
    parser.add_argument("folder", type=pathlib.Path, help="config.json, model.safetensors, tokenizer.json")
    parser.add_argument("text", type=pathlib.Path, help="a UTF-8 file")
    parser.add_argument("--loss", type=float, help="nats per token that our program found")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="largest relative difference from --loss")
    parser.add_argument("-T", type=int, help="tokens per window; default: the model's context")
    parser.add_argument("-n", type=int, default=50, help="tokens to generate")
    a = parser.parse_args()

    require((a.folder / "config.json").is_file(), f"{a.folder} has no config.json: not the output folder of a run")
    try:
        model, tokenizer = load_model(a.folder), load_tokenizer(a.folder)
        text = a.text.read_bytes().decode("utf-8")
    except Exception as error:      # whatever the libraries raise, the answer is the same: it cannot be opened
        sys.exit(f"check_export.py: {type(error).__name__}: {error}")
    T = a.T or model.config.max_position_embeddings
    require(T >= 1 and a.n >= 1, "-T and -n must be at least 1")
    ids = encode(tokenizer, text, model.config.vocab_size)

    loss = mean_loss(model, ids, T)
    require(math.isfinite(loss), f"the loss is {loss}")
    prompt, written = continue_greedily(model, ids, T, a.n)
    print(f"{type(model).__name__}, {model.num_parameters()} parameters, context {T}, {len(ids)} tokens")
    print(f"loss {loss:.6f} nats/token, perplexity {math.exp(loss):.4f}, "
          f"{loss * (len(ids) - 1) / math.log(2) / len(text.encode()):.4f} bits/byte")
    print(f"prompt  {tokenizer.decode(prompt)!r}\ngreedy  {tokenizer.decode(written)!r}\nids     {written.tolist()}")
    if a.loss is not None:
        error = abs(loss - a.loss) / loss
        require(error <= a.tolerance,
                f"loss {loss:.6f} here, {a.loss:.6f} there: {error:.1e}, allowed {a.tolerance:.0e}")
        print(f"agrees with {a.loss:.6f} to {error:.1e}")


if __name__ == "__main__":
    main()
