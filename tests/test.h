/* test.h: what every test file uses. A test is a function that calls check() and friends; main.c runs the groups and
 * prints the line `N passed, N failed`. Comparisons are written so that NaN fails. */
#ifndef TEST_H
#define TEST_H
#include <stddef.h>
#include "llmc/base/base.h"

/* Counts a verdict and prints it when it is bad, or always with -v. what: a printf format naming what was checked. */
void check(int ok, const char *what, ...) PRINTF(2, 3);
void check_error(double error, double bound, const char *what, ...) PRINTF(3, 4);   /* passes if error <= bound */
void skip(const char *what, ...) PRINTF(1, 2);                                      /* counted apart, always printed */

/* norm of the difference / norm; NaN if any is */
double relative_error(const double *got, const double *expected, size_t n);
double uniform(void);                                  /* in [0,1), from a seed printed at the start (-s to repeat) */
double normal(void);

int in_part(void);                                          /* is the next piece of work this process's? (-p) */
extern int quick;                                           /* -q: fewer and smaller cases */
struct Device;
int is_tested(const struct Device *d);                      /* -d names it */
const struct Device *tested_device(int i);                  /* the i-th of those, if it opens; NULL past the end */

/* A folder of this run's own for files, removed at the end. */
const char *scratch(void);
char *scratch_path(const char *name);                       /* free() it */

/* The groups, one per file. */
void test_files(void);                                      /* json, safetensors, tokenizer */
void test_data(void);
void test_texts(void);                                      /* raw text, part of the group data */
void test_kernels(void);
void test_model(void);
void test_reference(void);
void test_train(void);
void test_parallel(void);
void test_report(void);
void test_comm(void);
void test_gpu(void);
void gpu_fault(void);                                       /* not a test: ends the process as an error of a GPU does */
void test_ladder(void);                                     /* in test_kernels.c */
void test_soak(void);                                       /* in test_large.c */
void test_large(void);
#endif
