/* plot.c: see plot.h. */
#include "plot.h"
#include "llmc/base/text.h"
#include <math.h>
#include <stdlib.h>

static const double LARGEST = 1e30;     /* larger values are treated as not finite */

/* A cell has 2 x 4 dots, one bit each; its character is U+2800 (braille) + bits. */
static const unsigned char dot_bit[4][2] = { { 0x01, 0x08 }, { 0x02, 0x10 }, { 0x04, 0x20 }, { 0x40, 0x80 } };
enum { UPPER_DOTS = 0x1B, LOWER_DOTS = 0xE4 };

typedef struct { int columns, rows; double x0, x1, y0, y1; unsigned char *cell; } Canvas;
static void canvas_dot(Canvas *c, int x, int y) { c->cell[y / 4 * c->columns + x / 2] |= dot_bit[y % 4][x % 2]; }
static int canvas_x(const Canvas *c, double x) {
    return (int)lround((x - c->x0) / (c->x1 - c->x0) * (2 * c->columns - 1));
}
static int canvas_y(const Canvas *c, double y) {
    return (int)lround((c->y1 - y) / (c->y1 - c->y0) * (4 * c->rows - 1));
}
static void canvas_line(Canvas *c, int x0, int y0, int x1, int y1) {
    const int length = abs(x1 - x0) > abs(y1 - y0) ? abs(x1 - x0) : abs(y1 - y0);
    for (int k = 0; k <= length; k++) {
        const double part = length ? (double)k / length : 0;
        canvas_dot(c, x0 + (int)lround(part * (x1 - x0)), y0 + (int)lround(part * (y1 - y0)));
    }
}
static int drawable(const double *x, const double *y, int i) { return fabs(x[i]) <= LARGEST && fabs(y[i]) <= LARGEST; }
/* Sets the range to that of the points and draws them; 0: there are none. */
static int canvas_curve(Canvas *c, const double *x, const double *y, int n) {
    c->x0 = c->y0 = INFINITY;
    c->x1 = c->y1 = -INFINITY;
    for (int i = 0; i < n; i++) {
        if (!drawable(x, y, i)) continue;
        c->x0 = fmin(c->x0, x[i]);
        c->x1 = fmax(c->x1, x[i]);
        c->y0 = fmin(c->y0, y[i]);
        c->y1 = fmax(c->y1, y[i]);
    }
    if (!(c->x0 <= c->x1)) return 0;
    if (c->x1 - c->x0 < 1e-9 * fabs(c->x1) + 1e-30) c->x1 = c->x0 + fmax(fabs(c->x0), 1);
    if (c->y1 - c->y0 < 1e-9 * fabs(c->y1) + 1e-30) c->y1 = c->y0 + fmax(fabs(c->y0), 1);
    for (int i = 0; i < n; i++) {
        if (!drawable(x, y, i)) continue;
        const int from = i && drawable(x, y, i - 1) ? i - 1 : i;
        canvas_line(c, canvas_x(c, x[from]), canvas_y(c, y[from]), canvas_x(c, x[i]), canvas_y(c, y[i]));
    }
    return 1;
}
static void add_cell(Text *t, unsigned char bits, int utf8) {
    char braille[4];
    if (!bits) text_add_string(t, " ");
    else if (utf8) text_add_bytes(t, braille, utf8_encode(0x2800u + bits, braille));
    else text_add_string(t, bits & UPPER_DOTS && bits & LOWER_DOTS ? ":" : bits & UPPER_DOTS ? "'" : ".");
}
/* 7 columns and a blank; as many digits as fit, at most 4 */
static void add_label(Text *t, int labelled, double y) {
    char number[32] = "";
    for (int digits = 4; labelled && digits && snprintf(number, sizeof number, "%.*g", digits, y) > 7; digits--) { }
    text_add(t, "%7s ", number);
}
void plot_terminal(FILE *out, const double *x, const double *y, int n, int width, int height,
                   const char *title, int utf8) {
    enum { LABEL = 9 };                                 /* columns of a number, a blank and the axis */
    Canvas c = { .columns = (width < 24 ? 24 : width > 400 ? 400 : width) - LABEL,
                 .rows = height < 2 ? 2 : height > 100 ? 100 : height };
    c.cell = mem_alloc((size_t)c.columns * (size_t)c.rows);
    Text t = {0}, right = {0};
    text_add(&t, "%s\n", title);
    if (canvas_curve(&c, x, y, n)) {
        for (int row = 0; row < c.rows; row++) {
            const double part = (double)row / (c.rows - 1);
            const int labelled = row == 0 || row == c.rows - 1 || (c.rows >= 5 && row == c.rows / 2);
            add_label(&t, labelled, c.y1 + part * (c.y0 - c.y1));
            text_add_string(&t, utf8 ? labelled ? "┤" : "│" : labelled ? "+" : "|");
            int used = c.columns;
            while (used && !c.cell[row * c.columns + used - 1]) used--;
            for (int k = 0; k < used; k++) add_cell(&t, c.cell[row * c.columns + k], utf8);
            text_add_string(&t, "\n");
        }
        text_add(&t, "%8s%s", "", utf8 ? "└" : "+");
        for (int k = 0; k < c.columns; k++) text_add_string(&t, utf8 ? "─" : "-");
        text_add(&right, "%.6g", c.x1);
        text_add(&t, "\n%9s%-*.6g%s\n", "", c.columns - (int)right.length, c.x0, right.at);
    } else text_add_string(&t, "  nothing to draw\n");
    fwrite(t.at, 1, t.length, out);
    free_each(right.at, t.at, c.cell);
}
