/* optimizer_file.h: the optimizer's state as a file of a checkpoint, optimizer.safetensors: m of
 * every tensor of the model, v of those that have one, the master copies; then the routers'
 * selection biases. Nothing in it depends on the number of ranks. */
#ifndef OPTIMIZER_FILE_H
#define OPTIMIZER_FILE_H
#include "save_shard.h"

/* Upper bound of the bytes of the state per parameter of the model. */
size_t optimizer_bytes(const Model *m, const Optimizer *o);

/* Writes this rank's parts of the file at `path`, and syncs them (safetensors_leave); refuses a
 * state that is not finite. */
int optimizer_save(const SaveShard *s, const char *path, FilePart **parts, size_t *count, Error *e);

/* Reads this rank's part, with conversion if its types differ. Refuses NaN, infinity, a negative v,
 * and a number of biases that is not the model's. */
int optimizer_load(const char *path, Model *m, const Optimizer *o, Error *e);
#endif
