#!/usr/bin/env python3
"""Times the SMoE MLP layer of peers on the sizes of bench/layers.c, in the same way: median of 9, router excluded.

    python3 bench/peers.py [--path FOLDER_WITH_scattermoe] [FILTER]

Needs a GPU and PyTorch; times ScatterMoE (GLUMLP, forward; forward + backward) when it can be imported, and says so
when not. To compare, run it in the same session as ./bench_moe -layers 1: clocks move with temperature, ratios do not.
"""
import statistics, sys, time

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


def median_ms(work, torch):
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    times = []
    for _ in range(9):
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def main():
    args = sys.argv[1:]
    if "--path" in args:
        sys.path.insert(0, args[args.index("--path") + 1])
        del args[args.index("--path"):args.index("--path") + 2]
    try:
        import torch
        from scattermoe.mlp import GLUMLP
    except ImportError as e:
        print(f"no peer to time: {e}")
        return
    print(f"ScatterMoE on {torch.cuda.get_device_name()}, PyTorch {torch.__version__}: "
          "TFLOP/s forward / backward / both")
    for name, N, C, F, E, K in SIZES:
        if args and args[0] not in name:
            continue
        torch.manual_seed(1)
        layer = GLUMLP(C, F, E, K, activation=torch.nn.SiLU()).to("cuda", torch.bfloat16)
        with torch.no_grad():
            for p in layer.parameters():
                p.normal_(0, 0.02)
        x = (0.2 * torch.randn(N, C, device="cuda")).bfloat16().requires_grad_()
        dout = (0.2 * torch.randn(N, C, device="cuda")).bfloat16()
        p, expert = torch.topk(torch.rand(N, E, device="cuda"), K)
        p = torch.softmax(p, -1).bfloat16().requires_grad_()

        def forward():
            with torch.no_grad():
                layer(x, p, expert)

        def both():
            layer.zero_grad(set_to_none=True)
            x.grad = p.grad = None
            layer(x, p, expert).backward(dout)

        try:
            work, f, fb = 6 * N * K * F * C / 1e9, median_ms(forward, torch), median_ms(both, torch)
            print(f"{name:12s} {N},{C},{F},{E},{K}  {f:8.3f} + {fb - f:8.3f} ms  "
                  f"{work / f:6.1f} / {2 * work / (fb - f):6.1f} / {3 * work / fb:6.1f} TFLOP/s", flush=True)
        except Exception as e:
            print(f"{name:12s} failed: {str(e)[:200]}", flush=True)
        del layer, x, dout, p, expert
        torch.cuda.empty_cache()


main()
