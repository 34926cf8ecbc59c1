/* random.h: random numbers as a function of (key, index): the number drawn for sample 17 of step 4
 * does not depend on the rank, the thread or the order. The bits come from kernels/random.h. */
#pragma once
#include <math.h>
#include <stddef.h>
#include "kernels/random.h"

static inline double random_normal(uint64_t key, uint64_t index) {       /* Box and Muller */
    return sqrt(-2 * log(1 - random_uniform(key, 2 * index)))
        * cos(6.283185307179586 * random_uniform(key, 2 * index + 1));
}
/* values[i] = scale * random_normal(key, first + i) up to the precision of a float; much faster. */
void random_normals(uint64_t key, uint64_t first, size_t n, double scale, double *values);
