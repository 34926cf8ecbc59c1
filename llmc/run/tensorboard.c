/* tensorboard.c: see tensorboard.h. The messages are written in the wire format of protocol buffers: each field a key, number * 8 + kind,
 * and its value. Field numbers are those of event.proto, summary.proto, histogram.proto and tensor.proto of TensorFlow. */
#define _POSIX_C_SOURCE 200809L
#include "tensorboard.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct Board {
    char *path;
    int   fd, lost;                     /* lost: records that could not be written */
    off_t whole;                        /* bytes of whole records */
    int64_t step;
    Text  values;                       /* the Summary of the record that is being made */
};

/* ---- protocol buffers ------------------------------------------------------------------------------------------------ */

enum { VARINT = 0, EIGHT = 1, BYTES = 2, FOUR = 5 };    /* kinds of fields */
static void add_varint(Text *t, uint64_t x) {
    for (; x > 127; x >>= 7) text_add_bytes(t, &(unsigned char){ (unsigned char)(x | 128) }, 1);
    text_add_bytes(t, &(unsigned char){ (unsigned char)x }, 1);
}
static void add_little(Text *t, uint64_t x, int bytes) {                        /* the lowest byte first */
    for (int i = 0; i < bytes; i++, x >>= 8) text_add_bytes(t, &(unsigned char){ (unsigned char)x }, 1);
}
static void add_key(Text *t, int field, int kind) { add_varint(t, (uint64_t)field << 3 | (uint64_t)kind); }
static void add_int(Text *t, int field, int64_t x) { add_key(t, field, VARINT); add_varint(t, (uint64_t)x); }
static void add_double(Text *t, int field, double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    add_key(t, field, EIGHT);
    add_little(t, bits, 8);
}
static void add_float(Text *t, int field, float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    add_key(t, field, FOUR);
    add_little(t, bits, 4);
}
static void add_data(Text *t, int field, const void *data, size_t bytes) {
    add_key(t, field, BYTES);
    add_varint(t, bytes);
    text_add_bytes(t, data, bytes);
}
static void add_string(Text *t, int field, const char *string) { add_data(t, field, string, strlen(string)); }
static void add_message(Text *t, int field, Text *message) {                    /* and frees it */
    add_data(t, field, message->at, message->length);
    free(message->at);
}
static void add_doubles(Text *t, int field, const double *x, int n) {           /* packed */
    Text packed = { 0 };
    for (int i = 0; i < n; i++) {
        uint64_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        add_little(&packed, bits, 8);
    }
    add_message(t, field, &packed);
}

/* ---- records --------------------------------------------------------------------------------------------------------- */

/* Length, its checksum, the data, their checksum; a checksum of data that hold checksums is turned and shifted. */
static uint32_t masked(const void *data, size_t bytes) {
    const uint32_t crc = crc32c(0, data, bytes);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}
static int write_record(Board *b, const Text *event) {
    Text r = { 0 };
    add_little(&r, event->length, 8);
    add_little(&r, masked(r.at, 8), 4);
    text_add_bytes(&r, event->at, event->length);
    add_little(&r, masked(event->at, event->length), 4);
    size_t done = 0;
    for (ssize_t n = 0; done < r.length && (n >= 0 || errno == EINTR); done += n > 0 ? (size_t)n : 0)
        n = write(b->fd, r.at + done, r.length - done);
    const int ok = done == r.length, why = errno;
    if (ok) b->whole += (off_t)r.length;
    else if (ftruncate(b->fd, b->whole)) b->lost++;         /* a reader stops at the part that is there */
    free(r.at);
    errno = why;
    return ok;
}
static Text event_begin(int64_t step) {
    struct timespec t;
    Text event = { 0 };
    clock_gettime(CLOCK_REALTIME, &t);
    add_double(&event, 1, (double)t.tv_sec + 1e-9 * (double)t.tv_nsec);
    add_int(&event, 2, step);
    return event;
}

/* ---- the file ---------------------------------------------------------------------------------------------------------- */

