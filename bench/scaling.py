#!/usr/bin/env python3
"""scaling.py: the tables of docs/scaling.md: what data parallelism with a sharded optimizer (-z 1) should cost on many
GPUs. Predictions from the formulas there; replace the inputs below by what was measured and run it again.
  python3 bench/scaling.py"""

# ---- inputs: measured on one GPU, or ASSUMED until measured on several ---------------------------------------------
GPUS_PER_NODE = 8
NVLINK = 0.80 * 450e9        # B/s each way per GPU. ASSUMED: 80 % of the nominal 450 GB/s of NVLink 4
NETWORK = 0.85 * 50e9        # B/s each way per GPU. ASSUMED: 85 % of 400 Gb/s InfiniBand, one adapter a GPU
HOP_NVLINK = 2e-6            # s a ring needs from GPU to GPU. ASSUMED
HOP_NETWORK = 8e-6           # s from node to node. ASSUMED
BESIDE = 0.12                # share of the compute rate lost while a reduction runs beside it. ASSUMED: 16 of 132 SMs
JITTER = 0.01                # of the step, waiting for the slowest rank. ASSUMED
HOST = 100e-6                # s a step for what hosts agree on; 1 us more for each process. ASSUMED (loopback: 20 us)
MEMORY = 3.9e12              # B/s of AdamW's 30 bytes a parameter. Measured: H200, bench/results
MODELS = [                   # name, parameters, of the embedding, layers, tokens/s on one GPU with the update left out
    ("m12",             329.0e6,  38.6e6, 12, 65536 / (181.5e-3 - 30 * 329.0e6 / MEMORY)),   # measured: H200, portable kernels
    ("m12:e64k8f256",   556.0e6,  38.6e6, 12, 65536 / (198.0e-3 - 30 * 556.0e6 / MEMORY)),   # measured: H200, portable kernels
    ("7B (OLMoE shape)", 6816e6, 103.0e6, 16, 300e12 / 7274.5e6),       # ASSUMED 300 TFLOP/s of 7,274 Mflop a token,
]                                                                       # from the measured rates of its layers
MICRO = 32768                # tokens of a micro-batch: B 32, T 1024
GLOBAL = 4 << 20             # tokens of a step where the step is fixed


def collective(bytes_, W):
    """A reduce-scatter or all-gather of so many bytes in a ring: W - 1 pieces pass every link one after the other."""
    nodes = max(1, W // GPUS_PER_NODE)
    rate = NVLINK if nodes == 1 else min(NVLINK, GPUS_PER_NODE * NETWORK)   # each of 8 rings leaves a node by its own adapter
    hops = (W - 1) * HOP_NVLINK if nodes == 1 else nodes * ((GPUS_PER_NODE - 1) * HOP_NVLINK + HOP_NETWORK)
    return bytes_ * (W - 1) / W / rate + (hops if W > 1 else 0)


def step(n, embedding, layers, rate, W, tokens):
    """Seconds of a step of `tokens` on each of W GPUs, and of the communication in it that nothing hides."""
    compute = tokens / rate
    update = 30 * n / W / MEMORY
    if W == 1:
        return compute + update, 0.0
    each = (n - embedding) / (layers + 1)
    hidden = (layers + 1) * collective(4 * each, W)                     # gradients of all ranges but the embedding
    backward = 0.6 * min(tokens, MICRO) / rate                          # of the last micro-batch, from its first layer on
    gather = (layers + 1) * collective(2 * each, W) + collective(2 * embedding, W)
    exposed = max(0, hidden - backward) + collective(4 * embedding, W) + gather + HOST + 1e-6 * max(1, W // GPUS_PER_NODE)
    return compute * (1 + JITTER) + BESIDE * min(hidden, backward) + update + exposed, exposed


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
