/* view.h: which expert read which token. One layer of a model that generates is watched, and what its routers chose is
 * shown: the share of every expert, the tokens it is fond of, and a color for the text it read.
 *
 * In inference all layers share one set of buffers, so the choices of a layer are gone when the next has run: those
 * of the watched layer get buffers of their own. */
#ifndef VIEW_H
#define VIEW_H
#include "llmc/model/model.h"
#include "llmc/data/tokenizer.h"

typedef struct {                        /* one router whose choices are watched */
    const char *name;
    Route *route;                       /* NULL: this layer has no such router */
    int   *own, *host;                  /* (N,K) its choices, on the device and here */
    unsigned *count, *first;            /* (E,V) how often it sent a token to an expert; (E) as its first choice */
} Lens;
typedef struct {
    Lens lens[2], *main;                /* of attention and MLP; the one that colors. NULL: nothing is watched */
    int layer, V;
    const Device *dev;
} View;

/* Watches a layer of an allocated model that has routers. */
void view_open(View *v, const Device *dev, Model *m, int layer);
void view_close(View *v);

/* After a pass over `tokens`: counts, and the first choice of the coloring router for each, unless expert is NULL. */
void view_read(View *v, const int *tokens, int N, int *expert);

/* Of the 256 colors of a terminal, sixteen that are easy to tell apart, then the others. */
int  view_color(int expert);

/* What was counted, on stderr. colored: the text was; and so is the legend, on a terminal. t: NULL: tokens are ids. */
void view_legend(const View *v, int colored);
void view_favourites(const View *v, const Tokenizer *t);
#endif
