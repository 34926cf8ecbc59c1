/* test_tensorboard.c: event files, read back by their format: framing, checksums, and the fields of the messages. Part of the group
 * report. TensorBoard's own reader: tests/tensorboard.sh. */
#define _DEFAULT_SOURCE
#include "tests/test.h"
#include "llmc/run/tensorboard.h"
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* ---- a reader of the wire format ------------------------------------------------------------------------------------- */

typedef struct { const unsigned char *at; size_t bytes; } Bytes;
static uint64_t take_little(Bytes *b, size_t n) {
    uint64_t x = 0;
    for (size_t i = 0; i < n && i < b->bytes; i++) x |= (uint64_t)b->at[i] << 8 * i;
    n = n < b->bytes ? n : b->bytes;
    b->at += n;
    b->bytes -= n;
    return x;
}
static uint64_t take_varint(Bytes *b) {
    uint64_t x = 0, part;
    for (int shift = 0; b->bytes; shift += 7) {
        part = take_little(b, 1);
        x |= (part & 127) << shift;
        if (part < 128) break;
    }
    return x;
}
/* The index-th field of this number: its value, and its bytes if it has some. 0: there is none. */
static int field(Bytes message, int number, int index, uint64_t *value, Bytes *bytes) {
    while (message.bytes) {
        const uint64_t key = take_varint(&message);
        uint64_t x = (key & 7) == 0 || (key & 7) == 2 ? take_varint(&message) : take_little(&message, (key & 7) == 1 ? 8 : 4);
        Bytes data = { message.at, 0 };
        if ((key & 7) == 2) {
            data.bytes = x < message.bytes ? (size_t)x : message.bytes;
            message.at += data.bytes;
            message.bytes -= data.bytes;
        }
        if ((int)(key >> 3) != number || index--) continue;
        *value = x;
        *bytes = data;
        return 1;
    }
    return 0;
}
static Bytes inside(Bytes message, int number, int index) {
    uint64_t value;
    Bytes bytes = { 0 };
    return field(message, number, index, &value, &bytes) ? bytes : (Bytes){ 0 };
}
static uint64_t number_of(Bytes message, int number) {
    uint64_t value;
    Bytes bytes;
    return field(message, number, 0, &value, &bytes) ? value : UINT64_MAX;
}
static double double_of(Bytes message, int number) {
    const uint64_t bits = number_of(message, number);
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static int is(Bytes b, const char *string) { return b.bytes == strlen(string) && !memcmp(b.at, string, b.bytes); }

/* The next record of a file; nothing if there is none, or if a checksum is wrong. */
static uint32_t unmasked(uint64_t mask) {
    const uint32_t turned = (uint32_t)mask - 0xa282ead8u;
    return turned >> 17 | turned << 15;
}
static Bytes next_record(Bytes *file) {
    const unsigned char *length_at = file->at;
    if (file->bytes < 16) return (Bytes){ 0 };
    const uint64_t length = take_little(file, 8);
    if (unmasked(take_little(file, 4)) != crc32c(0, length_at, 8) || length > file->bytes - 4) return (Bytes){ 0 };
    const Bytes data = { file->at, (size_t)length };
    file->at += length;
    file->bytes -= (size_t)length;
    return unmasked(take_little(file, 4)) == crc32c(0, data.at, data.bytes) ? data : (Bytes){ 0 };
}

/* The newest event file of a folder; free() it. */
static char *newest(const char *folder, int *files, size_t *bytes) {
    char name[256] = "";
    Error e;
    *files = 0;
    DIR *d = opendir(folder);
    for (const struct dirent *entry; d && (entry = readdir(d)); ) {
        if (!strstr(entry->d_name, "tfevents")) continue;
        ++*files;
        if (strcmp(entry->d_name, name) > 0) snprintf(name, sizeof name, "%s", entry->d_name);
    }
    if (d) closedir(d);
    char *path = text_format("%s/%s", folder, name), *text = *files ? file_read(path, bytes, &e) : NULL;
    free(path);
    return text;
}

/* ---- tests --------------------------------------------------------------------------------------------------------------- */

static void check_values(Bytes scalars, Bytes counts, Bytes text) {
    const Bytes one = inside(inside(scalars, 5, 0), 1, 0), two = inside(inside(scalars, 5, 0), 1, 1);
    check(number_of(scalars, 2) == 200 && is(inside(one, 1, 0), "loss/training") && number_of(one, 2) == 0x40200000u
          && is(inside(two, 1, 0), "rate") && number_of(two, 2) == 0x7fc00000u, "tensorboard: scalars: 2.5 and NaN of step 200");
    const Bytes histogram = inside(inside(inside(counts, 5, 0), 1, 0), 5, 0), limits = inside(histogram, 6, 0), own = inside(histogram, 7, 0);
    check(double_of(histogram, 3) == 6 && double_of(histogram, 4) == 2 + 2 * 3 && double_of(histogram, 5) == 2 + 4 * 3
          && limits.bytes == 24 && own.bytes == 24, "tensorboard: a histogram of three experts: %g slots", double_of(histogram, 3));
    double values[3];
    memcpy(values, own.at ? own.at : (const unsigned char *)values, own.bytes == 24 ? 24 : 0);
    check(values[0] == 1 && values[1] == 2 && values[2] == 3, "tensorboard: what each of them has");
    const Bytes value = inside(inside(text, 5, 0), 1, 0), tensor = inside(value, 8, 0);
    check(is(inside(inside(inside(value, 9, 0), 1, 0), 1, 0), "text") && number_of(tensor, 1) == 7
          && is(inside(tensor, 8, 0), "    a *b*\n    \xEF\xBF\xBD\xE2\x90\x9B"), "tensorboard: text as it is, by lines: %.*s",
          (int)inside(tensor, 8, 0).bytes, (const char *)inside(tensor, 8, 0).at);
}
static void test_file(void) {
    Error e = { "" };
    int files;
    size_t bytes = 0;
    char *folder = scratch_path("board");
    check(folder_make(folder, &e), "tensorboard: %s", folder);
    Board *b = board_open(folder, 0, &e);
    check(b != NULL, "tensorboard: a file is made: %s", e.text);
    board_begin(b, 200);
    board_scalar(b, "loss/training", 2.5);
    board_scalar(b, "rate", NAN);
    board_end(b);
    board_begin(b, 301);
    board_counts(b, "layer 0 mlp", (int[]){ 1, 2, 3 }, 3);
    board_end(b);
    board_begin(b, 302);
    board_text(b, "sample", "a *b*\n\xFF\x1B", 8);
    board_end(b);
    char *text = newest(folder, &files, &bytes);
    Bytes file = { (const unsigned char *)text, bytes };
    const Bytes version = next_record(&file), start = next_record(&file), scalars = next_record(&file), counts = next_record(&file);
    check(is(inside(version, 3, 0), "brain.Event:2") && fabs(double_of(version, 1) - (double)time(NULL)) < 60, "tensorboard: begins with its version");
    check(number_of(inside(start, 7, 0), 1) == 1 && number_of(start, 2) == 1, "tensorboard: step 1 and later ones of earlier files are void");
    check_values(scalars, counts, next_record(&file));
    check(!file.bytes && !next_record(&file).at, "tensorboard: and nothing else");
    free(text);
    board_close(b);
    b = board_open(folder, 1LL << 40, &e);
    board_close(b);
    text = newest(folder, &files, &bytes);
    file = (Bytes){ (const unsigned char *)text, bytes };
    next_record(&file);
    check(files == 2 && number_of(next_record(&file), 2) == (1ULL << 40) + 1, "tensorboard: a session adds a file, which is the last by name");
    free(text);
    free(folder);
}

static int warned;
static void on_warning(const char *text) { warned += strstr(text, "training continues") != NULL; }
/* On a full disk records are dropped, whole, and the next ones are written when there is room again. */
static void test_full(void) {
    Error e = { "" };
    struct rlimit was, limit;
    int files, records = 0;
    size_t bytes = 0;
    char *folder = scratch_path("board-full");
    folder_make(folder, &e);
    Board *b = board_open(folder, 0, &e);
    getrlimit(RLIMIT_FSIZE, &was);
    limit = was;
    limit.rlim_cur = 500;
    warn_hook(on_warning);
    signal(SIGXFSZ, SIG_IGN);
    fflush(NULL);
    const int saved = dup(STDERR_FILENO), none = open("/dev/null", O_WRONLY);
    dup2(none, STDERR_FILENO);                  /* freopen would leave stderr with a buffer, which children that _exit never write */
    close(none);
    setrlimit(RLIMIT_FSIZE, &limit);
    for (int i = 0; i < 50; i++) { board_begin(b, i); board_scalar(b, "loss", i); board_end(b); }
    setrlimit(RLIMIT_FSIZE, &was);
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    warn_hook(NULL);
    board_begin(b, 1000);
    board_scalar(b, "loss", 1);
    board_end(b);
    board_close(b);
    char *text = newest(folder, &files, &bytes);
    Bytes file = { (const unsigned char *)text, bytes }, record, last = { 0 };
    while ((record = next_record(&file)).at) { last = record; records++; }
    check(none >= 0 && warned == 1, "tensorboard: a full disk is told once: %d", warned);
    check(records > 4 && records < 40 && !file.bytes && number_of(last, 2) == 1000, "tensorboard: of a full disk %d records, all whole", records);
    free(text);
    free(folder);
    board_close(NULL);
    board_begin(NULL, 1);
    board_scalar(NULL, "x", 1);
    board_end(NULL);
    check(!board_open("/nowhere/at/all", 0, &e) && strstr(e.text, "/nowhere/at/all/events"), "tensorboard: no folder: %s", e.text);
}

void test_tensorboard(void) {
    PART(test_file());
    PART(test_full());
}
