/* secret.h: what only the processes of a run know. It is never sent, but proved (messages.h). */
#pragma once
#include "launch.h"

enum { LEAST_SECRET = 16 };                 /* characters of MOE_SECRET */
/* MOE_SECRET from `get`. Without it, if all processes are on one machine, the file FOLDER.secret
 * beside the output folder, of mode 600: process 0 makes it if it is missing, the others wait for
 * it up to `seconds`. free() it. NULL and e: there is none, or it is not secret; the user's
 * mistake, unless e has another code. */
char *secret_find(const Launch *l, const char *folder, const char *(*get)(const char *name), double seconds, Error *e);
int   secret_check(const Launch *l, const char *(*get)(const char *name), Error *e);    /* without a file */
char *secret_path(const char *folder);                      /* free() it */
int   random_bytes(void *data, size_t bytes);               /* the system's, unpredictable; 0 and errno */
