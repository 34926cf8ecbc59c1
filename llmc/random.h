/* random.h: random numbers as a function of (key, index). There is no state to save, share or get out of step: what is
 * drawn for sample 17 of step 4 is the same whoever asks, in whatever order.
 * The mixing function is splitmix64's finalizer (Steele, Lea and Flood 2014). */
#ifndef RANDOM_H
#define RANDOM_H
#include <math.h>
#include <stdint.h>

static inline uint64_t random_bits(uint64_t key, uint64_t index) {
    uint64_t z = key + (index + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}
static inline uint64_t random_key(uint64_t seed, uint64_t purpose) {
    return random_bits(random_bits(seed, purpose), 0x6D6F65);
}
static inline double random_uniform(uint64_t key, uint64_t index) {      /* [0,1) */
    return (double)(random_bits(key, index) >> 11) * 0x1p-53;
}
static inline double random_normal(uint64_t key, uint64_t index) {       /* Box and Muller */
    return sqrt(-2 * log(1 - random_uniform(key, 2 * index)))
        * cos(6.283185307179586 * random_uniform(key, 2 * index + 1));
}
#endif
