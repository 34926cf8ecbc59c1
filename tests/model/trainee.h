/* trainee.h: a model that trains on random tokens, for tests and benchmarks of training.
 *
 *     if (!trainee_open(&t, dev, &config, (TraineeOptions){ .B = 2, .T = 32 })) ...       the
 *     device has not enough memory for (int step = 0; step < 10; step++) trainee_send(&t, step),
 *     trainee_step(&t);
 *     trainee_close(&t);
 *
 * The fields of the model and of adamw may be changed between open and close. */
#pragma once
#include "llmc/model/optim.h"
#include "llmc/model/replay.h"

typedef struct {                        /* zeros are defaults */
    int      B, T, micro_batches;       /* of each rank; micro_batches 0: 1 */
    Recompute recompute;
    int      no_master;                 /* -mw 0 */
    Dtype    moments, gradients;        /* -mo, -mg; 0: REAL */
    float    momentum;                  /* -wm of -wo muon; 0: -wo adamw */
    int      plain;                     /* -wl 0 */
    int      absorbs;                   /* -ga momentum: */
    float    most;                      /* -cm */
    int      period;                    /* -wp */
    float    row_decay;                 /* -wn */
    uint64_t seed;                      /* of the initial weights */
    float    balance, z, dropout;       /* -ba, -zc, -dr */
    int      record;                    /* 1: the work of a step is recorded and replayed */
    int      learnable;             /* 1: the target is a function of the token; 0: it is the next token, at random */
    int      filled;                    /* 1: rows end in filler, one in all but its first token, others in less */
    const Parallel *parallel;           /* other ranks that train along; NULL: none */
} TraineeOptions;
typedef struct {
    Model     m;
    Optimizer o;
    AdamW     adamw;                    /* of the next steps */
    float     loss_factor;              /* 1; NaN gives a step whose gradient is not finite */
    TraineeOptions options;
    Replay    batch[PHASES], update[MUON_PERIODS];
    int       drawn;                    /* the number of the samples below */
    int      *tokens, *targets, *positions;     /* of a step: (micro_batches, B, T) */
    uint64_t *keys;                     /* (micro_batches) */
} Trainee;

/* ends the program if there is no such model */
Config   trainee_config(const char *descriptor, int vocab, int context);
int      trainee_open(Trainee *t, const Device *dev, const Config *c, TraineeOptions options);
/* Sends the samples with this number, drawn unless just sent, and the settings of the optimizer. */
void     trainee_send(Trainee *t, int number);
void     trainee_step(Trainee *t);                  /* all work of a step on what was sent; nothing waits */
void     trainee_do(Trainee *t, int number);        /* sends and steps */
double   trainee_loss(Trainee *t, int *bad);        /* of that step, a token's; waits. bad: a tensor
                                                     * whose gradient is not finite, or -1 */
uint64_t trainee_hash(const Trainee *t);            /* of weights, moments and master copy */
double  *trainee_gradients(const Trainee *t);       /* of that step; free() them */
void     trainee_close(Trainee *t);
/* The hash after so many steps of a model that is opened for them, on samples 0, 1, ... */
uint64_t trainee_trained(const Device *dev, const Config *c, TraineeOptions options, int steps);
