/* safetensors.c: the reader of safetensors files and of the index of a set of them.
 *
 * The first byte says what the input is: a whole file; a header and its data, whose length is put
 * in front; or a folder: an index, and header and data of two files. What is accepted is read to
 * the last byte, looked up by name, and written again. */
#include "tests/fuzz/support/fuzz.h"
#include "llmc/files/safetensors.h"
#include <sys/stat.h>

const int fuzz_is_json = 1;

static char *set;
void fuzz_start(void) {
    set = text_format("%s/set", fuzz_folder());
    mkdir(set, 0777);
}

/* A tensor is at most as large as its file, which is small. */
static void read_all(Safetensors *s, size_t size) {          /* size: of its file; tensors do not overlap */
    Error e;
    size_t total = 0;
    safetensors_note(s, "format");
    for (size_t i = 0; i < safetensors_count(s); i++) {
        const FileTensor *t = safetensors_at(s, i);
        char *bytes = malloc(t->bytes + 1);
        double *values = malloc((t->count < 1000 ? t->count : 1000) * sizeof *values + 1);
        fuzz_check(safetensors_find(s, t->name) == t || !strcmp(safetensors_find(s, t->name)->name, t->name));
        fuzz_check(safetensors_read(s, t, 0, bytes, t->bytes, &e));
        fuzz_check(!safetensors_read(s, t, 1, bytes, t->bytes, &e)
                   && !safetensors_read(s, t, t->bytes + 1, bytes, 0, &e));
        safetensors_read_double(s, t, 0, values, t->count < 1000 ? t->count : 1000, &e);
        free(bytes), free(values);
        total += t->bytes;
    }
    fuzz_check(total <= size);
}
/* Of one file: the same tensors in a file of the program's own, which it must be able to read. */
static void write_again(Safetensors *s) {
    const size_t n = safetensors_count(s);
    FileTensor *tensors = malloc(n * sizeof *tensors + 1);
    Error e = { 0 };
    for (size_t i = 0; i < n; i++) tensors[i] = *safetensors_at(s, i);
    const FileNote note = { "format", "pt" };
    const char *path = fuzz_file("again.safetensors", "", 0);
    SafetensorsWriter *w = safetensors_create(path, tensors, n, &note, 1, &e);
    for (size_t i = 0; w && i < n; i++) {
        char *bytes = malloc(tensors[i].bytes + 1);
        fuzz_check(safetensors_read(s, safetensors_at(s, i), 0, bytes, tensors[i].bytes, &e));
        fuzz_check(safetensors_append(w, bytes, tensors[i].bytes, &e));
        free(bytes);
    }
    fuzz_check(!w || safetensors_finish(w, &e, NULL, NULL));
    Safetensors *again = w ? safetensors_open(path, &e) : NULL;
    fuzz_check(!w || (again && safetensors_count(again) == n));
    safetensors_close(again), free(tensors);
}

void fuzz_one(const uint8_t *data, size_t size) {
    Part rest = { (const char *)data, size };
    const unsigned form = fuzz_choice(&rest, 3);
    const char *path = set;
    size_t in_file = form ? SIZE_MAX : rest.bytes;
    Error e = { 0 };
    if (form == 0) path = fuzz_file("a.safetensors", rest.at, rest.bytes);
    if (form == 2) {
        const Part index = fuzz_part(&rest);
        fuzz_file("set/model.safetensors.index.json", index.at, index.bytes);
    }
    for (unsigned i = 0; form && i < form; i++) {
        size_t bytes;
        const Part header = fuzz_part(&rest), tensors = fuzz_part(&rest);
        char *file = fuzz_tensors(header, tensors, &bytes);
        const char *at = fuzz_file(form == 1 ? "a.safetensors" : i ? "set/b" : "set/a", file, bytes);
        if (form == 1) path = at, in_file = bytes;
        free(file);
    }
    Safetensors *s = safetensors_open(path, &e);
    if (s) {
        read_all(s, in_file);
        if (form < 2) write_again(s);
    } else fuzz_check(*e.text);
    safetensors_close(s);
}
