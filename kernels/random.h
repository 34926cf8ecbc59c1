/* random.h: random bits as a function of (key, index), the same on the host, CPUs and GPUs: no
 * state to save or to keep in step. Mixed by the finalizer of splitmix64 (Steele et al. 2014). */
#pragma once
#include <stdint.h>

#ifdef __CUDACC__
#define ON_BOTH __host__ __device__
#else
#define ON_BOTH
#endif

ON_BOTH static inline uint64_t random_bits(uint64_t key, uint64_t index) {
    uint64_t z = key + (index + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}
/* 32 or 16 bits for each index; two or four consecutive indices share a hash. */
ON_BOTH static inline uint32_t random_32(uint64_t key, uint64_t index) {
    return (uint32_t)(random_bits(key, index / 2) >> index % 2 * 32);
}
ON_BOTH static inline uint32_t random_16(uint64_t key, uint64_t index) {
    return (uint32_t)(random_bits(key, index / 4) >> index % 4 * 16) & 0xffff;
}
ON_BOTH static inline uint64_t random_key(uint64_t seed, uint64_t purpose) {
    return random_bits(random_bits(seed, purpose), 0x6D6F65);
}
enum { RANDOM_MOMENTUM = 0x6d };         /* a purpose of a micro-batch's key, which is dropout's */
ON_BOTH static inline double random_uniform(uint64_t key, uint64_t index) {      /* [0,1) */
    return (double)(random_bits(key, index) >> 11) * (1.0 / 9007199254740992.0);  /* 2^-53 */
}
/* Of a pair of tokens; before: as in bigram_rows. The row of it, of `rows`. */
ON_BOTH static inline uint64_t pair_bits(int before, int token, uint64_t index) {
    return random_bits((uint64_t)(uint32_t)before << 32 | (uint32_t)token, index);
}
ON_BOTH static inline int pair_row(int before, int token, int rows) {
    return (int)((pair_bits(before, token, (uint64_t)1 << 32) >> 33) % (uint64_t)rows);
}
