/* sha256.h: SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104), which prove knowledge of a secret. */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum { SHA256_BYTES = 32 };
typedef struct { uint32_t state[8]; uint64_t bytes; unsigned char block[64]; } Sha256;      /* bytes: added so far */
void sha256_begin(Sha256 *s);
void sha256_add(Sha256 *s, const void *data, size_t bytes);
void sha256_end(Sha256 *s, unsigned char digest[SHA256_BYTES]);

void hmac_sha256(const void *key, size_t key_bytes, const void *data, size_t bytes, unsigned char mac[SHA256_BYTES]);

/* 1: equal. Takes the same time wherever they differ: proofs cannot be guessed byte by byte. */
int same_in_constant_time(const void *a, const void *b, size_t bytes);
