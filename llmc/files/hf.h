/* hf.h: a model as a Hugging Face folder: config.json, model.safetensors, tokenizer.json. */
#pragma once
#include "save_shard.h"
#include "llmc/base/json.h"
#include "llmc/data/tokenizer.h"

/* The folder of a model; free() it. given: this folder or its best/. NULL: out/best, out, or of the
 * folders NAME and NAME/best here the one whose weights were written last. */
char *hf_find_model(const char *given, Error *e);
int hf_load_config(const char *folder, Config *c, Error *e);

int hf_has_weights(const char *folder);                     /* 0: config.json alone, at most */

/* Loads all weights of an allocated model from a folder or one file. The error lists every missing,
 * misshapen or non-finite tensor. Other tensors are ignored with a warning. */
int hf_load_weights(Model *m, const char *path, Error *e);
/* Upcycling: the weights of a dense model of configuration `dense`, of which m is the mixture
 * (config_upcycle). Every expert is a copy of the dense MLP; routers are left as they are. */
int hf_load_upcycled(Model *m, const Config *dense, const char *path, Error *e);
/* The same errors, as far as the heads of the files tell, before a model is allocated. */
int hf_check_weights(const Device *dev, const Config *c, const char *path, Error *e);

/* 1: the files have all experts in MXFP4, as gpt-oss is published. For Config.experts_in */
int hf_in_mxfp4(const Device *dev, const Config *c, const char *path);

/* The files that came with a model: config.json, some of whose keys this program does not know; the
 * tokenizer's, with special tokens and chat template; generation settings. All unchanged. */
typedef struct HfOrigin HfOrigin;
/* weights: the folder whose number types the files have at the end: this one, or the untrained
 * model's. NULL: this folder has no config.json that can be read. */
HfOrigin *hf_origin_open(const char *folder, const char *weights);
void      hf_origin_free(HfOrigin *o);
/* A tensor's type, "F32", "BF16", "F16" or "F64"; of NULL or a missing one, the most frequent. */
const char *hf_origin_type(const HfOrigin *o, const char *tensor);

/* Writes the small files of a folder; each is replaced as a whole, unless it is already right.
 * tokenizer: may be NULL. origin: NULL, or what the model came with: its config.json keeps all
 * keys, and its other files are written unchanged, unless the tokenizer is another. */
int hf_save_small(const char *folder, const Model *m, const Tokenizer *tokenizer, const HfOrigin *origin, Error *e);

/* The tokens that end a text: those of generation_config.json, else of config.json, else the
 * tokenizer's (NULL: none) by their usual names. Returns how many. */
enum { MOST_ENDS = 32 };
int hf_end_tokens(const char *folder, const Tokenizer *tokenizer, OUT int ids[MOST_ENDS]);

/* Of the host's memory, that loading a model takes at most, besides a model on a CPU. */
size_t hf_host_bytes(const Model *m);
/* Writes and syncs this rank's parts of the file of weights. Refuses what is not finite. */
int hf_write_weights(const SaveShard *s, const char *path, int64_t step, FilePart **parts, size_t *count, Error *e);
/* all of it, of a model of one rank */
int hf_save_weights(const Model *m, const char *path, int64_t step, FileSum *sum, Error *e);
