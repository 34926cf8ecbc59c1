/* base.c: see base.h. Files: file.c. */
#define _POSIX_C_SOURCE 200809L
#include "base.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void (*hook)(const char *text);

int error_exit(Error *e, int code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(e->text, sizeof e->text, format, args);
    va_end(args);
    e->code = code;
    return 0;
}

/* If several ranks fail at once, the first reports. Nothing is torn down: other threads run. */
_Noreturn void fail(int code, const char *format, ...) {
    static atomic_flag ending = ATOMIC_FLAG_INIT;
    va_list args;
    while (atomic_flag_test_and_set(&ending)) pause();
    fflush(stdout);
    fputs("error: ", stderr);
    va_start(args, format);
    va_list again;
    va_copy(again, args);
    if (vsnprintf(NULL, 0, format, again) > 0) text_vprint(stderr, format, args);
    else fprintf(stderr, "the reason is unknown; exit code %d", code);
    va_end(again);
    va_end(args);
    fputc('\n', stderr);
    fflush(stderr);
    _exit(code);
}

void warn_hook(void (*also)(const char *text)) { hook = also; }
void warn(const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fflush(stdout);
    text_print(stderr, "warning: %s\n", text);
    if (hook) hook(text);
}

void *mem_alloc(size_t bytes) {
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p) fail(EXIT_MEMORY, "out of host memory: cannot allocate %zu bytes", bytes);
    return p;
}
void mem_free(void **all, size_t n) { while (n) free(all[--n]); }
void *mem_grow(void *p, size_t bytes) {
    p = realloc(p, bytes ? bytes : 1);
    if (!p) fail(EXIT_MEMORY, "out of host memory: cannot allocate %zu bytes", bytes);
    return p;
}
struct Block { Block *next; size_t used, capacity; };
static size_t aligned(size_t bytes) { return (bytes + 7) / 8 * 8; }
size_t block_more(const Block *b, size_t bytes) {
    if (b && b->capacity - b->used >= aligned(bytes)) return 0;
    const size_t next = !b ? 2048 : b->capacity > 1 << 19 ? 1 << 20 : 2 * b->capacity;
    return next > aligned(bytes) ? next : aligned(bytes);
}
void *block_alloc(Block **blocks, size_t bytes) {
    const size_t capacity = block_more(*blocks, bytes);
    if (capacity) {
        Block *const b = mem_grow(NULL, sizeof *b + capacity);
        *b = (Block){ *blocks, 0, capacity };
        *blocks = b;
    }
    Block *const b = *blocks;
    b->used += aligned(bytes);
    return (char *)(b + 1) + b->used - aligned(bytes);
}
void block_free(Block **blocks) {
    for (Block *b = *blocks, *next; b; b = next) { next = b->next; free(b); }
    *blocks = NULL;
}
char *text_format(const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *text = mem_alloc((size_t)n + 1);
    va_start(args, format);
    vsnprintf(text, (size_t)n + 1, format, args);
    va_end(args);
    return text;
}

double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

uint64_t hash_add(uint64_t h, const void *data, size_t bytes) {
    const unsigned char *p = data;
    uint64_t word;
    for (; bytes >= 8; p += 8, bytes -= 8) { memcpy(&word, p, 8); h = (h ^ word) * 0x100000001b3u; h ^= h >> 29; }
    for (; bytes; p++, bytes--) h = (h ^ *p) * 0x100000001b3u;
    return h;
}
uint64_t hash_begin(uint64_t seed) { return seed ^ 0xcbf29ce484222325u; }
uint64_t hash_end(uint64_t h) { return h ^ h >> 32; }
uint64_t hash_bytes(uint64_t seed, const void *data, size_t bytes) {
    return hash_end(hash_add(hash_begin(seed), data, bytes));
}

static const uint32_t crc_polynomial = 0x82f63b78;      /* Castagnoli's, the highest power in the lowest bit */
static uint32_t crc_table[8][256];                       /* slicing by eight: [k][b] is the CRC of b and k zero bytes */
static void crc_table_make(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; bit++) c = c >> 1 ^ (c & 1 ? crc_polynomial : 0);
        crc_table[0][i] = c;
    }
    for (int k = 1; k < 8; k++)
        for (int i = 0; i < 256; i++)
            crc_table[k][i] = crc_table[k - 1][i] >> 8 ^ crc_table[0][crc_table[k - 1][i] & 255];
}
uint32_t crc32c(uint32_t crc, const void *data, size_t bytes) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;      /* several threads make sums */
    uint32_t (*const table)[256] = crc_table;
    const unsigned char *p = data;
#if defined(__SSE4_2__) && defined(__x86_64__)          /* an instruction does eight bytes */
    uint64_t sum = ~crc & 0xffffffffu, word;
    for (; bytes >= 8; p += 8, bytes -= 8) { memcpy(&word, p, 8); sum = __builtin_ia32_crc32di(sum, word); }
    crc = ~(uint32_t)sum;
#endif
    pthread_once(&once, crc_table_make);
    crc = ~crc;
    for (; bytes >= 8; p += 8, bytes -= 8) {
        uint32_t a = crc ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
        crc = table[7][a & 255] ^ table[6][a >> 8 & 255] ^ table[5][a >> 16 & 255] ^ table[4][a >> 24]
            ^ table[3][p[4]] ^ table[2][p[5]] ^ table[1][p[6]] ^ table[0][p[7]];
    }
    for (; bytes; p++, bytes--) crc = crc >> 8 ^ table[0][(crc ^ *p) & 255];
    return ~crc;
}

/* The product of two polynomials of bits, modulo that of the CRC. */
static uint32_t crc_product(uint32_t a, uint32_t b) {
    uint32_t p = 0;
    for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
        if (a & bit) p ^= b;
        b = b >> 1 ^ (b & 1 ? crc_polynomial : 0);
    }
    return p;
}
uint32_t crc32c_combine(uint32_t a, uint32_t b, uint64_t bytes) {
    uint32_t power = 1u << 23;                  /* x^8: what a byte multiplies by; squared for each bit of `bytes` */
    for (; bytes; bytes >>= 1) {
        if (bytes & 1) a = crc_product(a, power);
        power = crc_product(power, power);
    }
    return a ^ b;
}
