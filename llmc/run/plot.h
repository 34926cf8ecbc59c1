/* plot.h: a small curve for the terminal. */
#pragma once
#include <stdio.h>

/* Draws y over x in `width` columns and `height` rows, labels included, below a title. A point that
 * is not finite leaves a gap. utf8: 1: braille characters, 2 x 4 dots per cell; 0: ASCII. */
void plot_terminal(FILE *out, const double *x, const double *y, int n, int width, int height,
                   const char *title, int utf8);
