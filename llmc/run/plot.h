/* plot.h: a small curve for the terminal. */
#ifndef PLOT_H
#define PLOT_H
#include <stdio.h>

/* Draws y over x, `width` columns and `height` rows of curve and labels, and the title above. A point of x or y that is
 * not finite leaves a gap. utf8: whether the terminal shows UTF-8 (braille: 2 x 4 dots a cell); else ASCII. */
void plot_terminal(FILE *out, const double *x, const double *y, int n, int width, int height,
                   const char *title, int utf8);
#endif
