/* routers.h: all routers of a model: where each is in arrays over all of them, their names, and
 * statistics of their loads.
 *
 * A layer has a router before its attention experts, one before its MLP experts, or both; they are
 * numbered in the order of the forward pass. Arrays over all routers are (routers, E), with the
 * larger kind's E. */
#ifndef ROUTERS_H
#define ROUTERS_H
#include "model.h"

/* its layer; attention: 1, or 0: of the MLP */
int         router_layer(const Config *c, int router, OUT int *attention);
int         router_width(const Model *m, int router);       /* its number of experts */
size_t      router_offset(const Model *m, int router);      /* of its first expert in an array
                                                             * (routers, E); of m->routers: its
                                                             * size */
const char *router_name(const Model *m, int router, char text[48]);         /* "layer 3 mlp"; returns text */
/* the most that N tokens have; a Plan counts them as int (run_plan) */
int64_t     mlp_slots(const Config *c, int N, int rounds);

typedef struct {
    double balance, z, att_balance;     /* losses: means over the routers of the MLP, of all, of
                                         * attention; 0: there are none */
    double max_load;                    /* the largest load of an expert, relative to the mean of its router */
    int    dead, experts;               /* experts without a token, of all */
} RouterStats;
/* From the loads (routers, E) and losses (routers, 2) of StepResults. */
RouterStats router_stats(const Model *m, const int *load, const double *losses);

/* Moves every router's selection biases towards a balanced load, from Model.results.load. rate,
 * relative: of router_bias. */
void routers_update_bias(Model *m, float rate, int relative);
#endif
