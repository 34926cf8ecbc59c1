/* test_train.c: accumulation, threads and recordings, which must not change a gradient, and what
 * the optimizers move. What the programs do with these is tested by tests/programs.sh. */
#include "trainee.h"
#include "tests/test.h"
#include "llmc/base/omp.h"
#include "llmc/model/ranges.h"
#include <math.h>

/* ---- training: what must not change a gradient ----------------------------------------------- */

static Config config_of(const char *descriptor) { return trainee_config(descriptor, 40, 32); }
/* lean: no master weights, moments in floatX. */
static void open_trainee(Trainee *t, const char *device, const Config *c, TraineeOptions o, int lean) {
    o.gradients = FLOATX, o.no_master = lean, o.moments = lean ? FLOATX : REAL, o.z = 0.001f;
    check(trainee_open(t, device_find(device), c, o), "%s has memory", device);
}

/* Without the balance loss, a function of a whole batch; all others are sums over tokens. */
static void accumulation(void) {
    static const struct { const char *device; double bound; } devices[] = { { "cpu-f64", 1e-12 }, { "cpu-f32", 1e-5 } };
    enum { B = 8, PARTS = 4, T = 12 };
    const Config c = config_of("m2:c16h4d4e4k2f12a4x2n0");
    for (int d = 0; d < 2; d++) {
        double *g[2], loss[2];
        size_t n = 0;
        int bad;
        for (int parts = 0; parts < 2; parts++) {
            Trainee t;
            const int count = parts ? PARTS : 1;
            open_trainee(&t, devices[d].device, &c,
                         (TraineeOptions){ .B = B / count, .T = T, .micro_batches = count, .seed = 7 }, 0);
            n = t.m.manifest.total;
            trainee_do(&t, 0);
            g[parts] = trainee_gradients(&t);
            loss[parts] = trainee_loss(&t, &bad);
            trainee_close(&t);
        }
        check_error(relative_error(g[1], g[0], n), devices[d].bound,
                    "%s: 4 micro-batches of 2 have the gradients of one batch of 8", devices[d].device);
        check_error(fabs(loss[0] - loss[1]), devices[d].bound, "%s: their loss", devices[d].device);
        free(g[0]), free(g[1]);
    }
}

/* Elements of one tensor of a kind of the optimizer's state, or, kind -1, of the weights. */
static double *state_of(const Trainee *t, int kind, int i) {
    const Device *dev = t->m.dev;
    const Tensor *tensor = &t->m.manifest.at[i];
    double *x = mem_alloc(tensor->count * sizeof *x);
    if (kind < 0) dev->to_double(x, model_weight(&t->m, tensor), tensor->count);
    else dev->reals_to_double(x, real_at(&t->m, optimizer_part(&t->o, kind),
                                         optimizer_offset(optimizer_segment(&t->o, &t->m, i), kind)), tensor->count);
    return x;
}
/* With Muon, tensors that are no matrices have AdamW's m and v, and move by as much as without,
 * times the rate of their kind. An element of a matrix moves by 0.2 times its rate, or less where
 * the gradient has less than full rank, and by no more than that in any direction. */
