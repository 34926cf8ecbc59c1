/* checkpoint.h: saving a run so that it resumes bit for bit.
 *
 * An output folder is a Hugging Face folder (hf.h) of the newest checkpoint, and contains
 *     state/step-00000800/  model.safetensors, optimizer.safetensors, run.json: to resume from
 *     best/                 a Hugging Face folder of the weights with the best validation loss
 *     lock                  held by the trainer that uses the folder
 * A step folder is written under a temporary name, synced and renamed, so it is complete or absent.
 * The output folder's own model.safetensors is a hard link to the step folder's; that of best/ is,
 * too, if the last step was the best.
 *
 * run.json has a seal (json.h), and the sizes and CRC-32Cs of the other two files and of the output
 * folder's tokenizer.json. If a file is damaged, the checkpoint before it is used. Nothing in the
 * files depends on the number of devices. Promises and tests: docs/reliability.md. */
#pragma once
#include "llmc/model/optim.h"
#include "checkpoint_folder.h"
#include "host_buffer.h"
#include "llmc/base/json.h"

/* Makes the folder; 0: another trainer uses it. Removes temporary files of one that was killed. */
int  checkpoint_lock(const char *folder, Error *e);
typedef enum { HOLDS_UNKNOWN = -1, HOLDS_NOTHING, HOLDS_LOG, HOLDS_MODEL, HOLDS_STATE } Holding;
/* The largest that applies. LOG: only a log; STATE: to resume from. UNKNOWN: unreadable (e). */
Holding checkpoint_exists(const char *folder, Error *e);
/* The step of the newest state that is not after `latest` (0: of any); -1: there is none. */
int64_t checkpoint_newest(const char *folder, int64_t latest);
double checkpoint_bytes(const char *state);                 /* of the files of a state that are there */
int  checkpoint_clear(const char *folder, Error *e);        /* removes the run from the folder */

typedef struct {                        /* what is saved */
    const Model     *model;
    const Optimizer *optimizer;
    const Tokenizer *tokenizer;         /* NULL: none */
    const HfOrigin  *origin;            /* what the model came with (hf.h), or NULL */
    int64_t          step;              /* names the step folder */
    const char      *progress;          /* members of run.json without braces. Read here: "updates" */
    const char      *options;           /* the settings, a JSON object */
} Snapshot;

/* Which step folders stay: the newest, the `newest` newest of those whose step is a multiple of
 * `every` (0: of all; at least 1), those whose step is a multiple of `major` (0: none), and the
 * newest that is not after the step `sound`. "due_step" of its run.json, if there is one, counts as
 * the step of one that was put off. */
typedef struct { int newest; int64_t every, major, sound; } Keep;

/* SAVED_STATE: the step folder can be resumed from; then something failed (e), none was removed. */
typedef enum { SAVED_NOTHING, SAVED_STATE, SAVED_ALL } Saved;

/* A save by all ranks, which call these functions in the same order; the folder must be one that
 * all of them see. Each writes its own part of every tensor, and needs no other rank's, so none has
 * more of the model in memory than it trains; the files are those that one rank would write. If one
 * rank cannot, none of it is saved, and all get its reason.
 * open: of a planned model and optimizer; NULL: weights alone, without the optimizer's state, from
 * which no run is resumed. copy_bytes: of a copy of what this rank writes, in the host's memory.
 * make_buffer: a thread begins to take them. use_buffer, between saves: if they are
 * there on all ranks, later saves make a copy. With a copy training goes on while files are
 * written, and only waits for the copy; on a GPU from before the next update on (Device.copied).
 * Without, begin returns when this rank has written, in pieces from the device (save_shard.h).
 * begin: 0: nothing was saved. begin_best: the same for FOLDER/best, of what->model only, which is
 * tried twice. busy, of this rank alone: 1: the next call of saver_next would wait for its thread.
 * next, when no rank is busy, or to wait: 1: the save has ended, with the result *saved, and e
 * unless it is SAVED_ALL. end: next until then. */
typedef struct Saver Saver;
Saver *saver_open(const Model *m, const Optimizer *o);
size_t saver_copy_bytes(const Saver *s);
void   saver_make_buffer(Saver *s);
BufferState saver_use_buffer(Saver *s, int waits);
int    saver_begin(Saver *s, const char *folder, const Snapshot *what, Keep keep, Error *e);
int    saver_begin_best(Saver *s, const char *folder, const Snapshot *what, Error *e);
int    saver_busy(Saver *s);
int    saver_next(Saver *s, Saved *saved, Error *e);
Saved  saver_end(Saver *s, Error *e);
void   saver_close(Saver *s);

/* All at once, by all ranks. best: the weights, as those with the best validation loss. link: by
 * one rank: those of this step's saved state, by a link if the file system has them. */
Saved checkpoint_save(const char *folder, const Snapshot *s, Keep keep, Error *e);
int   checkpoint_save_best(const char *folder, const Model *m, int64_t step, const Tokenizer *tokenizer,
                           const HfOrigin *origin, Error *e);
int   checkpoint_link_best(const char *folder, int64_t step, const Model *m, const Tokenizer *tokenizer,
                           const HfOrigin *origin, Error *e);

/* open: the newest usable step folder. Verifies the checksum of every file before its contents are
 * used; then checks the configuration, and by `wanted` (may be NULL) the members of run.json that
 * the caller reads. Warns about newer folders that are not usable. NULL and e if there is none.
 * load: weights, moments, Adam's clock and the routers' biases, into an allocated model and
 * optimizer. */
typedef struct Checkpoint Checkpoint;
typedef struct {
    int        (*usable)(const JsonValue *run, const void *of, Error *e);
    const void  *of;                    /* passed to it */
    int64_t      latest;                /* newer folders are passed over; 0: none */
} Wanted;
Checkpoint      *checkpoint_open(const char *folder, const Wanted *wanted, Error *e);
const char      *checkpoint_path(const Checkpoint *c);
const JsonValue *checkpoint_run(const Checkpoint *c);       /* run.json, with the members of Snapshot.progress */
const JsonValue *checkpoint_options(const Checkpoint *c);
Config           checkpoint_config(const Checkpoint *c);
/* Is this file the tokenizer.json of the run? 0: it is missing or damaged. */
int  checkpoint_has_tokenizer(const Checkpoint *c, const char *path);
/* Has it the tokens of the run, no more? Files beside a tokenizer.json may name some (tokenizer.h)
 * that an older program did not read. */
int  checkpoint_has_tokens(const Checkpoint *c, const Tokenizer *t);
int  checkpoint_load(const Checkpoint *c, Model *m, Optimizer *o, Error *e);
/* After a save that was killed or failed half-way: bring the output folder up to date with the
 * loaded checkpoint. publish: the model at its top. best: best/ should hold the weights of step
 * `best`; if it does not, they are taken from the state of that step, and if there is no such
 * state, the result is 0. A best/ of a later step than the checkpoint's is left, unless later steps
 * were dropped: the resumed run repeats that step and saves the same weights again. drop_later:
 * removes the states of later steps, which the run does not go on from. */
int  checkpoint_publish(const Checkpoint *c, const Model *m, const Tokenizer *tokenizer,
                        const HfOrigin *origin, Error *e);
int  checkpoint_best(const Checkpoint *c, int64_t best, int dropped, const Model *m, const Tokenizer *tokenizer,
                     const HfOrigin *origin, Error *e);
int  checkpoint_drop_later(const Checkpoint *c, Error *e);
void checkpoint_close(Checkpoint *c);
