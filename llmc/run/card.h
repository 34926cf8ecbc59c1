/* card.h: the model card, README.md in the folder of a model: what it is, from what and how it was
 * trained, losses, use; with the metadata that the Hugging Face Hub reads. */
#pragma once
#include "run.h"

void card_text(const Run *r, Text *t);
/* 1: written; 0: the one that is there was edited, or is somebody else's, and stays; -1: e. */
int  card_write(const char *folder, const char *text, Error *e);
