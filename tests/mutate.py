#!/usr/bin/env python3
"""mutate.py: can the tests fail? Breaks one line at a time and expects them to.

    python3 tests/mutate.py [-j JOBS] [-k] [FILTER]        FILTER: only mutants whose file or text contains it
                                                           -k: keep the folders with the builds
A mutant is a line below: the group of tests that has to notice, the file, a text that occurs in it exactly once, and
what it is replaced by. The sources are copied to a folder for each job and built there by the Makefile; for a mutant one
file is compiled again. Exit code 0: every mutant was caught; 1: one survived, or its text is no longer in the file;
2: the tests fail without a mutant. Standard library only.
"""
import argparse
import concurrent.futures
import os
import pathlib
import queue
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BASIC, ROUTE, EXPERT = "kernels/cpu/basic.c", "kernels/cpu/route.c", "kernels/cpu/expert.c"
ATTENTION, MATMUL, OPTIMIZER = "kernels/cpu/attention.c", "kernels/cpu/matmul.c", "kernels/cpu/optimizer.c"
MUON = "kernels/cpu/muon.c"
MUTANTS = [
    # memory and copies
    ("kernels", BASIC, "out + (size_t)n*C, weight + (size_t)token[n]*C", "out + (size_t)n*C, weight + (size_t)n*C"),
    ("kernels", BASIC, "c < from + WIDE; c++) w[c] += R(d[c]);", "c < from + WIDE; c++) w[c] = R(d[c]);"),
    ("kernels", BASIC, "c < from + WIDE; c++) dbias[c] += R(dout[(size_t)n*C + c]);",
     "c < from + WIDE; c++) dbias[c] += R(dout[(size_t)n*C]);"),
    ("kernels", ATTENTION, "cache + (size_t)row[n]*width", "cache + (size_t)n*width"),
    # norm
    ("kernels", BASIC, "sqrt(squares / C + (real)norm.eps)", "sqrt(squares / C + 2 * (real)norm.eps)"),
    ("kernels", BASIC, "real k = r * r * r / C * dot;", "real k = r * r / C * dot;"),
    ("kernels", BASIC, "(r * R(dy[c]) * R(weight[c]) - k * R(x[c]))", "(r * R(dy[c]) * R(weight[c]) + k * R(x[c]))"),
    ("kernels", BASIC, "sum[c] += R(dy[c]) * R(X(R(x[c]) * r));", "sum[c] += R(dy[c]) * R(x[c]);"),
    # rope, residual, dropout
    ("kernels", BASIC, "sine = direction * turn[2*i + 1]", "sine = -direction * turn[2*i + 1]"),
    ("kernels", BASIC, "turn = table + (size_t)position[n] * D", "turn = table + (size_t)n * D"),
    ("kernels", BASIC, "pow((double)theta, -2.0 * i / D)", "pow((double)theta, -1.0 * i / D)"),
    ("kernels", BASIC, "return random_16(key, i) >= least;", "return random_16(key, i + 1) >= least;"),
    ("kernels", BASIC, "kept(m.key, i, m.least) ? R(inp[i]) * m.scale", "!kept(m.key, i, m.least) ? R(inp[i]) * m.scale"),
    ("kernels", BASIC, "X(R(residual[i]) + (stays ? R(branch[i]) * m.scale : 0))", "X(R(residual[i]) + (stays ? R(branch[i]) : 0))"),
    # products, in each layout
    ("kernels", MATMUL, "rows == BY_SLOT ? plan->slot_of_row : plan->token_of_row", "rows == BY_SLOT ? plan->row_of_slot : plan->token_of_row"),
    ("kernels", MATMUL, "rows == BY_SLOT ? plan->slot_of_row : plan->token_of_row", "rows == BY_SLOT ? plan->slot_of_row : plan->slot_of_row"),
    ("kernels", MATMUL, "X(R(p->out[at + x]) + sum[x])", "X(sum[x])"),
    ("kernels", MATMUL, "p->dweight[at + x] += sum[x]", "p->dweight[at + x] = sum[x]"),
    ("kernels", MATMUL, "if (p->kind == INPUT) return (Share){ rows, C, O, first, w, first };",
     "if (p->kind == INPUT) return (Share){ rows, C, O, first, 0, first };"),
    ("kernels", MATMUL, "k0 > 0 || (here && p->how == ADD)", "k0 > 0"),
    ("kernels", MATMUL, "k0 > 0 || (here && p->how == ADD)", "here && p->how == ADD"),
    ("kernels", MATMUL, "m0 = at / t.across * t.rows", "m0 = at % t.across * t.rows"),
    ("kernels", MATMUL, "load_some(a + i, k - i) * load_some(b[l] + i, k - i)", "load_some(a, k - i) * load_some(b[l] + i, k - i)"),
    # gradients as floatX
    ("kernels", OPTIMIZER, "const double s = g->dtype == REAL ? sum_of(", "const double s = 1 ? sum_of("),
    ("kernels", OPTIMIZER, "segments[s].dtype == REAL ? (const real *)grads + segments[s].gradient : NULL;",
     "(const real *)grads + segments[s].gradient;"),
    ("model", "llmc/model/plan.c", "t->layer >= 0 && t->rank > 1 ? m->matrix_gradients : REAL", "t->rank > 1 ? m->matrix_gradients : REAL"),
    ("model", "llmc/model/plan.c", "const int once = m->batch.micro_batches == 1 && ", "const int once = "),
    ("parallel", "llmc/model/tensor.c", "m->gradient_bytes += (end - t->offset) * t->element;", "m->gradient_bytes += t->count * t->element;"),
    # router, plan, losses
    ("kernels", ROUTE, "best < 0 || score[e] > score[best]", "best < 0 || score[e] >= score[best]"),
    ("kernels", ROUTE, "if (bias) score[e] += bias[e];", "if (bias) score[e] -= bias[e];"),
    ("kernels", ROUTE, "lse[n] = max + log(sum);", "lse[n] = log(sum);"),
    ("kernels", ROUTE, "scores == SIGMOID_TOPK ? log_sigmoid(R(x[chosen[k]])) :", "scores == SIGMOID_TOPK ? R(x[chosen[k]]) :"),
    ("kernels", ROUTE, "if (scores != SOFTMAX_TOPK) for (int k = 0; k < K; k++) w[k] /= kept;", "for (int k = 0; k < K; k++) w[k] /= kept;"),
    ("kernels", ROUTE, ":                          w[k] * (dw[k] - dot);", ":                          w[k] * dw[k];"),
    ("kernels", ROUTE, "for (int e = 0; e < E; e++) d[e] -= p[e] * dot;", "for (int e = 0; e < E; e++) d[e] -= dot / E;"),
    ("kernels", ROUTE, "w[k] * (dw[k] - dot) * sigmoid(-R(x[chosen[k]]))", "w[k] * (dw[k] - dot)"),
    ("kernels", ROUTE, "((real)load[e] - pull) * slope", "(real)load[e] * slope"),
    ("kernels", ROUTE, "slope = scores == SIGMOID_TOPK ? p[e] * sigmoid(-R(x[e])) : p[e]", "slope = p[e]"),
    ("kernels", ROUTE, "(real)zloss * 2 * lse[n] / N", "(real)zloss * lse[n] / N"),
    ("kernels", ROUTE, "for (int s = 0; s < S; s++) {                           /* start[e] doubles",
     "for (int s = S - 1; s >= 0; s--) {                      /* start[e] doubles"),
    ("kernels", ROUTE, "partial[2*b + 1] += (double)lse[n] * (double)lse[n];", "partial[2*b + 1] += (double)lse[n];"),
    ("kernels", ROUTE, "balance * E / ((double)K * N * tokens)", "balance * E / ((double)K * N * N)"),
    ("kernels", ROUTE, "here < sum ? (real)rate : here > sum ? -(real)rate : 0", "here < sum ? -(real)rate : (real)rate"),
    ("kernels", ROUTE, "row = rows == GROUPED ? (size_t)plan->row_of_slot[s] : s", "row = rows == GROUPED ? (size_t)plan->slot_of_row[s] : s"),
    ("kernels", ROUTE, "real w = weight ? weight[s] : 1;", "real w = weight ? weight[row] : 1;"),
    ("kernels", ROUTE, "if (rank[n] < up || rank[n] >= down) continue;", "if (rank[n] < up) continue;"),
    ("kernels", ROUTE, "if (reach >= r) limit |= bit;", "if (reach > r) limit |= bit;"),
    ("kernels", ROUTE, "before += can_round(load[e], N, tile) ? load[e] : 0;", "before += load[e];"),
    ("model", ROUTE, "const int *chosen = expert + slot;", "const int *chosen = expert + (size_t)n*K;"),
    # experts
    ("kernels", EXPERT, "dx[i]  = X(w * v * u * s * (1 + g * (1 - s)));", "dx[i]  = X(w * v * u * s);"),
    ("kernels", EXPERT, "dup[i] = X(w * v * silu);", "dup[i] = X(v * silu);"),
    ("kernels", EXPERT, "GELU_C * (1 + 3 * GELU_A * g * g)", "GELU_C * (1 + GELU_A * g * g)"),
    ("kernels", EXPERT, "dx[i] = X(w * v * 2 * g);", "dx[i] = X(w * v * g);"),
    ("kernels", EXPERT, "if (dweight) dweight[slot] = dot;", "if (dweight) dweight[m] = dot;"),
    ("kernels", EXPERT, "const real w = weight ? weight[slot] : 1;", "const real w = weight ? weight[m] : 1;"),
    ("kernels", EXPERT, "dot += v * g;", "dot += w * v * g;"),
    # attention
    ("kernels", ATTENTION, "order == HEADS_TILED ? (size_t)r*G + (size_t)g : (size_t)g*Q + (size_t)r",
     "order != HEADS_TILED ? (size_t)r*G + (size_t)g : (size_t)g*Q + (size_t)r"),
    ("kernels", ATTENTION, "*Q*G + h] = max + log(sum);", "*Q*G + h] = log(sum);"),
    ("kernels", ATTENTION, "di[j] = pi[j] * (di[j] - delta);", "di[j] = pi[j] * di[j];"),
    ("kernels", ATTENTION, "X(dqueries[i*D + d] * scale)", "X(dqueries[i*D + d])"),
    ("kernels", ATTENTION, "for (int j = last + 1; j < seen; j++) pi[j] = -(real)INFINITY;", ""),
    ("kernels", ATTENTION, "product(dvalues, D, p, 1, T, dresult, D, seen, D, count, ADD);", "product(dvalues, D, p, 1, T, dresult, D, seen, D, count, SET);"),
    ("kernels", ATTENTION, "seen = position[b] + 1;", "seen = position[b];"),
    # loss and optimizer
    ("kernels", OPTIMIZER, "loss[n] = log(sum) + max - R(x[target[n]]);", "loss[n] = log(sum) - R(x[target[n]]);"),
    ("kernels", OPTIMIZER, "X(fast_exp(hit - max) * norm - (real)scale)", "X(fast_exp(hit - max) * norm - 1)"),
    ("kernels", OPTIMIZER, "for (int v = used; v < V; v++) x[v] = X((real)0);", ""),
    ("kernels", OPTIMIZER, "for (size_t i = 0; i < count; i++) s += (double)at[i] * (double)at[i];", "for (size_t i = 1; i < count; i++) s += (double)at[i] * (double)at[i];"),
    ("kernels", OPTIMIZER, "if (!(norm <= (real)3e38)) return;", "if (norm > (real)3e38) return;"),
    ("kernels", OPTIMIZER, "? (real)a->clip / norm : 1", "? (real)a->clip / (norm * norm) : 1"),
    ("kernels", OPTIMIZER, "+ (1 - b2) * g * g;", "+ (1 - b2) * g;"),
    ("kernels", OPTIMIZER, "(sqrt(square * fix2) + eps)", "(sqrt(square) + eps)"),
    ("kernels", OPTIMIZER, "shrink = 1 - lr * (real)a->decay * (real)segments[s].decay", "shrink = 1 - lr * (real)a->decay"),
    ("kernels", OPTIMIZER, "master ? X(w) : X_random(w, bits)", "X(w)"),
    ("kernels", OPTIMIZER, "X_random(square, bits >> 16)", "X_random(square, bits)"),
    ("kernels", OPTIMIZER, "X_random(square, bits >> 16)", "X(square)"),
    ("kernels", OPTIMIZER, ">> i % 2 * 32", ">> 0"),
    ("kernels", OPTIMIZER, "master ? master[j] : R(weight[i])", "R(weight[i])"),
    # the model: what calls what, in the right order, with the right things
    ("model", "llmc/model/moe.c", "dev->parallel_linear_backward_weight(g->down, dout, m->s.act,", "dev->parallel_linear_backward_weight(g->down, dout, m->s.dact,"),
    ("model", "kernels/compound.c", "if (dbias) d->bias_backward(dbias, dresid, N, C);", ""),
    ("model", "llmc/model/model.c", "if (dbias) dev->bias_backward(dbias, m->s.branch, N, C);", ""),
    ("model", "llmc/model/moe.c", "route_backward(m, &a->mlp, p->router, g->router, &dx, x, scale, how);", ""),
    ("model", "kernels/compound.c", "s->rows || i > 0 ? ADD : SET", "SET"),
    ("model", "llmc/model/model.c", "l ? m->lg[l-1].mlp_bias : NULL", "g->mlp_bias"),
    ("model", "llmc/model/attention.c", "rotate(m, z, m->s.dq, m->s.dkv, -1);", "rotate(m, z, m->s.dq, m->s.dkv, +1);"),
    ("model", "llmc/model/attention.c", "sum_add(&dx, m->s.dkv, p->kv, 2*G*D);", ""),
    ("model", "llmc/model/attention.c", "route_backward(m, &a->att, p->att_router, g->att_router, &dx, x, scale, how);", "route_backward(m, &a->att, p->att_router, g->att_router, &dx, x, 2 * scale, how);"),
    ("model", "llmc/model/model.c", "dropout_backward(m, g->att_bias, 2*l + 1)", "dropout_backward(m, g->att_bias, 2*l + 2)"),
    ("model", "llmc/model/model.c", "if (m->recompute >= 2) {", "if (m->recompute >= 3) {"),
    ("model", "llmc/model/model.c", "dev->embed_backward(m->g.embed, m->s.dresid, m->batch.tokens, N, V, C);", "dev->embed_backward(m->g.embed, m->s.dresid, m->batch.targets, N, V, C);"),
    # ranks
    ("parallel", "llmc/model/parallel.c", "for (size_t r = 0; r < ranks; r++)\n            dev->accumulate", "for (size_t r = ranks; r-- > 0; )\n            dev->accumulate"),
    ("parallel", "llmc/model/parallel.c", "sizeof *m->results.load);\n    c->all_reduce_ints(c, m->results.load, loads);", "sizeof *m->results.load);"),
    ("parallel", "llmc/model/parallel.c", "if (m->dp.ordered || !c || !(m->batch.phase & PHASE_LAST)) return;", "if (m->dp.ordered || !c) return;"),
    ("parallel", "llmc/model/parallel.c", "losses + (m->dp.parallel->sharded && !m->dp.ordered ? norms : 0)", "losses + norms"),
    ("parallel", "llmc/model/parallel.c", "losses + (m->dp.parallel->sharded && !m->dp.ordered ? norms : 0)", "losses"),
    ("parallel", "llmc/model/parallel.c", "grads_of(m, r), r->count / (size_t)c->size);", "grads_of(m, r), r->count / (size_t)c->size / 2);"),
    ("parallel", "llmc/model/model.c", "if (l == 0 || !m->config.universal) parallel_gradients(m, 1 + l);", "if (!m->config.universal) parallel_gradients(m, 1 + l);"),
    ("parallel", "llmc/model/model.c", "parallel_gradients(m, m->manifest.range_count - 1);", ""),
    ("parallel", "llmc/model/route.c", "r->lse, r->load, model_counted(m),", "r->lse, r->load, N,"),
    ("parallel", "llmc/model/route.c", "m->z_coef * scale, model_counted(m),", "m->z_coef * scale, N,"),
    ("parallel", "llmc/model/parallel.c", "c->all_gather(c, (char *)m->params + r->offset * X, r->count / (size_t)c->size * X);", ""),
    ("parallel", "llmc/model/optim.c", "    parallel_sum_results(m);", ""),
    ("parallel", "llmc/model/tensor.c", "unit = ALIGN * (size_t)m->shards;", "unit = ALIGN;"),
    ("parallel", "llmc/model/tensor.c", "const size_t end = part.offset + part.count,", "const size_t end = part.offset + part.count - 1,"),
    ("parallel", "llmc/files/checkpoint.c", "own.offset - t->offset + from", "from"),
    ("kernels", OPTIMIZER, "j = i - segments[s].shift,", "j = i - from,"),
    ("train", OPTIMIZER, "k = j - segments[s].without_v;", "k = j;"),
    ("kernels", OPTIMIZER, "lr = (real)a->lr * (real)segments[s].rate;", "lr = (real)a->lr;"),
    ("parallel", "llmc/model/muon.c", "(size_t)rank * u->part_elements + place_of", "place_of"),
    ("parallel", "llmc/model/muon.c", "rows_of(t) != shape->rows ||", ""),
    ("parallel", "llmc/model/muon.c", "(size_t)(i % at_once(shape)) * size_of(t) + (x.from - x.begin)", "(size_t)(i % at_once(shape)) * size_of(t)"),
    ("parallel", "llmc/model/optim.c", "at, all + (size_t)r * n * size + at", "at, all + at"),
    ("train", "llmc/model/muon.c", "/ (t->kind == TENSOR_STACKED ? 2 : 1)", ""),
    ("kernels", MUON, "x[i] = X(beta * mean + (1 - beta) * g);", "x[i] = X(mean);"),
    ("kernels", MUON, "sum > 0 ? (real)(1 / sqrt(sum)) : 0", "(real)1"),
    ("kernels", MUON, "newton_schulz[2] * R(square[at])", "newton_schulz[2] * R(gram[at])"),
    ("kernels", MUON, "if (!(norm <= (real)3e38)) return -1;", "if (norm > (real)3e38) return -1;"),
    ("kernels", MUON, "rows > columns ? rows : columns)", "rows > columns ? columns : rows)"),
    ("kernels", MUON, "1 - lr * (real)a->decay * (real)s->decay", "1 - lr * (real)a->decay"),
]


