#!/usr/bin/env python3
"""Compares the SMoE MLP layer with other implementations (peers) on the twelve sizes of bench/layers.c: times and ratios.

    python3 bench/peers.py [--path FOLDER]... [--ours ./bench_moe] [--peer NAME]... [FILTER]...
    python3 bench/peers.py --attention [--ours ./bench_moe] [FILTER]...

Needs a GPU and PyTorch. --path names folders to import peers from. A peer that cannot be imported is skipped, with a line
that says why. FILTER is part of a name, as for bench_moe; sizes that contain one of the filters are measured.

A layer is routing metadata, up projection, SwiGLU, down projection and weighted sum. The router itself (logits and top-k) is
left out for all. A peer is timed only if its output and all its gradients agree with plain PyTorch. Backward is (forward and
backward) - forward. Because clocks change with temperature and power, all implementations of a size alternate, ours
(./bench_moe -w, a process of its own) and each peer, for several rounds; a time is the median of the rounds. A measurement is
a warm-up call, 30 ms of rest and five calls, timed by the GPU's clock with launches queued ahead, so that Python costs nothing.
The rest is the same for all, because these products are limited by power, and a GPU that has rested can draw more of it. Caches
are not emptied: one call writes more than they hold. Gradients of weights are bf16 for all; the flop counted are the same, 6 and
12 times N K F C.

SonicMoE compiles its kernels for each size, which takes half a minute. Therefore every size has a process of its own, and all
compile at the same time, with few tokens. They are timed only when all have compiled, for compilers would leave no core free to
start launches in time. Sizes are split among the GPUs, and a lock admits one process per GPU at a time.

--attention: causal attention compared with cuDNN's and with the FlashAttention-2 in PyTorch on the sizes of bench/attention.c,
also in alternation. Times are the GPU's, of ten calls in a row.
"""
import argparse, contextlib, fcntl, os, re, select, statistics, subprocess, sys, tempfile

SIZES = [("1.4B n=256", 40960, 768, 256, 128, 8),
         ("1.4B n=512", 40960, 768, 512, 64, 4),
         ("1.4B n=1024", 40960, 768, 1024, 32, 2),
         ("7B n=256", 24576, 1536, 256, 128, 8),
         ("7B n=512", 24576, 1536, 512, 64, 4),
         ("7B n=1024", 24576, 1536, 1024, 32, 2),
         ("30B n=256", 32768, 4096, 256, 256, 16),
         ("30B n=512", 32768, 4096, 512, 128, 8),
         ("30B n=1024", 32768, 4096, 1024, 64, 4),
         ("120B n=512", 32768, 4096, 512, 256, 16),
         ("120B n=1024", 32768, 4096, 1024, 128, 8),
         ("120B n=2048", 32768, 4096, 2048, 64, 4)]
ATTENTION = [("D=128 T=1024", 16, 1024, 16, 1, 128),
             ("D=128 T=4096", 4, 4096, 16, 1, 128),
             ("D=128 T=16384", 1, 16384, 16, 1, 128),
             ("D=64 T=1024", 16, 1024, 16, 1, 64),
             ("D=64 T=4096", 4, 4096, 16, 1, 64),
             ("D=64 T=16384", 1, 16384, 16, 1, 64),
             ("m12", 64, 1024, 6, 2, 64)]

# ---- the peers ----------------------------------------------------------------------------------------------------------
# Each takes the weights, up (E,2F,C) with gate rows first and down (E,C,F). It returns layer(x, p, expert) -> out, its own two
# tensors of weights, and a function that reorders a gradient of its up to the order above.


def scattermoe(up, down, K):
    """Tan et al. 2024: every product gathers its rows; the expanded output is kept for the router's gradient."""
    from scattermoe.mlp import GLUMLP
    E, C, F = down.shape
    swap = lambda w: torch.cat([w[:, F:], w[:, :F]], 1)         # gate rows come second there
    layer = GLUMLP(C, F, E, K, activation=torch.nn.SiLU()).to(up.device, up.dtype)
    layer.experts.weight.data, layer.output_experts.weight.data = swap(up), down.clone()
    return (lambda x, p, expert: layer(x, p.to(x.dtype), expert),
            [layer.experts.weight, layer.output_experts.weight], swap)


