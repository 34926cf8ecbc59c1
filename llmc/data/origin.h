/* origin.h: what is remembered of each byte that a chat template writes: bits of a uint32_t. */
#pragma once

/* Of message i, those of its strings but "role" have ORIGIN_FIELD; what else an iteration over
 * messages writes has the number only: 1 + i, or 0 for no message, times 2^ORIGIN_SHIFT.
 * GENERATION: in {% generation %}. GIVEN: from the conversation, role and tools included; all other
 * bytes are the template's or its special tokens. */
enum { ORIGIN_FIELD = 1, ORIGIN_GENERATION = 2, ORIGIN_GIVEN = 4, ORIGIN_SHIFT = 3 };
