/* route.h: one router, whatever its experts are.   router (E,C)  bias (E)  x (N,C) */
#pragma once
#include "model.h"

void route_forward (Model *m, Route *r, const floatX *router, const floatX *bias, const floatX *x);
void route_losses  (Model *m, Route *r);
Counted model_counted(const Model *m);
void route_backward(Model *m, Route *r, const floatX *router, void *drouter, real *dbias, ACC Sum *dx, const floatX *x,
                    float scale, Write how);                            /* bias, dbias NULL: there is none */
