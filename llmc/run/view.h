/* view.h: which expert reads which token. The choices of one layer's routers are counted while the
 * model reads tokens, and shown: each expert's fraction of the tokens, its most characteristic
 * tokens (highest KL contribution), and a color per expert for the text. Or the choices of all
 * layers are recorded, token by token.
 *
 * In inference all layers use the same buffers, so the next layer overwrites a layer's choices.
 * Watched layers therefore get buffers of their own. */
#ifndef VIEW_H
#define VIEW_H
#include "llmc/data/tokenizer.h"
#include "llmc/base/text.h"
#include "llmc/model/model.h"

typedef struct {                        /* one watched router */
    const char *name;
    int    layer;
    Route *route;
    int   *own, *host;                  /* (N,K) its choices, on the device and on the host */
    unsigned *count, *first;            /* (E,V) how often it chose the expert for a token; (E) as
                                         * its first choice; of one layer */
} Lens;
typedef struct {
    /* (lenses) in the order of the forward pass; main: the one that colors. NULL: nothing is
     * watched */
    Lens *lens, *main;
    int   lenses, layer, V;
    int   width;                        /* of a token in the record: choices of all lenses */
    Text  record;       /* (tokens, width) of all layers: the chosen experts in int, of each router the best first */
    const Device *dev;
} View;

/* Watches a layer, which must have routers, of an allocated model. VIEW_ALL: all that have some;
 * there may be none. */
enum { VIEW_ALL = -1 };
void view_open(View *v, const Device *dev, Model *m, int layer);
void view_close(View *v);

/* After a pass over `tokens`: counts or records the choices. expert (N): receives the main router's
 * first choices, or, of all layers, the tokens' numbers in the record; NULL: not wanted. Experts
 * that all tokens have are not recorded. */
void view_read(View *v, const int *tokens, int N, int *expert);

/* One of the terminal's 256 colors; the first sixteen experts get colors that are easy to tell
 * apart. */
int  view_color(int expert);

/* Print the counts on stderr. colored: the text was colored; then the legend is, too, on a
 * terminal. t NULL: tokens are ids. */
void view_legend(const View *v, int colored);
void view_favourites(const View *v, const Tokenizer *t);
#endif
