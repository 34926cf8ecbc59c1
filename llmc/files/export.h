/* export.h: the form in which the weights of a finished run are left: their number type, and how
 * many files they are in.
 *
 * While a model is trained, its folder has one file, of the device's type, which is the
 * checkpoint's own (checkpoint.h). The form is given to it at the end, so no save costs more than
 * it must, and what is resumed from stays exact. At every moment the folder holds one whole set of
 * weights: shards are complete before their index is written, and the single file is removed
 * last. */
#pragma once
#include "hf.h"

typedef struct {
    const char *type;               /* "F32", "BF16", "F16" or "F64"; NULL: that of each tensor in the model's origin */
    uint64_t    shard;  /* bytes of the largest file, as in Transformers; a larger tensor has its own. 0: no limit */
} ExportForm;

/* Gives the model.safetensors of a folder this form, and config.json its type. origin: may be NULL;
 * then, and for tensors that it does not have, the type is the most frequent one. *files: how many
 * there are now; 0: there was no model.safetensors. A number beyond the type's range is an error,
 * and nothing changed. */
int export_weights(const char *folder, ExportForm form, const HfOrigin *origin, int *files, Error *e);

/* Removes the index and all shards but those of `keep`. 0 and e: one cannot be removed. */
int export_remove_shards(const char *folder, int keep, Error *e);
