/* data.h: where training tokens come from.
 *
 * A path (-i for training, -j for validation) may be
 *   a folder    the first of these that it holds: *_train*.bin and *_val*.bin (llm.c shards), train.bin and val.bin
 *               (nanoGPT), input.txt, a single *.txt
 *   a pattern   whose matches are files as below: 'fineweb_train_*.bin'
 *   a file      an llm.c shard by its first four bytes; nanoGPT's headerless uint16 if it is called train.bin or
 *               val.bin; anything else that does not end in .bin is text, tokenized in memory
 * Without validation data the last tenth of every training file is held out.
 *
 * A sample is a window of T+1 tokens of one file: T inputs, and T targets one further on. Training reads an endless
 * stream of samples, and sample i is a function of (seed, i) alone. There is no position to save: a run resumes by
 * counting on, rank r of W takes samples (step*W + r)*B ... + B-1, and the order is the same for every B and W.
 *
 * After data_open nothing is written to a Data, so threads may share one. A file that shrinks, is rewritten or can no
 * longer be read while training runs makes an Error (which is EXIT_DISK; those of data_open and data_check are
 * EXIT_INPUT). A file that is only unlinked or replaced is read on through its open descriptor. */
#ifndef DATA_H
#define DATA_H
#include "llmc/base/base.h"
#include "tokenizer.h"

typedef struct Data Data;
typedef enum { DATA_TRAIN, DATA_VALIDATION } Split;

/* Opens everything, reads every token once, and knows the largest id afterwards. validation: NULL or "": hold out a
 * tenth. tokenizer: for text; NULL: a byte is a token. It is not needed after the call. NULL on error. */
Data       *data_open(const char *train, const char *validation, const Tokenizer *tokenizer, Error *e);
void        data_close(Data *data);                                  /* NULL is fine */

int64_t     data_tokens(const Data *data, Split split);
int64_t     data_bytes(const Data *data, Split split);     /* of text, for bits per byte; 0: the files hold tokens */
int         data_max_id(const Data *data);                 /* over both splits */
int         data_is_text(const Data *data);
int         data_is_bytes(const Data *data);               /* text, and a byte is a token */
int         data_is_fallback(const Data *data);            /* asked for tinyshakespeare, got the project's own text */
const char *data_description(const Data *data);            /* one line */
uint64_t    data_fingerprint(const Data *data);            /* of names without folders, sizes, first and last 64 kB */

/* Is there a whole window in each split, and is every id below the vocabulary? To be called before the rest. */
int         data_check(const Data *data, int T, int vocab, Error *e);

/* An epoch visits every window once. Its windows start at a random phase in each file, so that epochs cut the text
 * differently; the slack this takes (less than 2T tokens a file) is the same for
 * all, and so is the number of windows. */
int64_t     data_epoch_samples(const Data *data, int T);
/* Samples first ... first+B-1; inputs, targets (B,T). */
int         data_batch(const Data *data, int64_t first, int B, int T, uint64_t seed, int *inputs,
                       int *targets, Error *e);

/* Validation: windows side by side, in order, so that every token but the first of each file is a target exactly once.
 * What is left of the last window of a file, or of the last batch, has input 0 and target -1. */
int64_t     data_validation_batches(const Data *data, int B, int T);
int         data_validation(const Data *data, int64_t first, int B, int T, int *inputs, int *targets, Error *e);
#endif
