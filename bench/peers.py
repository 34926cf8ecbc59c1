#!/usr/bin/env python3
"""Compares the SMoE MLP layer with other implementations (peers) on the sizes of bench/layers.c: times and ratios.

    python3 bench/peers.py [--path FOLDER]... [--ours ./bench_moe] [--peer NAME]... [--tuned FOLDER] [--seconds N] [--kernels] [FILTER]...
    python3 bench/peers.py --tune ...the same
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

Where experts can compute in 8 bits, so does a second line of ours; weights are codes already.

SonicMoE tries some dozens of kernels for each product of each size, which takes minutes. It does so first, one size after the other on
each GPU. What was chosen is kept in the folder --tuned, product by product, so that an interrupted choice continues there, and the next
run has it. --tune does only this; --seconds ends it after so long, and sizes that were not reached are not timed. Then every size has a
process of its own. Sizes are split among the GPUs, and a lock admits one process per GPU at a time.

--kernels: after a size's times the kernels of one forward and backward pass of each peer, by PyTorch's profiler, and our operations
(./bench_moe -step layers), so that it shows which product a ratio comes from. These are not by turns.

--attention: causal attention compared with cuDNN's and with the FlashAttention-2 in PyTorch on the sizes of bench/attention.c,
also in alternation. Times are the GPU's, of ten calls in a row.
"""
import argparse, contextlib, fcntl, os, re, statistics, subprocess, sys, tempfile, threading, time

SIZES = [("OLMoE", 32768, 2048, 1024, 64, 8),
         ("Qwen3-30B", 65536, 2048, 768, 128, 8),
         ("1.4B n=256", 40960, 768, 256, 128, 8),
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
    """Guo et al. 2025, version 0.1.2. What its moe_TC_softmax_topk_layer does after the router."""
    import sonicmoe.functional as sonic
    from sonicmoe.enums import ActivationType
    from sonicmoe.functional.triton_kernels import TC_topk_router_metadata_triton
    E, C, F = down.shape
    weave = lambda w: torch.stack([w[:, :F], w[:, F:]], 2).reshape(w.shape)        # gate and up rows in turn
    unweave = lambda w: torch.cat([w[:, 0::2], w[:, 1::2]], 1)
    w1, w2 = weave(up).requires_grad_(), down.clone().requires_grad_()
    integers = lambda n: torch.empty(n, dtype=torch.int32, device=up.device)

    def layer(x, p, expert):
        N, f = x.shape[0], ActivationType.SWIGLU
        count, start, gather, scatter, reverse = map(integers, (E, E + 1, N * K, N * K, N * K))
        TC_topk_router_metadata_triton(expert, E, count, start, gather, scatter, reverse)
        act, pre = sonic._UpProjection.apply(x, w1.permute(1, 2, 0), None, start, N * K, K, gather, scatter, reverse, None, False,
                                             f, False, False)
        return sonic._DownProjection.apply(act, pre, w2.permute(1, 2, 0), None, p, start, N, K, gather, scatter, reverse, None,
                                           False, f)
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
TUNED = "SonicMoE"                              # the one that chooses its kernels by trying them
PACKAGES = "scattermoe", "sonic-moe", "quack-kernels", "nvidia-cutlass-dsl", "apache-tvm-ffi", "triton"


def versions():
    from importlib.metadata import PackageNotFoundError, version
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            yield f"{name} {version(name)}"

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
OURS = "this project", "in 8 bits"


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
    one_round.both = both
    return one_round


def list_kernels(name, peer, work):
    """Ms a call of each kernel, the longest first."""
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CUDA]) as record:
        for _ in range(CALLS):
            work()
        torch.cuda.synchronize()
    of_kernel = [(e.self_device_time_total / 1e3 / CALLS, e.count / CALLS, e.key) for e in record.key_averages()]
    for ms, count, kernel in sorted(of_kernel, reverse=True):
        if ms >= 0.005:
            print(f"{name:12s} {peer:18s} {ms:8.3f} ms  {count:3g} x  {kernel[:100]}", flush=True)


