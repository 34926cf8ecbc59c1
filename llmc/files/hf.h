/* hf.h: a model as a Hugging Face folder: config.json, model.safetensors, tokenizer.json and the files that go with them. */
#ifndef HF_H
#define HF_H
#include "llmc/model/model.h"
#include "safetensors.h"
#include "llmc/data/tokenizer.h"

/* The folder of a model; free() it. asked: this folder or its best/. NULL: out/best, out, or of the folders NAME and NAME/best
 * here the one whose weights were written last. */
char *hf_find_model(const char *asked, Error *e);
int hf_load_config(const char *folder, Config *c, Error *e);

/* Loads all weights of an allocated model from a folder or one file. The error lists every missing, misshapen or
 * non-finite tensor. Tensors that the model does not have are ignored with a warning. */
int hf_load_weights(Model *m, const char *path, Error *e);

/* Writes the small files of a folder, each replaced as a whole if it is not there as it should be. tokenizer: may be NULL. */
int hf_save_small(const char *folder, const Model *m, const Tokenizer *tokenizer, Error *e);

/* Writes the weights directly to `path`; returns the file's size and CRC-32C. Refuses weights that are not finite. */
int hf_save_weights(const Model *m, const char *path, int64_t step, Error *e, uint64_t *bytes, uint32_t *crc);
#endif
