/* view.h: which expert reads which token. The choices of one layer's routers are recorded while the model reads tokens, and
 * shown: each expert's share of the tokens, its most characteristic tokens (highest KL contribution), and a color per expert
 * for the text.
 *
 * In inference all layers use the same buffers, so the next layer overwrites a layer's choices. The watched layer therefore
 * gets buffers of its own. */
#ifndef VIEW_H
#define VIEW_H
#include "llmc/data/tokenizer.h"
#include "llmc/model/model.h"

typedef struct {                        /* one watched router */
    const char *name;
    Route *route;                       /* NULL: this layer has no such router */
    int   *own, *host;                  /* (N,K) its choices, on the device and on the host */
    unsigned *count, *first;            /* (E,V) how often it chose the expert for a token; (E) as its first choice */
} Lens;
typedef struct {
    Lens lens[2], *main;                /* of attention and of the MLP; main: the one that colors. NULL: nothing is watched */
    int layer, V;
    const Device *dev;
} View;

/* Watches a layer, which must have routers, of an allocated model. */
void view_open(View *v, const Device *dev, Model *m, int layer);
void view_close(View *v);

/* After a pass over `tokens`: counts the choices. expert (N): receives the main router's first choices; NULL: not wanted. */
void view_read(View *v, const int *tokens, int N, int *expert);

/* One of the terminal's 256 colors; the first sixteen experts get colors that are easy to tell apart. */
int  view_color(int expert);

/* Print the counts on stderr. colored: the text was colored; then the legend is, too, on a terminal. t NULL: tokens are ids. */
void view_legend(const View *v, int colored);
void view_favourites(const View *v, const Tokenizer *t);
#endif
