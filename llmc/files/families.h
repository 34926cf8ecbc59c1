/* families.h: which model families there are, and which of them can express a configuration. */
#pragma once
#include "llmc/model/config.h"

/* Families that other tools know by name, and FAMILY_SMOE for what none of them can express. */
typedef enum {
    FAMILY_JETMOE = 1 << 0, FAMILY_MIXTRAL = 1 << 1, FAMILY_LLAMA = 1 << 2, FAMILY_SMOE = 1 << 3, FAMILY_OLMOE = 1 << 4,
    FAMILY_QWEN3 = 1 << 5, FAMILY_QWEN3_MOE = 1 << 6, FAMILY_QWEN2_MOE = 1 << 7, FAMILY_GRANITE = 1 << 8,
    FAMILY_GRANITE_SHARED = 1 << 9, FAMILY_DOTS = 1 << 10, FAMILY_GLM = 1 << 11, FAMILY_ERNIE = 1 << 12,
    FAMILY_MISTRAL = 1 << 13,
    FAMILY_GPT_OSS = 1 << 14, FAMILY_DEEPSEEK_V2 = 1 << 15, FAMILY_DEEPSEEK_V3 = 1 << 16,
    FAMILY_QWEN2 = 1 << 17, FAMILY_GLM_LITE = 1 << 18, FAMILY_SOLAR = 1 << 19, FAMILY_MINIMAX_M2 = 1 << 20,
    FAMILIES_END = 1 << 21
} Family;

Family      config_family(const Config *c);
int         family_expresses(Family f, const Config *c);
const char *family_name(Family f);                                  /* "jetmoe", ... */
const char *family_architecture(Family f);                          /* "JetMoeForCausalLM", ... */
const Config *family_defaults(Family f);                            /* what keys mean that are missing */

/* -rs with which llama.cpp computes what this program does, if it has one way only for the family
 * (whatever norm_topk_prob says) and c another; else NULL. As scripts/gguf.py. */
const char *family_gguf_scores(const Config *c);

/* config_upcycle to a mixture that a family expresses. */
int family_upcycle(Config *c, const char *fields, Error *e);
