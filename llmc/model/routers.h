/* routers.h: all routers of a model: where each is in arrays, their names, statistics of loads.
 *
 * A layer has a router before its attention experts, one before its MLP experts, or both; they are
 * numbered in the order of the forward pass. Arrays are (routers, E), with the larger kind's E. */
#pragma once
#include "model.h"

int         router_layer(const Config *c, int router, OUT int *attention);      /* attention 0: of the MLP */
int         router_width(const Model *m, int router);       /* its number of experts */
size_t      router_offset(const Model *m, int router);      /* in an array (routers, E); of m->routers: its size */
const char *router_name(const Model *m, int router, char text[48]);         /* "layer 3 mlp"; returns text */
int64_t     mlp_slots(const Config *c, int N, int rounds);  /* the most of N tokens; a Plan's are int (run_plan) */

typedef struct {
    double balance, z, att_balance;     /* losses: means over the routers of MLPs, all, of attention; 0: no such */
    double max_load;                    /* the largest load of an expert, relative to the mean of its router */
    int    dead, experts;               /* experts without a token, of all */
} RouterStats;
/* From the loads (routers, E) and losses (routers, 2) of StepResults. */
RouterStats router_stats(const Model *m, const int *load, const double *losses);

/* Moves selection biases towards a balanced load, by Model.results.load; as router_bias. */
void routers_update_bias(Model *m, float rate, int relative);