class Ours:
    """bench_moe -w, which measures again for every line of its standard input."""

    def __init__(self, program, what, name):
        self.name = name
        self.process = subprocess.Popen([program, "-d", "cuda-bf16", "-e", what, "-w", name], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.read()

    def read(self):
        """In bf16 and, or None, in 8 bits."""
        for line in self.process.stdout:
            ms = re.search(re.escape(self.name) + r" .*?([\d.]+) \+ +([\d.]+) ms(?:.*in 8 bits +([\d.]+) \+ +([\d.]+) ms)?", line)
            if ms:
                return (float(ms[1]), float(ms[2])), ms[3] and (float(ms[3]), float(ms[4]))
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


def tuned_file(folder, name):
    return os.path.join(folder, name.replace(" ", "-") + ".versions")


def is_tuned(folder, name):
    with contextlib.suppress(FileNotFoundError), open(tuned_file(folder, name)) as f:
        return f.read() == " ".join(versions())


def tune(folder, name, size):
    """One call and its backward pass choose all kernels of a size; quack keeps the choices in QUACK_CACHE_DIR."""
    start = time.monotonic()
    peer_timer(sonicmoe, size)
    with open(tuned_file(folder, name), "w") as f:
        f.write(" ".join(versions()))
    print(f"{name:12s} {TUNED}: kernels chosen in {time.monotonic() - start:.0f} s", flush=True)


def tune_all(folder, sizes, gpus, seconds):
    """Each size in a process of its own, one after the other on each GPU. Returns the names of those that have been tuned."""
    end = time.monotonic() + seconds
    missing = [name for name in sizes if not is_tuned(folder, name)]

    def of_gpu(i):
        for name in missing[i::len(gpus)]:
            left = end - time.monotonic()
            if left <= 0:
                return
            try:
                subprocess.run([sys.executable, __file__, *sys.argv[1:], "--tune-size", name], timeout=left,
                               env=os.environ | {"CUDA_VISIBLE_DEVICES": gpus[i]})
            except subprocess.TimeoutExpired:
                print(f"{name:12s} {TUNED}: no time left to choose its kernels", flush=True)
    threads = [threading.Thread(target=of_gpu, args=[i]) for i in range(len(gpus))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [name for name in sizes if is_tuned(folder, name)]


def compare(name, size, lock, ours, kernels):
    """One size, in a process of its own: prints a line or two for us and one for each peer that the lock's file names."""
    N, C, F, E, K = size
    fcntl.flock(lock, fcntl.LOCK_EX)
    peers = lock.read().split("\n")
    work, timers = 6 * N * K * F * C / 1e9, {}
    mine = Ours(ours, "layers", name) if ours else None
    for peer, make in PEERS:
        if peer not in peers or peer == TUNED and f"tuned {name}" not in peers:
            continue
        try:
            timers[peer] = peer_timer(make, size)
        except Exception as e:
            print(f"{name:12s} {peer}: failed: {type(e).__name__}: {str(e)[:200]}", flush=True)
        torch.cuda.empty_cache()
    rounds = []
    for _ in range(ROUNDS):
        times = dict(zip(OURS, mine.one_round())) if ours else {}
        rounds.append({who: ms for who, ms in times.items() if ms} | {who: timer() for who, timer in timers.items()})
    rows = [(who, *(statistics.median(r[who][i] for r in rounds) for i in range(2))) for who in rounds[0]]
    if ours:
        mine.close()
    for peer, f, b in rows:
        ratios = ""
        if ours and peer not in OURS:
            for _, f0, b0 in rows[:sum(who in OURS for who, *_ in rows)]:
                ratios += f"   {f / f0:5.2f} / {b / b0:5.2f} / {(f + b) / (f0 + b0):5.2f}"
        print(f"{name:12s} {peer:18s} {f:8.3f} + {b:8.3f}      {work / f:6.1f} / {2 * work / b:6.1f} / "
              f"{3 * work / (f + b):6.1f}{ratios}", flush=True)
    if kernels:
        for peer, timer in timers.items():
            list_kernels(name, peer, timer.both)
        if ours:
            subprocess.run([ours, "-d", "cuda-bf16", "-step", "layers", name])


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
        timers = {"this project": lambda: mine.one_round()[0]}
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
    parser.add_argument("--kernels", action="store_true", help="also the times of single kernels")
    parser.add_argument("--tune", action="store_true", help="only let SonicMoE choose its kernels")
    parser.add_argument("--tuned", default=os.path.expanduser("~/.cache/moe-peers"), help="the folder of those choices: %(default)s")
    parser.add_argument("--seconds", type=float, default=3600, help="for choosing: %(default)g")
    parser.add_argument("--lock", help=argparse.SUPPRESS)       # for the processes that this one starts
    parser.add_argument("--size", help=argparse.SUPPRESS)
    parser.add_argument("--tune-size", help=argparse.SUPPRESS)
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
    os.makedirs(args.tuned, exist_ok=True)
    os.environ |= {"QUACK_CACHE_DIR": os.path.abspath(args.tuned), "QUACK_CACHE_AUTOTUNING": "1",
                   "PYTHONPATH": ":".join([*args.path, os.environ.get("PYTHONPATH", "")])}      # for SonicMoE's compilers
    for name, *size in SIZES:
        if name == args.tune_size:
            return tune(args.tuned, name, size)
        if name == args.size:
            return compare(name, size, open(args.lock), ours, args.kernels)

    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}; medians of {ROUNDS} rounds of {CALLS} calls",
          *versions(), sep="; ", flush=True)
    if args.attention:
        return compare_attention(ours, args.filter) if ours else print(f"{args.ours}: not built")
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(torch.cuda.device_count())))).split(",")
    sizes = [name for name, *_ in SIZES if chosen(name, args.filter)]
    right = check_peers([TUNED] if args.tune else args.peer)
    tuned = tune_all(args.tuned, sizes, gpus, args.seconds) if TUNED in right else []
    if TUNED in right:
        print(f"{TUNED}: {len(tuned)} of {len(sizes)} sizes have their kernels, in {args.tuned}", flush=True)
    if args.tune:
        return
    with contextlib.ExitStack() as opened:
        locks = [opened.enter_context(tempfile.NamedTemporaryFile("w")) for gpu in gpus]
        print(f"{'':12s} {'':18s} forward + backward ms   TFLOP/s forward / backward / both   "
              "peer's time / ours, f / b / both; / ours in 8 bits", flush=True)
        for lock in locks:
            lock.write("\n".join([*right, *(f"tuned {name}" for name in tuned)]))
            lock.flush()
        children = [subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--lock", locks[i % len(gpus)].name, "--size", name],
                                     env=os.environ | {"CUDA_VISIBLE_DEVICES": gpus[i % len(gpus)]}) for i, name in enumerate(sizes)]
        for child in children:
            child.wait()


main()
