#!/usr/bin/env python3
"""reference.py: writes tests/reference/, the results of PyTorch and Transformers that the C tests compare with.

    python tests/reference.py         needs torch, transformers 5 and safetensors; the project itself needs none

Run it again only to add a family or an operation. The same versions of the three packages give the same bytes. All values are
computed in float64: Transformers uses float32 in a few places (norms, softmax, router, rope), which all_float64() below replaces
without changing a formula. Each family is also computed by naive(): loops over tokens, heads and experts, written from the
published formulas. Both must agree within 1e-10.
tests/reference/README.md says what is in the files.
"""
import contextlib
import json
import math
import os
import pathlib
import shutil
import sys
import tempfile

os.environ.update(TRANSFORMERS_VERBOSITY="error", HF_HUB_DISABLE_PROGRESS_BARS="1", HF_HUB_OFFLINE="1")
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).resolve().parent / "reference"
B, T = 2, 11
torch.set_num_threads(1)


def require(ok, what):              # not assert, which python -O removes
    if not ok:
        sys.exit(f"reference.py: {what}")


def difference(a, b):
    """Norm of the difference relative to the norm of b; NaN if there is one."""
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).norm() / (b.norm() + 1e-300))


# ---- families: the configurations ----------------------------------------------------------------------------------

COMMON = dict(hidden_size=24, num_hidden_layers=2, num_key_value_heads=2, max_position_embeddings=64,
              bos_token_id=1, eos_token_id=2)
FAMILIES = {
    "jetmoe": transformers.JetMoeConfig(
        **COMMON, vocab_size=61, kv_channels=8, intermediate_size=7, num_local_experts=4, num_experts_per_tok=2,
        rope_parameters=dict(rope_type="default", rope_theta=1e4), rms_norm_eps=1e-3, tie_word_embeddings=True),
    "mixtral": transformers.MixtralConfig(
        **COMMON, vocab_size=35, num_attention_heads=4, intermediate_size=12, num_local_experts=4,
        num_experts_per_tok=2, rope_parameters=dict(rope_type="default", rope_theta=1e6), rms_norm_eps=1e-5,
        tie_word_embeddings=False),
    "llama": transformers.LlamaConfig(
        **COMMON, vocab_size=35, num_attention_heads=4, head_dim=8, intermediate_size=20,
        rope_parameters=dict(rope_type="default", rope_theta=5e5), rms_norm_eps=1e-3, tie_word_embeddings=False),
}
EXACT = dict(attn_implementation="eager", experts_implementation="eager")


# ---- families: the naive computation -------------------------------------------------------------------------------