def sonicmoe(up, down, K):
    """Guo et al. 2025. What its moe_TC_softmax_topk_layer does after the router, with its default kernels."""
    import sonicmoe.functional as sonic
    from sonicmoe.count_cumsum import count_cumsum
    from sonicmoe.enums import ActivationType
    E, C, F = down.shape
    weave = lambda w: torch.stack([w[:, :F], w[:, F:]], 2).reshape(w.shape)        # gate and up rows in turn
    unweave = lambda w: torch.cat([w[:, 0::2], w[:, 1::2]], 1)
    w1, w2 = weave(up).requires_grad_(), down.clone().requires_grad_()
    stream = torch.cuda.current_stream().cuda_stream

    def layer(x, p, expert):
        N, f = x.shape[0], ActivationType.SWIGLU
        _, start = count_cumsum(expert.view(-1), E, do_cumsum=True)
        start, gather, scatter, reverse, per_token = sonic.TC_topk_router_metadata(expert, start, K)
        act, pre = sonic._UpProjection.apply(x, w1.permute(1, 2, 0), None, start, N * K, K, stream, gather, scatter,
                                             reverse, per_token, False, f, False)
        return sonic._DownProjection.apply(act, pre, w2.permute(1, 2, 0), None, p, start, N, K, stream, gather, scatter,
                                           reverse, per_token, False, f)
    return layer, [w1, w2], unweave


def grouped_mm(up, down, K):
    """PyTorch alone: rows copied into the order of experts, torch._grouped_mm, copied back; the rest compiled."""
    torch._grouped_mm
    E, C, F = down.shape
    w1, w2 = up.clone().requires_grad_(), down.clone().requires_grad_()
    every = torch.arange(E, device=up.device)

    @torch.compile(dynamic=True)
    def swiglu(pre):
        gate, value = pre.chunk(2, -1)
        return torch.nn.functional.silu(gate) * value

    @torch.compile(dynamic=True)
    def weighted_sum(rows, p):
        return (rows.view(*p.shape, -1) * p.unsqueeze(-1)).sum(1).to(rows.dtype)

    def layer(x, p, expert):
        by_expert, slot = expert.view(-1).sort(stable=True)
        row = torch.empty_like(slot).scatter_(0, slot, torch.arange(len(slot), device=slot.device))
        end = torch.searchsorted(by_expert, every.to(by_expert.dtype), right=True).int()
        pre = torch._grouped_mm(x.index_select(0, slot // K), w1.transpose(1, 2), offs=end)
        out = torch._grouped_mm(swiglu(pre), w2.transpose(1, 2), offs=end)
        return weighted_sum(out.index_select(0, row), p)
    return layer, [w1, w2], lambda w: w


PEERS = [("ScatterMoE", scattermoe), ("SonicMoE", sonicmoe), ("torch._grouped_mm", grouped_mm)]

# ---- checking and timing ------------------------------------------------------------------------------------------------


def inputs(N, C, F, E, K):
    torch.manual_seed(1)
    normal = lambda scale, *shape: (scale * torch.randn(*shape, device="cuda")).bfloat16()
    p, expert = torch.topk(torch.rand(N, E, device="cuda"), K)
    return (normal(0.2, N, C).requires_grad_(), torch.softmax(p, -1).requires_grad_(), expert.int(),
            normal(0.2, N, C), normal(0.02, E, 2 * F, C), normal(0.02, E, C, F))


def reference(x, p, expert, up, down):
    """The definition, in f32: for each expert, the tokens that chose it."""
    F, out = down.shape[2], torch.zeros_like(x)
    for e in range(len(up)):
        n, k = torch.nonzero(expert == e, as_tuple=True)
        pre = x[n] @ up[e].T
        act = torch.nn.functional.silu(pre[:, :F]) * pre[:, F:]
        out = out.index_add(0, n, p[n, k, None] * (act @ down[e].T))
    return out


def largest_error(make):
    """Of the output and of the gradients of x, p and both weights, relative to the norm."""
    x, p, expert, dout, up, down = inputs(1024, 768, 256, 32, 4)
    layer, weights, order = make(up, down, 4)
    exact = [t.detach().float().requires_grad_() for t in (x, p, up, down)]
    want = reference(exact[0], exact[1], expert, exact[2], exact[3])
    want = [want, *torch.autograd.grad(want, exact, dout.float())]
    got = layer(x, p, expert)
    got = [got, *torch.autograd.grad(got, [x, p, *weights], dout)]
    got[3] = order(got[3])
    errors = [((g.float() - w).norm() / w.norm()).item() for g, w in zip(got, want)]
    return max(errors, key=lambda e: e if e == e else float("inf"))


ROUNDS, CALLS = 5, 5


def median_ms(work):
    """Of a few calls in a row, queued while the GPU sleeps."""
    work()
    torch.cuda._sleep(60_000_000)
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(CALLS)]
    for begin, end in events:
        begin.record()
        work()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in events)


