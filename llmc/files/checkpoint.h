/* checkpoint.h: saving a run so that it can go on as if it had never stopped.
 *
 * An output folder is a Hugging Face folder (hf.h) of the newest checkpoint, and holds besides
 *     state/step-00000800/    model.safetensors, optimizer.safetensors, run.json: all that resuming needs
 *     best/                   a Hugging Face folder of the weights with the best validation loss
 *     lock                    held by the trainer that is using the folder
 * A step folder is written under another name, synced, and renamed, so it is complete or not there; the folder's own
 * model.safetensors is then a second name (a hard link) of the same file. run.json tells the size
 * and CRC-32C of the other two, so that damage is noticed and the checkpoint before is used. Names
 * do not depend on the number of devices. */
#ifndef CHECKPOINT_H
#define CHECKPOINT_H
#include "llmc/model/optim.h"
#include "llmc/data/tokenizer.h"
#include "llmc/base/json.h"

enum { WINDOW = 128 };
typedef struct { double x[WINDOW]; int count, next; } Window;    /* the last values of a statistic, for its z-score */

typedef struct {                        /* what a run is, besides weights and moments */
    int64_t  step, samples, tokens;     /* optimizer steps done, training samples and tokens used */
    int      updates, bad_steps;        /* steps that changed the weights; bad ones in a row */
    double   seconds;                   /* trained so far */
    double   best_loss;  int64_t best_step;     /* best_step -1: no validation yet */
    uint64_t seed, data;                /* fingerprint of the data */
    Window   loss, norm;
} Progress;

int  checkpoint_lock(const char *folder, Error *e);         /* makes the folder; 0 if another trainer has it */
typedef enum { HOLDS_NOTHING, HOLDS_LOG, HOLDS_MODEL, HOLDS_STATE } Holding;
Holding checkpoint_exists(const char *folder);     /* the best of: the log of a run, a model, states to resume from */

/* Called by rank 0. The other ranks call optimizer_lend meanwhile.
 * keep: how many step folders stay (at least 1); major: those whose step it divides stay too (0: none).
 * options: JSON of the settings, kept for a later resume. */
int  checkpoint_save(const char *folder, const Model *m, const Optimizer *o, const Progress *p,
                     const Tokenizer *tokenizer, const char *options, int keep, int64_t major, Error *e);
int  checkpoint_save_best(const char *folder, const Model *m, int64_t step, const Tokenizer *tokenizer, Error *e);

/* The newest usable state, or with `path` that one. open: reads run.json and verifies the files; newer ones that are
 * damaged are warned about. NULL and a message if there is none. load: into an allocated model and optimizer. */
typedef struct Checkpoint Checkpoint;
Checkpoint      *checkpoint_open(const char *folder, Error *e);
const JsonValue *checkpoint_options(const Checkpoint *c);
const char      *checkpoint_path(const Checkpoint *c);
int  checkpoint_config(const Checkpoint *c, Config *config, Error *e);
int  checkpoint_load(const Checkpoint *c, Model *m, Optimizer *o, Progress *p, Error *e);
void checkpoint_close(Checkpoint *c);
int  checkpoint_clear(const char *folder, Error *e);        /* forgets the run that was in the folder */
#endif
