#!/usr/bin/env python3
"""scaling.py: predicts the tables of docs/scaling.md: what data parallelism with a sharded optimizer (-z 1) should cost on many
GPUs. The formulas are explained there. Replace the inputs below by new measurements and run it again.
  python3 bench/scaling.py"""

# ---- inputs: measured on one GPU and on four (bench/results/h200-ranks.txt), or ASSUMED until measured on several nodes --
GPUS_PER_NODE = 8
NVLINK = 306e9               # B/s each way per GPU. Measured: 4 x H200, reduce-scatter and all-gather of 268 MB
NETWORK = 0.85 * 50e9        # B/s each way per GPU. ASSUMED: 85 % of 400 Gb/s InfiniBand, one adapter a GPU
HOP_NVLINK = 3e-6            # s for a ring's hop from GPU to GPU. Measured: an all-gather of 66 kB on 4 takes 8.6 us
HOP_NETWORK = 8e-6           # s from node to node. ASSUMED
BESIDE_COPIES = 0.15         # part of its time that an overlapped collective still costs. Measured: by copy engines, and
BESIDE_KERNELS = 0.35        # by kernels, which take multiprocessors
JITTER = 0.042               # of the compute time: waiting for the slowest GPU. Measured: 4 x H200, nothing exchanged
HOST = 100e-6                # s a step for messages among hosts; 1 us more for each process. ASSUMED (loopback: 20 us)
MEMORY = 3.95e12             # B/s of AdamW (30 bytes a parameter) and of adding gradients. Measured: H200
MODELS = [                   # name, parameters, those of the embedding, layers, tokens/s on one GPU without the update
    ("m12",             329.0e6,  38.6e6, 12, 65536 / (132.2e-3 - 30 * 329.0e6 / MEMORY)),   # measured: H200
    ("m12:e64k8f256",   556.0e6,  38.6e6, 12, 65536 / (143.8e-3 - 30 * 556.0e6 / MEMORY)),   # measured: H200
    ("7B (OLMoE shape)", 6816e6, 103.0e6, 16, 32768 / (0.95 * 543.8e-3)),   # measured: H200; AdamW took 5 % of the step
]
MICRO = 32768                # tokens of a micro-batch: B 32, T 1024
GLOBAL = 4 << 20             # tokens of a step if the step is fixed


def collective(bytes_, W):
    """Seconds of a reduce-scatter or all-gather: by copy engines within a node, else in a ring, where W - 1 pieces pass every
    link one after the other."""
    nodes = max(1, W // GPUS_PER_NODE)
    rate = NVLINK if nodes == 1 else min(NVLINK, GPUS_PER_NODE * NETWORK)   # each of the 8 rings leaves a node through its own adapter
    hops = (W - 1) * HOP_NVLINK if nodes == 1 else nodes * ((GPUS_PER_NODE - 1) * HOP_NVLINK + HOP_NETWORK)
    return bytes_ * (W - 1) / W / rate + (hops if W > 1 else 0)


def step(n, embedding, layers, rate, W, tokens):
    """Seconds of a step of `tokens` on each of W GPUs, and of the communication in it that is not overlapped."""
    compute = tokens / rate
    update = 30 * n / W / MEMORY
    if W == 1:
        return compute + update, 0.0
    each = (n - embedding) / (layers + 1)
    micro = min(tokens, MICRO) / rate
    reduce, backward = (layers + 1) * collective(4 * each, W), 0.6 * micro   # during the last micro-batch, from its first layer on
    gather, forward = (layers + 1) * collective(2 * each, W), 0.3 * micro    # during the first
    exposed = max(0, reduce - backward) + max(0, gather - forward) + collective(4 * embedding, W) + collective(2 * embedding, W) \
        + HOST + 1e-6 * max(1, W // GPUS_PER_NODE)
    beside = min(reduce, backward) + min(gather, forward)
    if W <= GPUS_PER_NODE:
        beside = BESIDE_COPIES * beside + 4 * n * (W + 1) / W / MEMORY
    else:
        beside = BESIDE_KERNELS * beside
    return compute * (1 + JITTER) + beside + update + exposed, exposed


for fixed in (False, True):
    print("\n4 M tokens a step on all GPUs together" if fixed else "32,768 tokens a step on each GPU")
    print("\n| model | GPUs | sent by each, GB | tokens on each | step, ms | not hidden, ms | tokens/s | efficiency |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, n, embedding, layers, rate in MODELS:
        for W in (4, 8, 32, 128, 512, 1024):
            tokens = GLOBAL / W if fixed else MICRO
            seconds, exposed = step(n, embedding, layers, rate, W, tokens)
            alone = tokens / rate + 30 * n / MEMORY * tokens / (GLOBAL if fixed else MICRO)
            print(f"| {name} | {W} | {6 * n * (W - 1) / W / 1e9:.2f} | {tokens:,.0f} | "
                  f"{1e3 * seconds:.1f} | {1e3 * exposed:.1f} | {W * tokens / seconds / 1e6:.2f} M | {alone / seconds:.2f} |")
