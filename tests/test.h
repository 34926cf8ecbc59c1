/* test.h: what every test file uses. A test calls check() and its relatives; main.c runs the groups
 * and prints `N passed, N failed`. Comparisons are written so that NaN fails. */
#pragma once
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "llmc/base/base.h"

#define COUNT(a) (sizeof (a) / sizeof *(a))

/* Counts a verdict; prints it if bad, or with -v. what: a format that says what should hold. */
void check(int ok, const char *what, ...) PRINTF(2, 3);
void check_error(double error, double bound, const char *what, ...) PRINTF(3, 4);   /* passes if error <= bound */
/* has it all the words, which '|' separates? */
void check_message(const Error *e, const char *words, const char *what);
void fails(int ok, const Error *e, const char *words, const char *what);   /* not ok, and the words */
void skip(const char *what, ...) PRINTF(1, 2);              /* what cannot be tested here; counted separately */

/* norm(got - expected) / norm(expected); NaN if an element is */
double relative_error(const double *got, const double *expected, size_t n);
double uniform(void);                                   /* in [0,1), from a seed that is printed at the start (-s) */
double normal(void);

/* Processor time of this process in seconds, about the same on a busy machine: limits on work are
 * limits on this. Where something waits for a deadline, it is the clock that counts, and may be
 * BUSY times late: such a limit only tells what ends from what hangs. */
double cpu_seconds(void);
enum { BUSY = 15 };
/* Runs a call of a test function, a part of a group, unless -k asks for others. Random numbers
 * begin anew, so that a part does alone what it does among others. */
#define PART(call) do { if (part_begins(#call)) { call; part_ends(#call); } } while (0)
int part_begins(const char *call);
void part_ends(const char *call);
const char *wanted(void);                               /* -k: how the names of the operations to test begin; "": all */
int is_wanted(const char *operation);                       /* is this one of them? */
int may_be_wanted(const char *beginning);                   /* or one that begins so? */
extern int quick;                                           /* -q: fewer and smaller cases */
struct Device;
int is_tested(const struct Device *d);                      /* does its name match -d? */
const struct Device *tested_device(int i);          /* the i-th device that does and that opens; NULL past the end */

/* A folder of this run for files; removed at the end. */
const char *scratch(void);
char *scratch_path(const char *name);                       /* free() it */
char *scratch_put(const char *name, const void *data, size_t bytes);        /* makes a file; free() its path */
char *scratch_folder(const char *name);                     /* the same for a folder */

/* Runs `child` in its own process; returns the exit code, and in `said` its stderr. */
int in_child(void (*child)(void *), void *argument, char *said, size_t capacity);

/* The groups. Those without a comment are in test_NAME.c. */
void test_house(void);                                      /* the rules of the source tree */
void test_files(void);                                      /* json, safetensors, tokenizer */
void test_outside(void);                                    /* part of the group files */
void test_patterns(void);                                   /* part of the group files */
void test_data(void);
void test_texts(void);                                      /* raw text, part of the group data */
void test_forms(void);                                      /* forms of data, part of the group data */
void test_jinja(void);                                      /* chat templates, part of the group data */
void test_chats(void);                                      /* conversations, part of the group data */
void test_kernels(void);                                    /* ops/test_ops.c */
void test_model(void);
void test_fp8(void);                                        /* experts in 8 bits, part of the group model */
void test_codes(void);                                      /* weights in codes, likewise */
void test_cost(void);                                       /* the time of a planned step, part of the group model */
void test_recompute(void);                                  /* recomputing by parts, part of the group model */
void test_relay(void);                                      /* layers on several devices, part of the group model */
void test_reference(void);
void test_evaluate(void);                                   /* questions, part of the group reference */
void test_absorb(void);                                     /* -ga momentum, part of the group train */
void test_train(void);
void test_settings(void);                                   /* files/, part of the group train */
void test_configs(void);                                    /* likewise */
void test_checkpoints(void);                                /* likewise */
void test_state(void);                                      /* files/test_state.c: damaged and half-saved checkpoints */
void test_parallel(void);
void test_report(void);
void test_web(void);                                        /* requests of infer_moe -m web */
void test_comm(void);
void test_messages(void);                                   /* bytes from strangers */
void test_strangers(void);
void test_gpu(void);
void test_decoding(void);                                   /* on GPUs, model/test_gpu.c */
void gpu_fault(void);                                       /* not a test: ends the process with an error of the GPU */
void test_ladder(void);                                     /* ops/test_ops.c */
void test_soak(void);                                       /* ops/test_large.c */
void test_large(void);
