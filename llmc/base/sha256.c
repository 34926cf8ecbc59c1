/* sha256.c: see sha256.h. Names of variables as in FIPS 180-4, section 6.2. */
#include "sha256.h"
#include <string.h>

enum { BLOCK = 64 };

/* The first 32 bits of the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotr(uint32_t x, int n) { return x >> n | x << (32 - n); }
static uint32_t big_endian(const unsigned char *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | (uint32_t)p[3];
}
static void to_big_endian(unsigned char *p, uint32_t x) {
    for (int i = 0; i < 4; i++) p[i] = (unsigned char)(x >> (24 - 8 * i));
}

static void compress(uint32_t state[8], const unsigned char *block) {
    uint32_t W[64], s[8];
    for (int t = 0; t < 16; t++) W[t] = big_endian(block + 4 * t);
    for (int t = 16; t < 64; t++) {
        const uint32_t x = W[t - 15], y = W[t - 2];
        W[t] = (rotr(y, 17) ^ rotr(y, 19) ^ y >> 10) + W[t - 7] + (rotr(x, 7) ^ rotr(x, 18) ^ x >> 3) + W[t - 16];
    }
    memcpy(s, state, sizeof s);
    for (int t = 0; t < 64; t++) {                          /* s: a, b, c, d, e, f, g, h */
        const uint32_t e = s[4], a = s[0];
        const uint32_t T1 = s[7] + (rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25)) + ((e & s[5]) ^ (~e & s[6])) + K[t] + W[t];
        const uint32_t T2 = (rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22)) + ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += T1;
        s[0] = T1 + T2;
    }
    for (int i = 0; i < 8; i++) state[i] += s[i];
}

void sha256_begin(Sha256 *s) {                              /* of the square roots of the first 8 primes */
    *s = (Sha256){ .state = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab,
                              0x5be0cd19 } };
}
void sha256_add(Sha256 *s, const void *data, size_t bytes) {
    const unsigned char *from = data;
    while (bytes) {
        const size_t at = s->bytes % BLOCK, n = bytes < BLOCK - at ? bytes : BLOCK - at;
        memcpy(s->block + at, from, n);
        s->bytes += n;
        from += n;
        bytes -= n;
        if (s->bytes % BLOCK == 0) compress(s->state, s->block);
    }
}
void sha256_end(Sha256 *s, unsigned char digest[SHA256_BYTES]) {
    static const unsigned char padding[BLOCK] = { 0x80 };
    const uint64_t bits = 8 * s->bytes;
    unsigned char length[8];
    to_big_endian(length, (uint32_t)(bits >> 32));
    to_big_endian(length + 4, (uint32_t)bits);
    sha256_add(s, padding, 1 + (BLOCK + 55 - s->bytes % BLOCK) % BLOCK);   /* up to 8 bytes before the end of a block */
    sha256_add(s, length, sizeof length);
    for (int i = 0; i < 8; i++) to_big_endian(digest + 4 * i, s->state[i]);
}

/* mac = H((key ^ opad) H((key ^ ipad) data)) */
void hmac_sha256(const void *key, size_t key_bytes, const void *data, size_t bytes, unsigned char mac[SHA256_BYTES]) {
    unsigned char inner[BLOCK] = { 0 }, outer[BLOCK];
    Sha256 s;
    if (key_bytes > BLOCK) {
        sha256_begin(&s);
        sha256_add(&s, key, key_bytes);
        sha256_end(&s, inner);
    } else memcpy(inner, key, key_bytes);
    for (int i = 0; i < BLOCK; i++) { outer[i] = inner[i] ^ 0x5c; inner[i] ^= 0x36; }
    sha256_begin(&s);
    sha256_add(&s, inner, BLOCK);
    sha256_add(&s, data, bytes);
    sha256_end(&s, mac);
    sha256_begin(&s);
    sha256_add(&s, outer, BLOCK);
    sha256_add(&s, mac, SHA256_BYTES);
    sha256_end(&s, mac);
}

int same_in_constant_time(const void *a, const void *b, size_t bytes) {
    const volatile unsigned char *x = a, *y = b;
    unsigned char difference = 0;
    for (size_t i = 0; i < bytes; i++) difference = (unsigned char)(difference | (x[i] ^ y[i]));
    return !difference;
}
