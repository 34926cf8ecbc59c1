/* presets.h: defaults that depend on the machine and on how much text there is. A preset is a named
 * set of them for much text on a GPU, where PLAIN is the default. Experiments: docs/recipe.md. */
#pragma once
#include <stdint.h>

typedef enum { LITTLE_ON_GPU, MUCH_ON_CPU, PLAIN, RACE, SUITS } Suit;   /* little on a CPU: the options' own */
/* Which models a row is for: all; not those of folders; only the preset's own, of which it is known
 * that number types do not harm them. */
typedef enum { ANY, DESCRIBED, OWN } SuitedModels;
typedef struct { const char *letter; SuitedModels models; const char *of[SUITS]; } Suited;      /* an option's values */

enum { SUITED = 23 };
extern const Suited suited[SUITED];                     /* the first is -e */
/* Of row i, for so many training tokens. From LONG_TEXT on a preset has fewer and larger steps,
 * which then learn as much in less time. */
enum { LONG_TEXT = 100000000 };
const char *preset_value(int i, Suit suit, int64_t tokens);
extern const char *const preset_name[SUITS], *const preset_purpose[SUITS];  /* NULL: not a preset */
Suit preset_named(const char *word);                    /* SUITS: none is */
