"""readers.py: opens the folders that readers.sh made with the version of Transformers of this Python, and compares with what
infer_moe wrote (infer.txt). A line for each: ok, or FAIL and why."""
import os
import pathlib
import sys
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", HF_HUB_DISABLE_PROGRESS_BARS="1")
import torch
import transformers

torch.set_num_threads(1)
N = 48
# What a version computes otherwise than the families' own code, whatever the folder says.
OTHERWISE = {("4", "family_deepseek_v2"): "its deepseek_v2 has no factor of scores for YaRN (mscale_all_dim)",
             ("4", "family_glm4_moe_lite"): "it does not know the family", ("4", "family_solar_open"): "it does not know the family",
             ("4", "family_minimax_m2"): "it does not know the family",
             ("4", "family_qwen2_moe_windows"): "its qwen2_moe has no layer_types: windows in no layer or in all"}
EAGER = dict(experts_implementation="eager") if int(transformers.__version__.split(".")[0]) > 4 else {}     # odd sizes


def greedy(model, ids, n, ends=()):
    """Every token from all those before it: no cache that could hide an error of its own."""
    ids = list(ids)
    start = len(ids)
    while len(ids) < start + n:
        with torch.no_grad():
            ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
        if ids[-1] in ends:
            break
    return ids[start:]


def check(folder):
    sort, want = (folder / "sort").read_text().strip(), (folder / "infer.txt").read_text()
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=True,
                                                                    output_loading_info=True, **EAGER)
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if info.get(problem):
            return f"{problem}: {str(info[problem])[:200]}"
    model.eval()
    eos = model.generation_config.eos_token_id
    eos = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
    if sort == "ids":
        got, want = greedy(model, [1, 2, 3, 4, 5], N, eos), [int(w) for w in want.split()]
        if eos and got[-1] in eos:
            got = got[:-1]
        return None if got == want else f"{got[:8]} and not {want[:8]}"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    if tokenizer.model_max_length != model.config.max_position_embeddings:
        return f"model_max_length {tokenizer.model_max_length}, context {model.config.max_position_embeddings}"
    settings = dict(do_sample=False, max_new_tokens=N, pad_token_id=0)
    if sort in ("text", "docs"):
        prompt = tokenizer("the", add_special_tokens=False)["input_ids"]
        got = tokenizer.decode(greedy(model, prompt, N, eos), skip_special_tokens=True)
        if sort == "docs" and tokenizer.eos_token_id not in eos:
            return f"eos_token {tokenizer.eos_token_id}, generate() ends at {eos}"
    else:
        message = [{"role": "user", "content": "say 2"}]
        text = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
        got = None
    if sort in ("chats", "bytes") or (sort == "docs" and folder.name in ("default", "dense")):
        out = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), tokenizer=tokenizer, **settings)
        out = out[0, len(prompt):].tolist()
        if len(out) >= N:
            return f"generate() did not stop: {tokenizer.decode(out)!r}"
        text = tokenizer.decode(out, skip_special_tokens=True)
        for stop in model.generation_config.stop_strings or []:
            text = text.removesuffix(stop)
        got = text if got is None else got
    return None if got.strip() == want.strip() else f"{got!r} and not {want!r}"


for folder in map(pathlib.Path, sys.argv[1:]):
    otherwise = OTHERWISE.get((transformers.__version__[0], folder.name))
    if otherwise:
        print(f"skip Transformers {transformers.__version__}, {folder}: {otherwise}")
        continue
    try:
        why = check(folder)
    except Exception as error:
        why = f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
    print(f"{'FAIL' if why else 'ok'} Transformers {transformers.__version__}, {folder}{': ' + why if why else ''}", flush=True)