class Builder:
    """A copy of the sources with a build of its own."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        for name in ("kernels", "llmc", "tests"):
            shutil.copytree(ROOT / name, self.folder / name)
        for name in ("Makefile", *(p.name for p in ROOT.glob("*.c"))):
            shutil.copy2(ROOT / name, self.folder / name)

    def build(self):
        """With as little optimization as makes building and running together shortest."""
        command = ["make", "-s", "OPT=-O2", "WARN=", "VERSION=mutant", "build/run_tests"]
        return subprocess.run(command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, group):
        """'' if the tests pass, or what they complain about first. The small shapes are enough to go wrong."""
        try:
            done = subprocess.run(["build/run_tests", "-q", "-s", "1", group], cwd=self.folder, timeout=120,
                                  env={**os.environ, "OMP_NUM_THREADS": "1"},           # jobs run beside each other
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        except subprocess.TimeoutExpired:
            return "does not end"
        if done.returncode == 0:
            return ""
        complaint = [line for line in done.stdout.splitlines() if line.startswith("FAIL")]
        return " ".join(complaint[0].split()[2:]) if complaint else f"exit code {done.returncode}"

    def objects(self, file):
        return [p for p in (self.folder / "build").rglob(pathlib.Path(file).stem + ".o") if p.as_posix().endswith(file[:-2] + ".o")]

    def judge(self, mutant):
        """(verdict, complaint) of one mutant; the folder is afterwards as it was, objects included."""
        group, file, text, broken = mutant
        path = self.folder / file
        source, stat = path.read_text(), path.stat()
        if source.count(text) != 1:
            return "GONE", f"its text occurs {source.count(text)} times"
        kept = [(p, p.read_bytes(), p.stat()) for p in self.objects(file)]
        path.write_text(source.replace(text, broken))
        for p, _, _ in kept:
            if "BF16" in p.parts and file != OPTIMIZER:     # the other two are enough: this one is taken for up to date
                later = time.time() + 1
                os.utime(p, (later, later))
        made = self.build()
        complaint = self.run(group) if made.returncode == 0 else ""
        path.write_text(source)
        os.utime(path, (stat.st_atime, stat.st_mtime))
        for p, data, then in kept:
            p.write_bytes(data)
            os.utime(p, (then.st_atime, then.st_mtime))
        if made.returncode:
            return "BUILD", made.stdout.strip().splitlines()[0] if made.stdout.strip() else "make failed"
        return ("caught", complaint) if complaint else ("SURVIVED", "")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-j", "--jobs", type=int, default=2)
    parser.add_argument("-k", "--keep", action="store_true")
    parser.add_argument("filter", nargs="?", default="")
    args = parser.parse_args()
    mutants = [m for m in MUTANTS if args.filter in m[1] or args.filter in m[2]]
    if not mutants:
        sys.exit(f"no mutant contains {args.filter!r}")
    begin = time.monotonic()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="moe-mutate-"))
    try:
        builders = queue.Queue()
        first = Builder(folder / "0")
        made = first.build()
        if made.returncode:
            print(made.stdout, file=sys.stderr)
            return 2
        for group in sorted({m[0] for m in mutants}):
            complaint = first.run(group)
            if complaint:
                print(f"the tests fail without a mutant: {group}: {complaint}", file=sys.stderr)
                return 2
        builders.put(first)
        for job in range(1, max(1, args.jobs)):
            shutil.copytree(folder / "0", folder / str(job), symlinks=True)      # times of files included: nothing is built again
            other = Builder.__new__(Builder)
            other.folder = folder / str(job)
            builders.put(other)

        def judge(mutant):
            builder = builders.get()
            try:
                return builder.judge(mutant)
            finally:
                builders.put(builder)

        bad = 0
        with concurrent.futures.ThreadPoolExecutor(max(1, args.jobs)) as pool:
            for mutant, (verdict, complaint) in zip(mutants, pool.map(judge, mutants)):
                group, file, _, broken = mutant
                bad += verdict != "caught"
                print(f"{verdict:8s} {group:8s} {file:24s} {' '.join(broken.split())[:60] or '(removed)':60s}  {complaint[:70]}", flush=True)
        print(f"{len(mutants)} mutants, {len(mutants) - bad} caught, {bad} not, {time.monotonic() - begin:.0f} s")
        return bad != 0
    finally:
        if args.keep:
            print(f"kept {folder}")
        else:
            shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
