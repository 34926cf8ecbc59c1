/* checkpoint_folder.c: see checkpoint_folder.h. */
#define _DEFAULT_SOURCE
#include "checkpoint_folder.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *const checkpoint_files[FILES] = { "model.safetensors", "optimizer.safetensors" };

static int by_step(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}
int list_steps(const char *folder, int64_t **steps, Error *e) {
    char *path = text_format("%s/state", folder);
    DIR *d = opendir(path);
    int n = 0, capacity = 0;
    *steps = NULL;
    if (!d && errno != ENOENT && errno != ENOTDIR) { error_set(e, "%s: %s", path, strerror(errno)); n = -1; }
    for (struct dirent *f; d && (f = readdir(d)); ) {
        char *end;
        if (strncmp(f->d_name, "step-", 5)) continue;
        int64_t step = strtoll(f->d_name + 5, &end, 10);
        if (end == f->d_name + 5 || *end || step < 0) continue;
        array_grow(*steps, n, capacity);
        (*steps)[n++] = step;
    }
    if (d) closedir(d);
    free(path);
    if (n > 0) qsort(*steps, (size_t)n, sizeof **steps, by_step);
    return n;
}
char *step_path(const char *folder, int64_t step) {
    return text_format("%s/state/step-%08lld", folder, (long long)step);
}
char *top_weights(const char *folder) { return text_format("%s/model.safetensors", folder); }

void remove_folder(const char *path) {
    DIR *d = opendir(path);
    for (struct dirent *f; d && (f = readdir(d)); ) {
        if (!strcmp(f->d_name, ".") || !strcmp(f->d_name, "..")) continue;
        char *file = text_format("%s/%s", path, f->d_name);
        unlink(file);
        free(file);
    }
    if (d) closedir(d);
    rmdir(path);
}

char *set_aside(const char *folder, int64_t step) {
    char *path = step_path(folder, step), *aside = text_format("%s/state/.tmp-old-step-%lld", folder, (long long)step);
    remove_folder(aside);
    if (rename(path, aside)) { free(aside); aside = NULL; }
    free(path);
    return aside;
}
int remove_step(const char *folder, int64_t step) {
    char *aside = set_aside(folder, step);
    if (!aside) return 0;
    remove_folder(aside);
    free(aside);
    return 1;
}

int publish(const char *from, const char *folder, const Model *m, const Tokenizer *tokenizer,
            const HfOrigin *origin, Error *e) {
    char *top = top_weights(folder);
    const int ok = folder_make(folder, e) && hf_save_small(folder, m, tokenizer, origin, e) && file_link(from, top, e);
    free(top);
    return ok;
}
