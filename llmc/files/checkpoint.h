/* checkpoint.h: saving a run so that it resumes bit for bit.
 *
 * An output folder is a Hugging Face folder (hf.h) of the newest checkpoint, and contains
 *     state/step-00000800/    model.safetensors, optimizer.safetensors, run.json: everything that resuming needs
 *     best/                   a Hugging Face folder of the weights with the best validation loss
 *     lock                    held by the trainer that uses the folder
 * A step folder is written under a temporary name, synced and renamed, so it is complete or absent. The output folder's own
 * model.safetensors is a hard link to the step folder's. run.json has the sizes and CRC-32Cs of the other two files; if
 * one is damaged, the checkpoint before is used. Nothing in the files depends on the number of devices. */
#ifndef CHECKPOINT_H
#define CHECKPOINT_H
#include "llmc/model/optim.h"
#include "hf.h"
#include "llmc/base/json.h"

int  checkpoint_lock(const char *folder, Error *e);         /* makes the folder; 0 if another trainer uses it */
typedef enum { HOLDS_NOTHING, HOLDS_LOG, HOLDS_MODEL, HOLDS_STATE } Holding;
Holding checkpoint_exists(const char *folder);              /* the most of: the log of a run, a model, states to resume from */
int  checkpoint_clear(const char *folder, Error *e);        /* removes the run from the folder */

typedef struct {                        /* what is saved */
    const Model     *model;
    const Optimizer *optimizer;
    const Tokenizer *tokenizer;         /* NULL: none */
    const HfOrigin  *origin;            /* what the model came with (hf.h), or NULL */
    int64_t          step;              /* names the step folder */
    const char      *progress;          /* members of run.json, JSON without braces. One is read here: "updates", Adam's clock */
    const char      *options;           /* the settings, a JSON object */
} Snapshot;

/* Called by rank 0, while the other ranks call optimizer_lend. keep: the number of step folders kept, at least 1. major:
 * folders whose step is a multiple of it are kept, too; 0: none. */
int  checkpoint_save(const char *folder, const Snapshot *s, int keep, int64_t major, Error *e);
int  checkpoint_save_best(const char *folder, const Model *m, int64_t step, const Tokenizer *tokenizer, const HfOrigin *origin,
                          Error *e);

/* open: the newest usable step folder. Reads its run.json and verifies the other files; warns about newer folders that are
 * damaged. NULL and e if there is none. load: weights, moments, Adam's clock and the routers' biases, into an allocated
 * model and optimizer. */
typedef struct Checkpoint Checkpoint;
Checkpoint      *checkpoint_open(const char *folder, Error *e);
const char      *checkpoint_path(const Checkpoint *c);
const JsonValue *checkpoint_run(const Checkpoint *c);       /* run.json, with the members of Snapshot.progress */
const JsonValue *checkpoint_options(const Checkpoint *c);
int  checkpoint_config(const Checkpoint *c, Config *config, Error *e);
int  checkpoint_load(const Checkpoint *c, Model *m, Optimizer *o, Error *e);
void checkpoint_close(Checkpoint *c);
#endif
