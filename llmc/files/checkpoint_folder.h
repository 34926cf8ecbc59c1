/* checkpoint_folder.h: the folders of a run, for checkpoint.c, which reads, and save.c. */
#pragma once
#include "hf.h"

enum { FORMAT = 1 };                    /* of a step folder */
enum { FILES = 2 };                     /* of weights, of the optimizer's state */
extern const char *const checkpoint_files[FILES];

/* The steps of the complete-looking folders under state/, newest first; -1: it cannot be read. */
int   list_steps(const char *folder, int64_t **steps, Error *e);
char *step_path(const char *folder, int64_t step);          /* free() it, and top_weights */
char *top_weights(const char *folder);
/* Removes a folder of files. A failure only costs disk space: the folder has a temporary name. */
void  remove_folder(const char *path);
/* Renames a step folder to a temporary name, so that a kill never leaves half of one. */
char *set_aside(const char *folder, int64_t step);
int   remove_step(const char *folder, int64_t step);
/* Makes `folder` a Hugging Face folder of the weights in the file `from`. */
int   publish(const char *from, const char *folder, const Model *m, const Tokenizer *tokenizer,
              const HfOrigin *origin, Error *e);