def rmsnorm(x, weight, eps):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def rope(x, theta):
    """x (B,T,heads,D): pair (i, i + D/2) turns by position * theta^(-2i/D)."""
    D = x.shape[-1]
    angle = torch.arange(x.shape[1], dtype=x.dtype)[:, None] * theta ** (-torch.arange(0, D, 2, dtype=x.dtype) / D)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x[..., :D // 2], x[..., D // 2:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def attend(q, k, v, tiled):
    """q (B,T,heads,D), k and v (B,T,G,D): every position sees itself and those before it."""
    heads, G, D = q.shape[2], k.shape[2], q.shape[3]
    kv_head = [h % G if tiled else h // (heads // G) for h in range(heads)]

    def one(b, t, h):
        p = torch.softmax(k[b, :t + 1, kv_head[h]] @ q[b, t, h] / math.sqrt(D), 0)
        return p @ v[b, :t + 1, kv_head[h]]
    return torch.stack([torch.stack([torch.stack([one(b, t, h) for h in range(heads)])
                                     for t in range(q.shape[1])]) for b in range(q.shape[0])])


def route(logits, K):
    """One token's logits (E) -> its experts and their weights."""
    order = sorted(range(len(logits)), key=lambda e: (-logits[e].item(), e))[:K]
    return order, torch.softmax(logits[order], 0)


def swiglu(gate, up):
    return F.silu(gate) * up


def naive(cfg, W, tokens, routers=None):
    """Logits (B,T,V) from the tensors of the file. routers: a list that gets (name, logits (N,E)) of every router."""
    kind, eps, K = cfg["model_type"], cfg["rms_norm_eps"], cfg.get("num_experts_per_tok")
    jetmoe, G = kind == "jetmoe", cfg["num_key_value_heads"]
    theta, block_eps = cfg["rope_parameters"]["rope_theta"], 1e-6 if jetmoe else eps

    def choose(name, h):            # h (N,C) -> N times (experts, weights)
        logits = h @ W[name].T
        if routers is not None:
            routers.append((name, logits.detach()))
        return [route(row, K) for row in logits]

    def attention(at, h):
        D = cfg["kv_channels"] if jetmoe else cfg.get("head_dim") or h.shape[-1] // cfg["num_attention_heads"]
        if jetmoe:
            at += "self_attention."
            rows = h.flatten(0, 1)
            slots = choose(at + "experts.router.layer.weight", rows)
            Win, Wout = W[at + "experts.input_linear.weight"], W[at + "experts.output_linear.weight"]
            q = torch.stack([torch.cat([Win[e] @ x for e in s[0]]) for x, s in zip(rows, slots)])
            k, v = (h @ W[at + "kv_proj.weight"].T).chunk(2, -1)
        else:
            at += "self_attn."
            q, k, v = (h @ W[f"{at}{x}_proj.weight"].T for x in "qkv")
        q, k, v = (x.reshape(B, T, -1, D) for x in (q, k, v))
        o = attend(rope(q, theta), rope(k, theta), v, jetmoe)
        if not jetmoe:
            return o.flatten(2) @ W[at + "o_proj.weight"].T
        o = o.reshape(B * T, K, G * D)
        out = torch.stack([sum(g * (Wout[e] @ y) for y, e, g in zip(o[n], *slots[n])) for n in range(B * T)])
        return out.view_as(h) + W[at + "experts.bias"]

    def mlp(at, h):
        rows = h.flatten(0, 1)
        if kind == "llama":
            gate, up, down = (W[f"{at}mlp.{x}_proj.weight"] for x in ("gate", "up", "down"))
            return swiglu(h @ gate.T, h @ up.T) @ down.T
        if jetmoe:
            slots, bias = choose(at + "mlp.router.layer.weight", rows), W[at + "mlp.bias"]
            Win, Wout = W[at + "mlp.input_linear.weight"], W[at + "mlp.output_linear.weight"]
            half = Win.shape[1] // 2
            expert = lambda e, x: Wout[e] @ swiglu(Win[e, :half] @ x, Win[e, half:] @ x)
        else:
            at += "block_sparse_moe."
            slots, bias = choose(at + "gate.weight", rows), 0
            w = lambda e, i: W[f"{at}experts.{e}.w{i}.weight"]
            expert = lambda e, x: w(e, 2) @ swiglu(w(e, 1) @ x, w(e, 3) @ x)
        out = torch.stack([sum(g * expert(e, x) for e, g in zip(*s)) for x, s in zip(rows, slots)])
        return out.view_as(h) + bias

    x = W["model.embed_tokens.weight"][tokens]
    for layer in range(cfg["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        x = x + attention(at, rmsnorm(x, W[at + "input_layernorm.weight"], block_eps))
        x = x + mlp(at, rmsnorm(x, W[at + "post_attention_layernorm.weight"], block_eps))
    x = rmsnorm(x, W["model.norm.weight"], eps)
    return x @ W["model.embed_tokens.weight" if cfg["tie_word_embeddings"] else "lm_head.weight"].T


# ---- families: Transformers ----------------------------------------------------------------------------------------

@contextlib.contextmanager
def all_float64(model_class):
    """Inside, the modeling file of model_class finds float64 wherever it asks for float32."""
    class Torch64:
        float32 = float = torch.float64

        def __getattr__(self, name):
            return getattr(torch, name)

    module, as_float = sys.modules[model_class.__module__], torch.Tensor.float
    module.torch, torch.Tensor.float = Torch64(), torch.Tensor.double
    try:
        yield
    finally:
        module.torch, torch.Tensor.float = torch, as_float


def randomize(model, seed):
    rng = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=rng)
        p.data = 1 + 0.2 * noise if "norm" in name else 0.1 * noise if name.endswith("bias") else 0.2 * noise


def well_routed(routers, K):
    """Every expert has work, and no choice hangs on a rounding error."""
    for _, logits in routers:
        top = logits.sort(-1, descending=True)
        load = torch.bincount(top.indices[:, :K].flatten(), minlength=logits.shape[1])
        if load.min() < 3 or (top.values[:, K - 1] - top.values[:, K]).min() <= 5e-3:
            return False
    return True


def mean_loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


def gradients_of(model):
    """d loss / d weight under the names of the files: save_pretrained is let to write the gradients as if weights."""
    for p in model.parameters():
        p.data = p.grad
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(f"{folder}/model.safetensors")


def write_family(family, config):
    folder = HERE / family
    shutil.rmtree(folder, ignore_errors=True)
    rng = torch.Generator().manual_seed(1)
    V, K = config.vocab_size, getattr(config, "num_experts_per_tok", 0)
    text = torch.randint(V, (B, T + 1), generator=rng)
    tokens, targets = text[:, :-1], text[:, 1:].clone()
    targets[0, 3] = targets[1, 0] = targets[1, 10] = -1

    # Weights, saved by Transformers; everything below starts from what is in the file.
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, **EXACT)
    for seed in range(1000):
        randomize(model, seed)
        model.save_pretrained(folder)
        W = {name: w.double().requires_grad_() for name, w in load_file(folder / "model.safetensors").items()}
        cfg, routers = json.loads((folder / "config.json").read_text()), []
        with torch.no_grad():
            naive(cfg, W, tokens, routers=routers)
        if well_routed(routers, K):
            break
    else:
        require(False, f"{family}: no seed routes well")
    require(len(routers) == {"jetmoe": 4, "mixtral": 2, "llama": 0}[family], f"{family}: {len(routers)} routers seen")
    require(sorted(f.name for f in folder.iterdir()) == ["config.json", "generation_config.json", "model.safetensors"],
            f"{family}: save_pretrained wrote other files than expected")

    # The same folder, opened as a user would, and again with all of it in float64.
    stock = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        stock_logits = stock(tokens).logits
    with all_float64(type(stock)):
        exact = transformers.AutoModelForCausalLM.from_config(stock.config, **EXACT).double().eval()
        exact.load_state_dict(stock.state_dict())
        logits = exact(tokens, use_cache=False).logits
        loss = mean_loss(logits, targets)
        loss.backward()
    logits, loss = logits.detach(), loss.detach()
    grads = gradients_of(exact)

    # The second opinion.
    own_logits = naive(cfg, W, tokens)
    own_loss = mean_loss(own_logits, targets)
    own_loss.backward()
    require(grads.keys() == W.keys(), f"{family}: gradients and weights have different names")
    errors = [difference(logits, own_logits), difference(loss, own_loss)]
    errors += [difference(grads[name], W[name].grad) for name in W]
    require(all(e <= 1e-10 for e in errors), f"{family}: Transformers and the formulas differ by {max(errors):.1e}")
    require(difference(stock_logits, logits) <= 1e-5, f"{family}: float64 changed more than rounding")
    require(all(g.norm() > 1e-3 for g in grads.values()), f"{family}: a gradient is zero")

    expected = dict(tokens=tokens.int(), targets=targets.int(), logits=logits.float(), loss=loss.float().view(1))
    expected |= {f"grad.{name}": g.float() for name, g in grads.items()}
    save_file({name: t.contiguous() for name, t in expected.items()}, folder / "expected.safetensors")

    print(f"{family}: seed {seed}, {sum(w.numel() for w in W.values())} weights, loss {float(loss):.6f}; formulas"
          f" agree to {max(errors):.1e}, float32 to {difference(stock_logits, logits):.1e}")
    for name, logits in routers:
        load = torch.bincount(logits.topk(K).indices.flatten(), minlength=logits.shape[1])
        print(f"    {name:57} load {load.tolist()}")


# ---- operations ----------------------------------------------------------------------------------------------------

class Inputs:
    """Random numbers that bf16 holds exactly, as float64."""
    def __init__(self, seed):
        self.rng = torch.Generator().manual_seed(seed)

    def normal(self, *shape, scale=1.0):
        return (scale * torch.randn(*shape, generator=self.rng)).bfloat16().double()


def gradient(f, x, *upstream):
    """d sum(f * upstream) / d x, f already computed from x."""
    return torch.autograd.grad((f * upstream[0]).sum() if upstream else f, x, retain_graph=True)[0]


SCORES = {      # what the choice is made by, and the weights of the chosen
    "topk_softmax": (lambda z: z, lambda z, chosen: torch.softmax(z.gather(1, chosen), 1)),
    "softmax_topk": (lambda z: torch.softmax(z, 1), lambda z, chosen: torch.softmax(z, 1).gather(1, chosen)),
    "sigmoid_topk": (torch.sigmoid, lambda z, chosen: F.normalize(torch.sigmoid(z).gather(1, chosen), p=1, dim=1)),
}


def router(scores):
    N, E, K = 9, 6, 3
    choice, weights = SCORES[scores]
    for seed in range(1000):
        inputs = Inputs(seed)
        logits, others = inputs.normal(N, E, scale=1.5), inputs.normal(N, E, scale=1.5)
        bias, dweight = inputs.normal(E, scale=0.25), inputs.normal(N, K)
        used = bias if scores == "sigmoid_topk" else torch.zeros(E).double()
        top = (choice(logits) + used).sort(1, descending=True)
        if (top.values[:, :-1] - top.values[:, 1:]).min() > 1e-3:
            break
    else:
        require(False, f"router {scores}: no seed without near ties")
    expert = top.indices[:, :K]
    unbiased = choice(logits).topk(K).indices
    require((scores == "sigmoid_topk") == bool((expert.sort(1)[0] != unbiased.sort(1)[0]).any()), "router: idle bias")

    logits.requires_grad_()
    weight, lse = weights(logits, expert), torch.logsumexp(logits, 1)
    load = torch.bincount(torch.cat((expert, (choice(others) + used).topk(K).indices)).flatten(), minlength=E)
    p = F.normalize(torch.sigmoid(logits), p=1, dim=1) if scores == "sigmoid_topk" else torch.softmax(logits, 1)
    balance = E / K * (load.double() / (2 * N) * p.mean(0)).sum()
    z = (lse ** 2).mean()
    out = dict(logits=logits, dweight=dweight, expert=expert.int(), weight=weight, lse=lse,
               dlogits=gradient(weight, logits, dweight), load=load.int(), tokens=torch.tensor([2 * N]).int(),
               loss=torch.stack((balance, z)), dbalance=gradient(balance, logits), dz=gradient(z, logits))
    if scores == "sigmoid_topk":
        out["bias"] = bias
    return out


def clamped(x):
    gate, up = x.chunk(2, 1)[0].clamp(max=7), x.chunk(2, 1)[1].clamp(-7, 7)
    return gate * torch.sigmoid(1.702 * gate) * (up + 1)


ACTIVATIONS = {
    "swiglu": (2, lambda x: F.silu(x.chunk(2, 1)[0]) * x.chunk(2, 1)[1]),
    "clamped": (2, clamped),
    "gelu": (1, lambda x: F.gelu(x, approximate="tanh")),
    "relu2": (1, lambda x: torch.relu(x) ** 2),
}


def expert(activation):
    M, width = 7, 5
    halves, f = ACTIVATIONS[activation]
    inputs = Inputs(11)
    pre, da = inputs.normal(M, halves * width, scale=5 if activation == "clamped" else 1.5).requires_grad_(), inputs.normal(M, width)
    weight = (0.5 + inputs.normal(M, scale=0.5).abs()).bfloat16().double().requires_grad_()
    act = f(pre)
    wact = weight[:, None] * act
    return dict(pre=pre, da=da, weight=weight, act=act, wact=wact, dpre=gradient(wact, pre, da),
                dweight=gradient(wact, weight, da), dpre_dense=gradient(act, pre, da))


def adamw():
    n, decayed, steps = 8, 5, 3
    lr, beta1, beta2, eps, decay, clip = [1 / 16, 3 / 64, 1 / 32], 0.875, 0.96875, 1 / 64, 0.25, 2.0
    inputs = Inputs(12)
    start, grads = inputs.normal(n), inputs.normal(steps, n) * torch.tensor([[2.0], [0.25], [1.0]])
    parts = [start[:decayed].clone().requires_grad_(), start[decayed:].clone().requires_grad_()]
    groups = [dict(params=parts[:1], weight_decay=decay), dict(params=parts[1:], weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, betas=(beta1, beta2), eps=eps, foreach=False)
    norms, weights, m, v = [], [], [], []
    for step in range(steps):
        norm = grads[step].norm()
        clipped = grads[step] * min(1.0, clip / norm)
        parts[0].grad, parts[1].grad = grads[step, :decayed].clone(), grads[step, decayed:].clone()
        require(abs(torch.nn.utils.clip_grad_norm_(parts, clip) - norm) < 1e-12, "adamw: another norm")
        require(difference(torch.cat([p.grad for p in parts]), clipped) < 1.1e-6 / norm, "adamw: another clipping")
        parts[0].grad, parts[1].grad = clipped[:decayed], clipped[decayed:]
        for group in optimizer.param_groups:
            group["lr"] = lr[step]
        optimizer.step()
        norms.append(norm)
        weights.append(torch.cat([p.detach() for p in parts]))
        m.append(torch.cat([optimizer.state[p]["exp_avg"] for p in parts]))
        v.append(torch.cat([optimizer.state[p]["exp_avg_sq"] for p in parts]))
    require([bool(x > clip) for x in norms] == [True, False, True], "adamw: clipping is not both on and off")
    scalars = dict(lr=lr, beta1=[beta1], beta2=[beta2], eps=[eps], decay=[decay], clip=[clip])
    return {k: torch.tensor(x).double() for k, x in scalars.items()} | dict(
        weight=start, grad=grads, norm=torch.stack(norms), weights=torch.stack(weights), m=torch.stack(m),
        v=torch.stack(v))


def rmsnorm_op():
    N, C, eps = 5, 12, 1 / 256
    inputs = Inputs(13)
    inp, dout = inputs.normal(N, C).requires_grad_(), inputs.normal(N, C)
    weight = (1 + inputs.normal(C, scale=0.25)).bfloat16().double().requires_grad_()
    out = F.rms_norm(inp, (C,), weight, eps)
    require(difference(out, rmsnorm(inp, weight, eps)) < 1e-14, "rmsnorm: another formula")
    return dict(inp=inp, weight=weight, eps=torch.tensor([eps]).double(), dout=dout, out=out,
                rstd=((inp * inp).mean(1) + eps).rsqrt(), dinp=gradient(out, inp, dout),
                dweight=gradient(out, weight, dout))


def attention():
    nB, nT, G, R, D = 2, 7, 2, 3, 4
    inputs = Inputs(14)
    q, dout = inputs.normal(nB, nT, R * G, D).requires_grad_(), inputs.normal(nB, nT, R * G, D)
    kv = inputs.normal(nB, nT, 2, G, D).requires_grad_()
    out = {"attention.q": q, "attention.kv": kv, "attention.dout": dout}
    mask = torch.ones(nT, nT, dtype=torch.bool).tril()
    for order in ("tiled", "grouped"):
        repeat = (lambda x: x.repeat(1, 1, R, 1)) if order == "tiled" else (lambda x: x.repeat_interleave(R, 2))
        k, v = repeat(kv[:, :, 0]), repeat(kv[:, :, 1])
        scores = torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(D)
        lse = torch.logsumexp(scores.masked_fill(~mask, -math.inf), -1).transpose(1, 2)
        o = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True).transpose(1, 2)
        own = attend(q, kv[:, :, 0], kv[:, :, 1], order == "tiled")
        require(difference(o, own) < 1e-14, f"attention {order}: another formula")
        out |= {f"attention_{order}.{name}": x
                for name, x in dict(out=o, lse=lse, dq=gradient(o, q, dout), dkv=gradient(o, kv, dout)).items()}
    return out


def write_operations():
    parts = {f"router_{s}": router(s) for s in SCORES} | {f"expert_{f}": expert(f) for f in ACTIVATIONS}
    parts |= {"adamw": adamw(), "rmsnorm": rmsnorm_op()}
    tensors = {f"{part}.{name}": x for part, contents in parts.items() for name, x in contents.items()} | attention()
    for name, x in tensors.items():
        integer = name.endswith((".expert", ".load", ".tokens"))
        require(x.dtype == (torch.int32 if integer else torch.float64), f"{name} is {x.dtype}")
        require(bool(x.isfinite().all()) and x.abs().max().item() > 1e-3, f"{name}: not finite or tiny")
    save_file({name: x.detach().contiguous() for name, x in tensors.items()}, HERE / "ops.safetensors")
    print(f"operations: {len(tensors)} tensors")


if __name__ == "__main__":
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    HERE.mkdir(exist_ok=True)
    for family, config in FAMILIES.items():
        write_family(family, config)
    write_operations()
    written = [HERE / "ops.safetensors"] + [f for family in FAMILIES for f in sorted((HERE / family).iterdir())]
    sizes = {f.relative_to(HERE): f.stat().st_size for f in written}
    for path, size in sizes.items():
        print(f"{size:7} {path}")
    print(f"{sum(sizes.values()):7} in all")
    require(max(sizes.values()) < 100_000, "a file is too large to be committed")
