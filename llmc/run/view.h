/* view.h: which expert reads which token. The choices of one layer's routers are counted while the
 * model reads tokens, and shown: each expert's fraction of the tokens, its most characteristic
 * tokens (highest KL contribution), and a color per expert for the text. Or the choices of all
 * layers are recorded, token by token.
 *
 * In inference all layers use the same buffers, so the next layer overwrites a layer's choices.
 * Watched layers therefore get buffers of their own. */
#pragma once
#include "llmc/data/tokenizer.h"
#include "llmc/base/text.h"
#include "llmc/model/model.h"

typedef struct {                        /* one watched router */
    const char *name;
    int    layer;
    Route *route;
    int   *own, *host;                  /* (N,K) its choices, on the device and on the host */
    unsigned *count, *first;            /* (E,V) how often it chose an expert for a token; (E) as its first choice */
} Lens;
typedef struct {
    Lens *lens, *main;                  /* (lenses), in order; main: the one that colors; NULL: nothing is watched */
    int   lenses, layer, V;
    int   width;                        /* of a token in the record: choices of all lenses */
    Text  record;       /* (tokens, width) of all layers: the chosen experts in int, of each router the best first */
    const Device *dev;
} View;

/* Watches a layer of an allocated model, which must have routers. VIEW_ALL: all that have some. */
enum { VIEW_ALL = -1 };
void view_open(View *v, const Device *dev, Model *m, int layer);
void view_close(View *v);

/* After a pass over `tokens`: counts or records the choices. expert (N): receives the main router's
 * first choices, or, of all layers, the tokens' numbers in the record; or NULL. */
void view_read(View *v, const int *tokens, int N, int *expert);

/* One of the terminal's 256 colors; those of the first sixteen are easy to tell apart. */
int  view_color(int expert);

/* Print the counts on stderr. colored: in the colors of the text. t NULL: tokens are ids. */
void view_legend(const View *v, int colored);
void view_favourites(const View *v, const Tokenizer *t);