def peer_timer(make, size):
    """A function that times one round: ms forward, ms backward."""
    N, C, F, E, K = size
    x, p, expert, dout, up, down = inputs(*size)
    layer, weights, _ = make(up, down, K)
    del up, down

    def forward():
        with torch.no_grad():
            layer(x, p, expert)

    def both():
        for t in (x, p, *weights):
            t.grad = None
        layer(x, p, expert).backward(dout)

    def one_round():
        f = median_ms(forward)
        return f, median_ms(both) - f
    one_round()                                     # compiles, and chooses kernels
    return one_round


class Ours:
    """bench_moe -w, which measures again for every line of its standard input."""

    def __init__(self, program, what, name):
        self.name = name
        self.process = subprocess.Popen([program, "-d", "cuda-bf16", "-e", what, "-w", name], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.read()

    def read(self):
        for line in self.process.stdout:
            ms = re.search(re.escape(self.name) + r" .*?([\d.]+) \+ +([\d.]+) ms", line)
            if ms:
                return float(ms[1]), float(ms[2])
        sys.exit(f"bench_moe did not time {self.name}")

    def one_round(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.read()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def check_peers(wanted):
    """The peers that can be imported and are right."""
    peers = []
    for name, make in PEERS:
        if wanted and name not in wanted:
            continue
        try:
            error = largest_error(make)
        except Exception as e:                  # peers fail in many ways: not installed, an incompatible compiler
            print(f"{name}: skipped: {type(e).__name__}: {str(e)[:300]}", flush=True)
            continue
        right = error <= 2e-2                   # a few roundings to bf16 in a row; a wrong layer is off by 1
        print(f"{name}: error {error:.1e} against plain PyTorch in f32{'' if right else ': WRONG, not timed'}", flush=True)
        if right:
            peers.append(name)
    return peers


def compare(name, size, lock, compiled, ours, wanted):
    """One size, in a process of its own: prints a line for us and for each peer that the lock's file names."""
    N, C, F, E, K = size
    try:
        if not wanted or "SonicMoE" in wanted:
            peer_timer(sonicmoe, (1024, *size[1:]))         # only to compile; an error is raised and printed again below
    except Exception:
        pass
    torch.cuda.empty_cache()
    os.write(compiled, b"+")
    fcntl.flock(lock, fcntl.LOCK_EX)
    peers = lock.read().split("\n")
    work, timers = 6 * N * K * F * C / 1e9, {}
    if ours:
        mine = Ours(ours, "layers", name)
        timers["this project"] = mine.one_round
    for peer, make in PEERS:
        if peer not in peers:
            continue
        try:
            timers[peer] = peer_timer(make, size)
        except Exception as e:
            print(f"{name:12s} {peer}: failed: {type(e).__name__}: {str(e)[:200]}", flush=True)
        torch.cuda.empty_cache()
    rounds = [{who: timer() for who, timer in timers.items()} for _ in range(ROUNDS)]
    rows = [(who, *(statistics.median(r[who][i] for r in rounds) for i in range(2))) for who in timers]
    if ours:
        mine.close()
    for peer, f, b in rows:
        ratios = ""
        if ours and peer != "this project":
            _, f0, b0 = rows[0]
            ratios = f"   {f / f0:5.2f} / {b / b0:5.2f} / {(f + b) / (f0 + b0):5.2f}"
        print(f"{name:12s} {peer:18s} {f:8.3f} + {b:8.3f}      {work / f:6.1f} / {2 * work / b:6.1f} / "
              f"{3 * work / (f + b):6.1f}{ratios}", flush=True)


# ---- attention ----------------------------------------------------------------------------------------------------------


def attention_timer(backend, B, T, G, Q, D):
    """Like peer_timer, but with ten calls at a time, which Python queues faster than they run. Forward keeps what backward needs."""
    from torch.nn.attention import sdpa_kernel
    heads = lambda n: torch.randn(B, T, n, D, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
    q, k, v = [heads(n).requires_grad_() for n in (Q * G, G, G)]
    dout = heads(Q * G)

    def forward():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=Q > 1)

    def one_round():
        with sdpa_kernel(backend):
            out = forward()
            backward = lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)
            return tuple(median_ms(lambda: [work() for _ in range(10)]) / 10 for work in (forward, backward))
    one_round()
    return one_round


def compare_attention(ours, wanted):
    from torch.nn.attention import SDPBackend
    print(f"cuDNN {torch.backends.cudnn.version()}\n{'':13s} {'':18s} forward + backward ms   TFLOP/s forward / backward   "
          "peer's time / ours, f / b", flush=True)
    for name, B, T, G, Q, D in ATTENTION:
        if not chosen(name, wanted):
            continue
        mine = Ours(ours, "attention", name)
        timers = {"this project": mine.one_round}
        for peer, backend in ("cuDNN", SDPBackend.CUDNN_ATTENTION), ("FlashAttention-2", SDPBackend.FLASH_ATTENTION):
            try:
                timers[peer] = attention_timer(backend, B, T, G, Q, D)
            except Exception as e:
                print(f"{name:13s} {peer}: failed: {type(e).__name__}: {str(e)[:200]}", flush=True)
        rounds = [{who: timer() for who, timer in timers.items()} for _ in range(ROUNDS)]
        mine.close()
        f0, b0 = 0, 0
        for who in timers:
            f, b = (statistics.median(r[who][i] for r in rounds) for i in range(2))
            flop = 2 * B * Q * G * D * T * (T + 1) / 1e9
            ratios = f"   {f / f0:5.2f} / {b / b0:5.2f}" if f0 else ""
            f0, b0 = f0 or f, b0 or b
            print(f"{name:13s} {who:18s} {f:8.3f} + {b:8.3f}      {flop / f:6.1f} / {2.5 * flop / b:6.1f}{ratios}", flush=True)


def chosen(name, filters):
    return not filters or any(f in name for f in filters)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--path", action="append", default=[])
    parser.add_argument("--ours", default="./bench_moe")
    parser.add_argument("--peer", action="append", default=[], help="only these: " + ", ".join(n for n, _ in PEERS))
    parser.add_argument("--attention", action="store_true")
    parser.add_argument("--lock", help=argparse.SUPPRESS)       # for the processes that this one starts; --compiled:
    parser.add_argument("--compiled", type=int, help=argparse.SUPPRESS)     # the pipe to which they write when they have compiled
    parser.add_argument("--size", help=argparse.SUPPRESS)
    parser.add_argument("filter", nargs="*")
    args = parser.parse_args()
    sys.path[:0] = args.path
    global torch
    try:
        import torch
    except ImportError as e:
        return print(f"no peer to time: {e}")
    if not torch.cuda.is_available():
        return print("no peer to time: PyTorch sees no GPU")
    ours = args.ours if os.path.exists(args.ours) else None
    if args.lock:
        for name, *size in SIZES:
            if name == args.size:
                compare(name, size, open(args.lock), args.compiled, ours, args.peer)
        return

    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}; medians of {ROUNDS} rounds of {CALLS} calls", flush=True)
    if args.attention:
        return compare_attention(ours, args.filter) if ours else print(f"{args.ours}: not built")
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(torch.cuda.device_count())))).split(",")
    with contextlib.ExitStack() as opened:
        locks = [opened.enter_context(tempfile.NamedTemporaryFile("w")) for gpu in gpus]
        for lock in locks:
            fcntl.flock(lock, fcntl.LOCK_EX)    # until the peers are checked and all have compiled
        reader, writer = os.pipe()
        children = [subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--lock", locks[i % len(gpus)].name,
                                      "--compiled", str(writer), "--size", name],
                                     pass_fds=[writer], env=os.environ | {"CUDA_VISIBLE_DEVICES": gpus[i % len(gpus)]})
                    for i, name in enumerate(name for name, *_ in SIZES if chosen(name, args.filter))]
        right = "\n".join(check_peers(args.peer))
        for lock in locks:
            lock.write(right)
            lock.flush()
        print(f"{'':12s} {'':18s} forward + backward ms   TFLOP/s forward / backward / both   "
              "peer's time / ours, f / b / both", flush=True)
        compiled = 0
        while compiled < sum(child.poll() is None for child in children):       # without those that have ended
            if select.select([reader], [], [], 1)[0]:
                compiled += len(os.read(reader, len(children)))
        for lock in locks:
            fcntl.flock(lock, fcntl.LOCK_UN)
        for child in children:
            child.wait()


main()
