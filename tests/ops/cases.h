/* cases.h: every operation of the Device table as data, declared once, in cases.c.
 *
 * A Case is one call of one operation: its buffers, each with its role, type, size, contents and error bound; its other
 * arguments; how many operations it takes; and the call itself, through the table. Whoever wants to know
 * something about the operations visits the list:
 *     test_kernels.c   any device against cpu-f64 or a naive loop, gradients by finite differences, overruns, same bits
 *     bench_moe.c      times, and the share of what the machine can do; the list of operations
 * Nothing here touches a device's memory but through the table, so a case serves any device.
 *
 * Names carry meaning: the gradient of buffer `x` is called `dx`. That is all the gradient check has to know. */
#ifndef CASES_H
#define CASES_H
#include "kernels/kernels.h"
#include "llmc/base/base.h"

enum { MOST_BUFFERS = 20, MOST_SEGMENTS = 67, GUARD = 256 };    /* GUARD: bytes of canary on each side of a buffer */
typedef enum { INPUT, SCRATCH, OUTPUT, UPDATE } Role;   /* read; of no interest; overwritten; read and written */
/* The dtype of a buffer: a Dtype of kernels.h, or one of these. BYTE: of a struct or a key, as the host has them. */
enum { INTEGER = FLOATX + 1, BYTE };

/* The bound on an error is stored * eps(floatX) + summed * eps(real): roundings of stored values, and those of sums
 * made in real. Both 0: the same bits, once the expected value is rounded to the device's type. */
typedef struct {
    const char *name;
    Role role;
    int dtype;
    size_t n, moved;                    /* elements; elements that have to be read or written, if not all */
    double *value;                      /* what it holds before the call; NULL for OUTPUT and SCRATCH, which start as NaN */
    size_t given;                       /* elements of value, which are repeated up to n. Less than n only to be timed */
    double stored, summed;
} Buffer;

typedef enum {                  /* which experts the tokens of a case choose */
    MIXED,                      /* K different ones at random */
    ONE,                        /* all the same one */
    HALF,                       /* the odd-numbered ones; the others get nothing */
    VARIED,                     /* none to K different ones, as when routing is rounded */
    IN_TILES,                   /* expert e gets in_tiles[e] tokens: whole tiles. K = 1, E = 5, N = 768 */
    LADDER                      /* expert e gets ladder[e] tokens: 0, 1 and around multiples of tiles. K = 1, E = 9 */
} Routing;
enum { LADDER_TOKENS = 0 + 1 + 7 + 63 + 64 + 65 + 127 + 128 + 129 };

typedef struct { const char *name; int B, T, C, V, E, K, F, G, Q, D; Routing routing; } Shape;  /* letters: kernels.h */

typedef struct Case Case;
struct Case {
    const char *op;                     /* the field of Device */
    char what[128];                     /* the op and everything that tells this case from others */
    Shape s;
    int exact;                          /* inputs are multiples of 1/128: sums have no error, whatever their order */
    int unchanged;                      /* the operation must refuse: UPDATE buffers keep their contents */
    Buffer buffer[MOST_BUFFERS];        /* as the operation takes them */
    int buffers, plan;                  /* plan: the first of the plan's buffers, or -1 */
    void (*call)(const Device *d, const Case *c, void *const *b);
    double flops;                       /* 0: limited by memory */
    Case *forward[2];                   /* if this is a backward: of what. Owned */
    Case *dense, *even;                 /* if this is a routed product: one of one matrix, of the same size; and itself with
                                         * rows in order and without a plan, for ladder_uniform. Owned */

    int N, S, M, C, O, F;               /* the other arguments, as the operation names them */
    Rows from, to;
    Activation f;
    Scores scores;
    HeadOrder order;
    Write how;
    int tokens, forced, gradient, used, direction, stride, heads, count, site;
    float eps, p, balance, zloss, scale, rate;
    uint64_t key;
    AdamW adamw;  Muon muon;  int updates;  Dtype moments, gradients;
    Segment segment[MOST_SEGMENTS];
    Sampler sampler;
    Rounding rule;  int tile;
};

/* Calls visit with every case of a shape, and frees the case after. all: every variant, to be checked; 0: those that a
 * model uses, to be timed. */
void each_case(const Shape *shape, int all, void (*visit)(Case *c, void *context), void *context);
Case *case_product(int N, int C, int O);                /* one dense product, to be timed */
void  case_free(Case *c);
extern uint64_t case_seed;                              /* contents are a function of this and of the case's name */

int    case_find(const Case *c, const char *name);      /* index of a buffer, or -1 */
double case_bytes(const Case *c, const Device *dev);    /* that have to be moved at least */
void   case_round(Case *c, const Device *dev);          /* contents become what this device can hold */

/* A case in a device's memory, ready to be called. */
typedef struct { const Case *c; const Device *dev; void *base[MOST_BUFFERS], *at[MOST_BUFFERS]; } Placed;
int    case_place(Placed *p, const Case *c, const Device *dev);     /* 0 if the device has not enough memory */
void   case_run(const Placed *p);                                   /* queued, as all work is */
double *case_read(const Placed *p, int i);                          /* a buffer as doubles; free() it */
void  *case_bits(const Placed *p, int i, size_t *bytes);            /* as it lies there; free() it */
int    case_guard(const Placed *p, int i);                          /* are the canaries of a buffer alive? */
void   case_release(Placed *p);
#endif