static double moved(const Tensor *t, const double *after, double decay, double lr) {
    double squares = 0, *before = mem_alloc(t->count * sizeof *before);
    manifest_initial(t, 3, 0, t->count, 0, before);
    for (size_t n = 0; n < t->count; n++) squares += pow(after[n] - (float)before[n] * (1 - lr * decay), 2);
    free(before);
    return sqrt(squares / (double)t->count) / lr;
}
static void muon_and_adamw(void) {
    const Config c = config_of("m2:c16h4d4e4k2f12a4x2n0");
    const double lr = 3e-3;
    Trainee t[2];
    int others = 0, matrices = 0;
    for (int i = 0; i < 2; i++) {
        const TraineeOptions o = { .B = 8, .T = 16, .seed = 3, .momentum = i ? 0.95f : 0 };
        open_trainee(&t[i], "cpu-f32", &c, o, 0);
        trainee_do(&t[i], 0);
    }
    check(optimizer_count(&t[1].o, &t[1].m, 1) < optimizer_count(&t[0].o, &t[0].m, 1) / 4, "Muon's tensors have no v");
    for (int i = 0; i < t[0].m.manifest.count; i++) {
        const Tensor *tensor = &t[0].m.manifest.at[i];
        double *x[2][3];
        const int has = optimizer_has(&t[1].o, &t[1].m, 1, i), kinds = has ? 3 : 1;
        for (int j = 0; j < 2; j++) for (int k = 0; k < kinds; k++) x[j][k] = state_of(&t[j], k - 1, i);
        const Segment part = optimizer_segment(&t[1].o, &t[1].m, i);
        const double rate = lr * (double)part.rate, size = moved(tensor, x[1][0], 0.1 * (double)part.decay, rate);
        if (has) {
            const double alone = moved(tensor, x[0][0], 0.1 * (double)part.decay, lr);
            check(fabs(size - alone) < 1e-4 * alone, "%s moves by %.6f of its rate, with AdamW alone by %.6f",
                  tensor->name, size, alone);
            int same = 1;
            for (int k = 1; k < 3; k++) same &= !memcmp(x[0][k], x[1][k], tensor->count * sizeof **x[0]);
            check(same, "%s: m and v are AdamW's", tensor->name);
            others++;
        } else {
            check(size > 0.05 && size < 0.25, "%s: elements move by %.3f of their rate", tensor->name, size);
            matrices++;
        }
        for (int j = 0; j < 2; j++) for (int k = 0; k < kinds; k++) free(x[j][k]);
    }
    int count = 0;                                      /* keys, values; 4 queries, 4 outputs; 4 gates, ups and downs */
    for (int i = 0; i < t[1].o.muon.shape_count; i++) count += t[1].o.muon.shapes[i].count;
    check(count == 2 * (2 + 4 + 4 + 3 * 4),
          "each expert's matrix is one, and so is each half of two that are stacked: %d", count);
    check(matrices == 2 * 5 && others == 1 + 2 * 4 + 1 + 2 * 2, "%d tensors are Muon's, %d AdamW's", matrices, others);
    for (int i = 0; i < 2; i++) trainee_close(&t[i]);
}

/* -wl 0: the update is of the momentum. The first has Nesterov's direction, the second has not. */
static void lookahead(void) {
    const Config c = config_of("m1:c16h4d4e4k2f12n0");
    Trainee t[2];
    double apart[2] = { 0 };
    for (int i = 0; i < 2; i++)
        open_trainee(&t[i], "cpu-f64", &c, (TraineeOptions){ .B = 8, .T = 16, .seed = 3, .momentum = 0.9f, .plain = i },
                     0);
    for (int step = 0; step < 2; step++) {
        for (int i = 0; i < 2; i++) trainee_do(&t[i], step);
        for (int i = 0; i < t[0].m.manifest.count; i++) {
            double *a = state_of(&t[0], -1, i), *b = state_of(&t[1], -1, i);
            for (size_t n = 0; n < t[0].m.manifest.at[i].count; n++) apart[step] = fmax(apart[step], fabs(a[n] - b[n]));
            free_each(a, b);
        }
    }
    check(apart[0] < 1e-12 && apart[1] > 1e-4, "plain momentum, Nesterov's: %.1e apart after an update, %.1e after two",
          apart[0], apart[1]);
    for (int i = 0; i < 2; i++) trainee_close(&t[i]);
}

/* Does each expert move in its slice, and only then? The first time by PERIOD times as much as
 * without slices, and all have a momentum. */
static void experts_by_slices(void) {
    enum { PERIOD = 3, UPDATES = 4 };
    const Config c = config_of("m2:c16h4d4e5k2f12a4x2n0");
    const Device *dev = device_find("cpu-f32");
    Trainee t, plain;
    int wrong = 0, moved = 0, kept = 0, still = 0;
    double apart = 0, full = 0;
    TraineeOptions o = { .B = 8, .T = 16, .seed = 3, .momentum = 0.9f };
    open_trainee(&plain, "cpu-f32", &c, o, 0);
    o.period = PERIOD, open_trainee(&t, "cpu-f32", &c, o, 0);
    trainee_do(&plain, 1);
    const size_t all = t.m.manifest.total;
    float *before = mem_alloc(all * sizeof *before), *after = mem_alloc(all * sizeof *after),
        *usual = mem_alloc(all * sizeof *usual);
    dev->download(usual, plain.m.params, all * sizeof *usual);
    for (int update = 1; update <= UPDATES; update++) {
        dev->download(before, t.m.params, all * sizeof *before);
        trainee_do(&t, update);
        dev->download(after, t.m.params, all * sizeof *after);
        for (int i = 0; i < t.m.manifest.count; i++) {
            const Tensor *x = &t.m.manifest.at[i];
            const int experts = muon_updates(&t.o, x) && x->rank > 2, parts = experts ? x->shape[0] : 1;
            const size_t each = x->count / (size_t)parts;
            for (int e = 0; e < parts; e++) {
                const size_t from = x->offset + (size_t)e * each;
                const int due = !experts || e % PERIOD == update % PERIOD,
                    same = !memcmp(before + from, after + from, each * sizeof *after);
                wrong += due == same;
                if (experts && due) moved++;
                else if (experts) kept++;
                for (size_t n = from; experts && due && update == 1 && n < from + each; n++)
                    apart += pow((after[n] - before[n]) - PERIOD * (usual[n] - before[n]), 2),
                        full += pow(after[n] - before[n], 2);
            }
            if (!experts || update > 1) continue;
            double *momentum = state_of(&t, 0, i);
            for (size_t n = 0; n < x->count; n++) still += momentum[n] == 0;
            free(momentum);
        }
    }
    check(!wrong && moved && kept > moved,
          "what has its turn moves, %d times, and no other expert, %d times: %d are wrong", moved, kept, wrong);
    check(full > 0 && apart < 1e-6 * full, "by as many times as much: %.2g of it is not", sqrt(apart / full));
    check(still < 100, "every expert has a momentum after one update; %d elements are 0", still);
    free(before), free(after), free(usual), trainee_close(&t), trainee_close(&plain);
}

