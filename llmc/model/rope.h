/* rope.h: the angles by which positions rotate queries and keys: the table of operation rope. */
#pragma once
#include "config.h"

/* table (T,D/2,2), on the device: of pair i at position t, a_i cos(t r_i) and a_i sin(t r_i).
 * r_i = theta^(-2i/R), changed as Config.rope says; R = Config.rotated of a head's D rotate, and
 * the other pairs have r_i = 0. a_i includes Config.attention_scale and the factor of YaRN: queries
 * and keys are both multiplied by it. Latent attention rotates the last R of a head as a head of
 * their own: D = R, and a_i is YaRN's factor only. */
int  rope_head(const Config *c);        /* D */
void rope_table(const Device *dev, OUT real *table, const Config *c, int T);