static int write_start(Board *b, int64_t step) {
    Text version = event_begin(0), start = event_begin(step), log = { 0 };
    add_string(&version, 3, "brain.Event:2");
    add_int(&log, 1, 1);                                    /* SessionLog.START: earlier records of this step and later ones are void */
    add_message(&start, 7, &log);
    const int ok = write_record(b, &version) && write_record(b, &start);
    free(version.at);
    free(start.at);
    return ok;
}
/* Readers take the files of a folder in the order of their names. */
Board *board_open(const char *folder, int64_t step, Error *e) {
    Board *b = mem_alloc(sizeof *b);
    int64_t seconds = (int64_t)time(NULL);
    do {
        free(b->path);
        b->path = text_format("%s/events.out.tfevents.%010lld.moe", folder, (long long)seconds++);
        b->fd = open(b->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    } while (b->fd < 0 && errno == EEXIST);
    if (b->fd >= 0 && write_start(b, step + 1)) return b;
    error_set(e, "%s: %s", b->path, strerror(errno));
    board_close(b);
    return NULL;
}
void board_close(Board *b) {
    if (!b) return;
    if (b->fd >= 0) close(b->fd);
    free(b->values.at);
    free(b->path);
    free(b);
}

void board_begin(Board *b, int64_t step) {
    if (!b) return;
    b->step = step;
    b->values.length = 0;
}
void board_end(Board *b) {
    if (!b) return;
    Text event = event_begin(b->step);
    add_data(&event, 5, b->values.at, b->values.length);
    if (!write_record(b, &event) && !b->lost++) {
        const int why = errno;
        warn("%s: a record cannot be written (%s): TensorBoard will not show all; training continues", b->path, strerror(why));
    }
    free(event.at);
}

static void add_value(Board *b, Text *value) { add_message(&b->values, 1, value); }
static Text value_begin(const char *tag) {
    Text value = { 0 };
    add_string(&value, 1, tag);
    return value;
}
void board_scalar(Board *b, const char *tag, double x) {
    if (!b) return;
    Text value = value_begin(tag);
    add_float(&value, 2, (float)x);
    add_value(b, &value);
}
void board_counts(Board *b, const char *tag, const int *count, int n) {
    if (!b || n < 1) return;
    double *limit = mem_alloc(2 * (size_t)n * sizeof *limit), *own = limit + n, sum = 0, all = 0, squares = 0;
    Text value = value_begin(tag), histogram = { 0 };
    for (int i = 0; i < n; i++) {
        limit[i] = i + 0.5;
        own[i] = count[i];
        all += own[i];
        sum += i * own[i];
        squares += (double)i * i * own[i];
    }
    add_double(&histogram, 1, -0.5);                        /* min, max, num, sum, sum_squares, bucket_limit, bucket */
    add_double(&histogram, 2, n - 0.5);
    add_double(&histogram, 3, all);
    add_double(&histogram, 4, sum);
    add_double(&histogram, 5, squares);
    add_doubles(&histogram, 6, limit, n);
    add_doubles(&histogram, 7, own, n);
    add_message(&value, 5, &histogram);
    add_value(b, &value);
    free(limit);
}

/* The text plugin reads Markdown: lines that are indented by four spaces are shown as they are. */
void board_text(Board *b, const char *tag, const char *text, size_t bytes) {
    if (!b) return;
    Text value = value_begin(tag), plugin = { 0 }, metadata = { 0 }, tensor = { 0 }, shape = { 0 }, size = { 0 }, lines = { 0 };
    add_string(&plugin, 1, "text");
    add_message(&metadata, 1, &plugin);
    char shown[5];
    text_add_string(&lines, "    ");
    for (size_t i = 0; i < bytes; ) {
        i += text_show(text + i, bytes - i, shown);
        text_add_string(&lines, *shown == '\n' ? "\n    " : shown);
    }
    add_int(&size, 1, 1);
    add_message(&shape, 2, &size);
    add_int(&tensor, 1, 7);                                 /* DT_STRING */
    add_message(&tensor, 2, &shape);
    add_message(&tensor, 8, &lines);
    add_message(&value, 9, &metadata);
    add_message(&value, 8, &tensor);
    add_value(b, &value);
}
