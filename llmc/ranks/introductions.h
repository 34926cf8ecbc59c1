/* introductions.h: process 0's listeners and the connections that are not introduced yet. Nothing
 * waits. Every connection has one deadline for its introduction, and none delays another. If there
 * are too many, the oldest that has proved nothing gives way; an honest process connects again. */
#pragma once
#include <poll.h>
#include "messages.h"

enum { LINGER = 1 };                        /* seconds to deliver the last message of a process that ends or refuses */
enum { INTRODUCTION_SECONDS = 2, MOST_INTRODUCTIONS = 128, INTRODUCTION_FDS = 8 + MOST_INTRODUCTIONS };

typedef struct Introductions Introductions;
Introductions *introductions_open(const char *address, int port, int for_others, const char *secret, Error *e);
void introductions_close(Introductions *s);                     /* refused processes lose their reason; NULL is fine */

/* Fills fds (INTRODUCTION_FDS) for poll; returns how many. Lowers *until to the next deadline. */
int  introductions_poll(Introductions *s, struct pollfd *fds, double *until);

/* A process that knows the secret. 1: admitted, with its fd. 0 and why: it is sent why. */
typedef int (*Admit)(void *to, int fd, const Greeting *g, const Hello *h, const char *settings, Error *why);
/* After every poll: accepts what has connected, reads what has arrived, ends what is late. */
void introductions_step(Introductions *s, Admit admit, void *to);

/* How many connections knew another secret. text: the address of the latest. */
int  introductions_wrong(const Introductions *s, char text[64]);
