/* trainee.h: a model with random data, for benchmarks of training steps. */
#ifndef TRAINEE_H
#define TRAINEE_H
#include "llmc/model/optim.h"

typedef struct { Model m; Optimizer o; int *tokens; } Trainee;
typedef struct {
    int B, T, recompute, master; Dtype moments, gradients;     /* as train_moe's -b -t -r -mw -mo -mg */
    float momentum;                                 /* Muon's; 0: AdamW */
    const Parallel *parallel;                       /* other ranks that train along; NULL: none */
} Lesson;

int  trainee_open(Trainee *t, const Device *dev, const Config *c, Lesson l);         /* 0: the device has no room for it */
void trainee_send(Trainee *t, int number);          /* what a step needs of the host; then model_begin_micro, and so on */
void trainee_learn(void *model);                    /* model_learn of the whole step's one batch */
void trainee_close(Trainee *t);
#endif