/* What one update adds to the matrices of a tensor, of which the shorter side is `other` long: for
 * each row, or column, of the longer side, the squares. Returns the sum of them all. */
static double added_squares(const Trainee *t, int i, double *squares) {
    const Tensor *x = &t->m.manifest.at[i];
    const int rows = tensor_rows(x), columns = x->shape[x->rank - 1], across = rows < columns,
        side = across ? columns : rows;
    double *after = state_of(t, -1, i), *before = mem_alloc(x->count * sizeof *before), all = 0;
    manifest_initial(x, 3, 0, x->count, 1, before);
    memset(squares, 0, x->count / (size_t)(across ? rows : columns) * sizeof *squares);
    for (size_t n = 0; n < x->count; n++) {
        const size_t matrix = n / (size_t)(rows * columns), at = n % (size_t)(rows * columns),
            row = across ? at % (size_t)columns : at / (size_t)columns;
        const double d = after[n] - before[n];
        squares[matrix * (size_t)side + row] += d * d, all += d * d;
    }
    free(before), free(after);
    return all;
}
/* -wn: the first update makes all rows, or columns, of a matrix equally long, and itself as long as
 * without. Squares that are kept are those of the update before that. Zeros leave zeros. */
static void rows_alike(void) {
    const Config c = config_of("m2:c16h4d4e4k2f12a4x2n0");
    Trainee t[2];
    int matrices = 0;
    for (int i = 0; i < 2; i++) {
        const TraineeOptions o = { .B = 8, .T = 16, .seed = 3, .momentum = 0.95f, .row_decay = i ? 0.75f : 0 };
        open_trainee(&t[i], "cpu-f64", &c, o, 0);
        t[i].adamw.decay = 0;
        trainee_do(&t[i], 0);
    }
    for (int i = 0; i < t[0].m.manifest.count; i++) {
        const size_t n = optimizer_elements(&t[1].o, &t[1].m, STATE_SQUARES, i);
        if (!n) continue;
        const Tensor *x = &t[1].m.manifest.at[i];
        const int rows = tensor_rows(x), columns = x->shape[x->rank - 1], side = rows > columns ? rows : columns;
        const Segment s = optimizer_segment(&t[1].o, &t[1].m, i);
        const double unit = 0.2 * sqrt(side) * (double)(t[1].adamw.lr * s.rate);
        double all[2], uneven[2] = { 0 }, wrong = 0, *kept = mem_alloc(n * sizeof *kept), *squares[2];
        for (int k = 0; k < 2; k++) {
            squares[k] = mem_alloc(n * sizeof *kept);
            all[k] = added_squares(&t[k], i, squares[k]);
            for (size_t j = 0; j < n; j++)
                uneven[k] = fmax(uneven[k], fabs(squares[k][j] / squares[k][j - j % (size_t)side] - 1));
        }
        t[1].m.dev->reals_to_double(kept, real_at(&t[1].m, t[1].o.squares, s.squares), n);
        for (size_t j = 0; j < n; j++)
            wrong = fmax(wrong, fabs(kept[j] * unit * unit * (rows * columns / side) / (0.25 * squares[0][j]) - 1));
        check(uneven[1] < 1e-9 && uneven[0] > 0.01, "%s: rows are equally long: %.1e, without %.1e", x->name, uneven[1],
              uneven[0]);
        check(fabs(all[1] - all[0]) < 1e-9 * all[0], "%s: the update is as long: %g and %g", x->name, all[1], all[0]);
        check(wrong < 1e-6, "%s: a quarter of the squares is kept, but for %.1e", x->name, wrong);
        free(squares[0]), free(squares[1]), free(kept), matrices++;
    }
    check(matrices == 2 * 5, "%d tensors have mean squares", matrices);
    t[1].adamw.lr = 1e-3f;
    for (int step = 1; step < 4; step++) trainee_do(&t[1], step);
    int bad;
    check(trainee_loss(&t[1], &bad) > 0 && bad < 0, "more updates are finite");
    for (int i = 0; i < 2; i++) trainee_close(&t[i]);
}

