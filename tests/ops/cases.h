/* cases.h: every operation of the Device table as data, declared once, in cases.c.
 *
 * A Case is one call of one operation: its buffers, each with role, type, size, contents and error
 * bound; its other arguments; and the call itself, through the table. Its users visit the list:
 *     test_ops.c   compares any device with cpu-f64, cpu-f64 with the definitions, backwards with
 *                  finite differences
 *     bench_moe.c  times the cases and compares the times with limits
 * Only the table touches a device's memory, so a case serves any device.
 *
 * Names have a meaning: the gradient of buffer `x` is called `dx`. The gradient check relies on
 * nothing else. */
#pragma once
#include "kernels/kernels.h"
#include "llmc/base/base.h"

enum { MOST_BUFFERS = 21, MOST_SEGMENTS = 67, GUARD = 256 };    /* GUARD: canary bytes on each side of a buffer */
typedef enum { INPUT, SCRATCH, OUTPUT, UPDATE } Role;   /* read; not compared; overwritten; read and written */
/* A Dtype of kernels.h, or one of these. BYTE: bytes of a struct, a key or e4m3 codes. CODES: codes
 * of rows (Fp8), read as values; their scales, REAL, are the next buffer. */
enum { INTEGER = INT8 + 1, BYTE, CODES };

/* The bound on an error is stored * eps(floatX) + summed * eps(real): roundings of stored values,
 * and of sums in real. Both 0: the expected value, rounded to the device's type, bit for bit. That
 * on values of codes is a unit in the last place. */
typedef struct {
    const char *name;
    Role role;
    int dtype;
    size_t n;                           /* elements */
    double *value;                      /* contents before the call; NULL for OUTPUT and SCRATCH, which start as NaN */
    size_t given;                       /* elements of value; repeated up to n. Less than n only for timing */
    double stored, summed;
} Buffer;

typedef enum {                  /* which experts the tokens of a case choose */
    MIXED,                      /* K different ones at random */
    ONE,                        /* all the same expert */
    HALF,                       /* only odd-numbered experts */
    VARIED,                     /* 0 to K different ones, as if routing were rounded */
    IN_TILES,                   /* expert e gets in_tiles[e] tokens: whole tiles. K = 1, E = 5, N = 768 */
    LADDER              /* expert e gets ladder[e] tokens: 0, 1 and around multiples of tiles. K = 1, E = 9, N = 584 */
} Routing;

typedef struct { const char *name; int B, T, C, V, E, K, F, G, Q, D; Routing routing; } Shape;  /* letters: kernels.h */

typedef struct Case Case;
struct Case {
    const char *op;                     /* the field of Device */
    char what[128];                     /* the op and everything that distinguishes this case */
    Shape s;
    int exact;                          /* inputs are multiples of 1/128, so that sums have no error in any order */
    int unchanged;                      /* the operation must do nothing: UPDATE buffers keep their contents */
    int calls;                          /* how often it may be called before case_fill, since UPDATE
                                         * buffers say where it writes; 0: any number of times */
    Buffer buffer[MOST_BUFFERS];        /* in the order of its arguments */
    int buffers, plan;                  /* plan: the first of the plan's buffers, or -1 */
    void (*call)(const Device *d, const Case *c, void *const *b);
    Case *forward[2];                   /* of a backward: its forwards. Owned */
    Case *dense, *even;                 /* of a routed product: one dense product of the same size;
                                         * and itself without a plan and with rows in order, for
                                         * ladder_uniform. Owned */

    int N, S, M, C, O, F;               /* the other arguments, named as in kernels.h */
    Rows from, to;
    Activation f;
    Groups groups;
    Scores scores;
    HeadOrder order;
    int window;
    Write how;
    int ranks, forced, relative, gradient, used, direction, stride, heads, count, site;
    float eps, p, balance, zloss, scale, rate, cap;
    uint64_t key;
    AdamW adamw;  Muon muon;  int updates;  Dtype moments, gradients;
    Segment segment[MOST_SEGMENTS];
    Sampler sampler;
    int tile;
};

/* Calls visit with every case of a shape, and frees it. all 1: every variant, to be checked; 0:
 * those that a model uses, to be timed. only: operations whose names begin so; "": all. Making a
 * case takes longer than most checks of it. */
void each_case(const Shape *shape, int all, const char *only, void (*visit)(Case *c, void *context), void *context);
Case *case_product(int N, int C, int O);                /* one dense product, to be timed */
typedef struct { double flop, bytes; } Cost;            /* flop 0: limited by memory. bytes: moved at least */
Cost  case_cost(const Case *c, const Device *dev);      /* as operations.h has it; cost.c */
void  case_free(Case *c);
int   case_fits(const Case *c, const Device *dev);      /* 0: the device does not have this operation for this size */
extern uint64_t case_seed;                              /* contents are a function of this and of `what` */

double case_e4m3(int code);                             /* what the code is, by the definition of e4m3 */
int    case_find(const Case *c, const char *name);      /* index of a buffer, or -1 */
void   case_round(Case *c, const Device *dev);          /* rounds the contents to the device's types */

/* A case in a device's memory, ready to be called. */
typedef struct { const Case *c; const Device *dev; void *base[MOST_BUFFERS], *at[MOST_BUFFERS]; } CaseOnDevice;
/* and case_fill; 0: the device does not have enough memory */
int    case_allocate(CaseOnDevice *p, const Case *c, const Device *dev);
void   case_fill(const CaseOnDevice *p);                            /* the contents before the first call */
void   case_run(const CaseOnDevice *p);                             /* queued, as all work is */
double *case_read(const CaseOnDevice *p, int i);                    /* a buffer as doubles; free() it */
void  *case_bits(const CaseOnDevice *p, int i, size_t *bytes);      /* the bytes of a buffer; free() it */
int    case_guard(const CaseOnDevice *p, int i);            /* 1: the canaries around a buffer, if any, are intact */
void   case_release(CaseOnDevice *p);
