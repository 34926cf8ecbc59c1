/* cuda.h: what a tensor map says. Pitches in bytes. */
#pragma once
#include <stdint.h>

struct CUtensorMap {
    unsigned char *base;
    int element_size, rank;
    uint64_t extent[5], pitch[5];
    uint32_t box[5];
};