static void threads(float momentum) {
#ifdef _OPENMP
    static const char *const devices[] = { "cpu-f32", "cpu-bf16" };
    const int usual = omp_get_max_threads();
    for (int d = 0; d < 2; d++) {
        const Config c = config_of("m2:c48h4e6k2f40a4x2n0");
        uint64_t hash[3];
        for (int n = 1; n <= 3; n++) {
            omp_set_num_threads(n);
            hash[n - 1] = trainee_trained(device_find(devices[d]), &c, (TraineeOptions){ .B = 4, .T = 32, .seed = 11,
                                          .momentum = momentum, .row_decay = momentum > 0 ? 0.9f : 0,
                                          .gradients = FLOATX, .balance = 0.01f, .z = 0.001f }, 20);
        }
        check(hash[0] == hash[1] && hash[0] == hash[2],
              "%s: 20 steps%s give the same bits with 1, 2 and 3 threads", devices[d], momentum > 0 ? " of Muon" : "");
    }
    omp_set_num_threads(usual);
#else
    (void)momentum;
    skip("built without OpenMP: there is only one thread");
#endif
}

/* ---- replaying: a device that logs its calls ------------------------------------------- */

static char calls[64];
static void note(const char *what) { strncat(calls, what, sizeof calls - strlen(calls) - 1); }
static void work(void *context) { note(context); }
static const char *refuses_at;                              /* begin, end, or nowhere */
static const char *fake_begin(void) { note("("); return strcmp(refuses_at, "begin") ? NULL : "too old"; }
static Recording *fake_end(const char **why) {
    note(")");
    *why = "too new";
    return strcmp(refuses_at, "end") ? (Recording *)calls : NULL;
}
static void fake_replay(const Recording *r) { note(r ? "r" : "?"); }
static void fake_free(Recording *r) { note(r ? "f" : "?"); }
static void expect(Replay *r, const Device *dev, const uint64_t *states, const char *expected, const char *what) {
    calls[0] = 0;
    for (; *states; states++) replay_run(r, dev, *states, work, "w");
    check(!strcmp(calls, expected), "%s: calls %s, expected %s", what, calls, expected);
}
static int refusals;
static void count_refusal(const char *text) { refusals += strstr(text, "fake could not be recorded (too") != NULL; }
static void replaying(void) {
    static const uint64_t same[] = { 5, 5, 5, 5, 0 }, changes[] = { 5, 5, 7, 7, 7, 0 };
    Device dev = { .name = "fake", .record_begin = fake_begin, .record_end = fake_end, .replay = fake_replay,
                   .record_free = fake_free }, plain = { .name = "plain" };
    Replay r = { 0 }, off = { .off = 1 }, begin = { 0 }, end = { 0 }, cpu = { 0 };
    refuses_at = "nowhere";
    expect(&r, &dev, same, "w(w)rrr", "once plainly, once recorded, then replayed");
    expect(&r, &dev, changes, "rrfw(w)rr", "in another state the recording is dropped and made again");
    calls[0] = 0;
    replay_free(&r, &dev);
    check(!strcmp(calls, "f") && !r.recording, "a recording is freed");
    expect(&off, &dev, same, "wwww", "recording is off");
    expect(&cpu, &plain, same, "wwww", "a device that cannot record");
    warn_hook(count_refusal);
    refuses_at = "begin";
    expect(&begin, &dev, same, "w(www",
           "recording is refused: work is queued plainly, and recording is not tried again");
    refuses_at = "end";
    expect(&end, &dev, same, "w(w)www", "work that could not be recorded is queued plainly");
    warn_hook(NULL);
    check(refusals == 2, "each refusal is reported once (above)");
}
void test_train(void) {
    PART(accumulation());
    PART(muon_and_adamw());
    PART(lookahead());
    PART(experts_by_slices());
    PART(rows_alike());
    PART(threads(0));
    PART(threads(0.95f));
    PART(replaying());
    test_settings();
    test_configs();
    test_checkpoints();
    test_absorb();
}
