/* hf.h: a model as a Hugging Face folder: config.json, model.safetensors, tokenizer.json and what goes with them. */
#ifndef HF_H
#define HF_H
#include "llmc/model/model.h"
#include "safetensors.h"
#include "llmc/data/tokenizer.h"

int hf_load_config(const char *folder, Config *c, Error *e);
/* NULL and a message if there is none or it is unusable */
Tokenizer *hf_load_tokenizer(const char *folder, Error *e);

/* All weights of an allocated model, from a folder or one file. Every missing, misshapen or non-finite tensor is
 * named in the error; tensors that the model does not have are a warning. */
int hf_load_weights(Model *m, const char *path, Error *e);

/* The small files of a folder (each replaced as a whole; tokenizer may be NULL), and the weights as one file, written
 * to exactly `path`. Refuses weights that are not finite. */
int hf_save_small(const char *folder, const Model *m, const Tokenizer *tokenizer, Error *e);
int hf_save_weights(const Model *m, const char *path, int64_t step, Error *e, uint64_t *bytes, uint32_t *crc);

/* The index of the first element that is NaN or infinite, or count. */
size_t first_not_finite(const char *dtype, const void *data, size_t count);
#endif
