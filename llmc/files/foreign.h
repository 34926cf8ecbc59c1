/* foreign.h: what lies where a model is expected and is none that this program reads. */
#pragma once
#include "llmc/base/base.h"

/* A folder without model.safetensors, a file or a name that is neither: 0 and a message that says
 * what it is and what to do; 1: it is nothing that people have in a model's place. */
int foreign_model(const char *given, Error *e);
