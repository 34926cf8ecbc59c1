#!/usr/bin/env python3
"""scaling.py: predicts the tables of docs/scaling-model.md: what data parallelism with a sharded optimizer (-z 1) should cost on many
GPUs, and what sharding weights costs over all of them (-z 3 -zn 0) and within nodes (-z 3). The formulas are explained there. Replace the inputs below by new measurements and run it again.
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
SHARDED = [                  # name, parameters, seconds of a micro-batch on one GPU; -z 1 fits
    ("7B, 32,768 tokens",  6816e6, 0.95 * 543.8e-3, True),      # measured: H200
    ("30B, 32,768 tokens", 30.12e9, 1.672, False),              # measured: 4 x H200 with -z 3, so with what is exchanged inside a node
]
SLOW = 0.85 * 12.5e9         # B/s each way per GPU, of a slower network. ASSUMED: 85 % of 100 Gb/s a GPU


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


def crossing(n, nodes, micro):
    """Bytes that each GPU's adapter sends in a step: with the forward passes, with the backward passes. -z 1: NCCL's rings, one through
    each adapter of a node. -z 3 over all: weights likewise; every gradient goes to its owner by itself, not as a part of a sum.
    -z 3 in nodes: an all-reduce of the sums, once."""
    S, W, out = GPUS_PER_NODE, GPUS_PER_NODE * nodes, (nodes - 1) / nodes
    ring = (W - 1) / W / S
    return {"-z 1": (2 * n * ring, 4 * n * ring), "-z 3 -zn 0": (2 * n * ring * micro, (2 * n * ring + 4 * n * out) * micro),
            "-z 3": (0, 8 * n * out / S)}


def sharded(n, t, nodes, micro, network):
    """Seconds of a step of that many micro-batches, and for each level, without latencies: a pass takes as long as the longest of its
    computation, the network, and, of -z 3, NVLink. Forward is a third of t."""
    inside = (GPUS_PER_NODE - 1) / GPUS_PER_NODE / NVLINK
    seconds = {}
    for name, (forward, backward) in crossing(n, nodes, micro).items():
        each = micro if name == "-z 3 -zn 0" else 1        # micro-batches in which the network is used
        link = (2 * n * inside, 6 * n * inside) if name == "-z 3" else (0, 0)
        seconds[name] = each * (max(t / 3, forward / each / network, link[0]) + max(2 * t / 3, backward / each / network, link[1])) \
            + (micro - each) * (max(t / 3, link[0]) + max(2 * t / 3, link[1]))
    return seconds


def hides(n, t, nodes):
    """The bandwidth of an adapter, in B/s, from which a step of one micro-batch is not slowed down by the network."""
    return {name: max(f / (t / 3), b / (2 * t / 3)) for name, (f, b) in crossing(n, nodes, 1).items()}


names = ("-z 1", "-z 3 -zn 0", "-z 3")
head = lambda what: f"{what}: " + " | ".join(f"`{k}`" for k in names)
shown = lambda values, form, fits: " | ".join(form.format(values[k]) if k != "-z 1" or fits else "" for k in names)
print("\n-z 3 in nodes of 8 GPUs: what each sends to other nodes in a step of one micro-batch, and from which bandwidth on that is hidden")
print(f"\n| tokens of a micro-batch | nodes | {head('GB')} | {head('GB/s')} |\n" + "| --- " * 8 + "|")
for name, n, t, fits in SHARDED:
    for nodes in (2, 4, 16):
        sent = {k: sum(v) / 1e9 for k, v in crossing(n, nodes, 1).items()}
        print(f"| {name} | {nodes} | {shown(sent, '{:.1f}', fits)} | {shown({k: v / 1e9 for k, v in hides(n, t, nodes).items()}, '{:.0f}', fits)} |")
print("\nms of a step of M micro-batches")
print(f"\n| tokens of a micro-batch | nodes | M | {head(f'{NETWORK / 1e9:.1f} GB/s')} | {head(f'{SLOW / 1e9:.1f} GB/s')} |\n" + "| --- " * 9 + "|")
for name, n, t, fits in SHARDED:
    for nodes in (2, 16):
        for micro in (1, 4):
            ms = [shown({k: 1e3 * v for k, v in sharded(n, t, nodes, micro, rate).items()}, "{:,.0f}", fits) for rate in (NETWORK, SLOW)]
            print(f"| {name} | {nodes} | {micro} | {ms[0]} | {ms[1]} |")
