/* optimizer_file.h: the optimizer's state as a file of a checkpoint, optimizer.safetensors: m of
 * every tensor of the model, v of those that have one, the master copies; then the routers'
 * selection biases. m in 8 bits has dtype I8, and NAME.m_scales (Momentum in kernels.h). Nothing in
 * it depends on the number of ranks. */
#pragma once
#include "save_shard.h"

/* Of the state of all ranks together. */
size_t optimizer_bytes(const Model *m, const Optimizer *o);

/* Writes and syncs this rank's parts of the file. Refuses what is not finite. */
int optimizer_save(const SaveShard *s, const char *path, FilePart **parts, size_t *count, Error *e);

/* Reads this rank's part, converted. Refuses NaN, infinity, negative v, other numbers of biases. */
int optimizer_load(const char *path, Model *m, const Optimizer *o, Error *e);
