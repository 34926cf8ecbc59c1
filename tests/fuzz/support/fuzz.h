/* fuzz.h: what the targets of `make fuzz` share. A target is a file of tests/fuzz/ that defines
 * fuzz_one; libFuzzer calls it with one input after another, under the sanitizers.
 *
 * The programs end at the first error: fail() and exit() inside of fuzz_one return to libFuzzer
 * instead (a long jump), and what was allocated since the input began is freed, files that it
 * opened are closed. An input that returns normally must have freed and closed everything itself:
 * that is checked, so libFuzzer's own detection of leaks is off. An input must not allocate more
 * than FUZZ_BYTES + 16 times its size at a time. fuzz_check: a target's own fault. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "llmc/base/text.h"

#define COUNT(a) (sizeof (a) / sizeof *(a))

enum { FUZZ_BYTES = 256 << 20 };

void fuzz_one(const uint8_t *data, size_t size);                /* defined by the target */
void fuzz_start(void);                          /* optional: once, before the first input; may allocate what stays */
extern const int fuzz_is_json;                          /* optional, 1: half of the mutations are of values of JSON */

#define fuzz_check(holds) do { if (!(holds)) fuzz_fault(__FILE__, __LINE__, #holds); } while (0)
_Noreturn void fuzz_fault(const char *file, int line, const char *what);

/* What this input leaves is freed, not a fault: results that live as long as the program. */
void fuzz_may_leave_memory(void);

/* The parts of an input that stands for several texts or files, each ended by PART_END or the end
 * of the input. Of an input that has no more parts, the empty one. */
#define PART_END "\n%%%%\n"
typedef struct { const char *at; size_t bytes; } Part;
Part fuzz_part(Part *rest);
char *fuzz_text(Part part);                                     /* with a NUL at its end; free() it */

/* A number below n from the first byte of the rest, which is taken from it; 0 if it is empty. */
unsigned fuzz_choice(Part *rest, unsigned n);

/* A file in a folder of this process, in memory where the system has such a folder. */
const char *fuzz_folder(void);
/* its path, until it is called 8 more times */
const char *fuzz_file(const char *name, const void *data, size_t bytes);
void fuzz_remove(const char *name);

/* "{" header "}" and data as a safetensors file; free() it. */
char *fuzz_tensors(Part header, Part data, size_t *bytes);

/* Loads `count` tokenizers of tests/reference/tokenizers, by name; "": that of bytes. They stay. */
struct Tokenizer;
void fuzz_tokenizers(struct Tokenizer **to, const char *const *names, int count);

/* Allocates a planned model, with memory between its buffers that nothing may touch; or ends. */
struct Model;
void fuzz_allocate(struct Model *m);

/* What a user would see of this text may not control a terminal. */
void fuzz_check_shown(const char *text, size_t bytes);
