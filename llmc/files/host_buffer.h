/* host_buffer.h: much memory of the host, which a device reaches directly, made by a thread: fresh
 * pages of tens of GB, and locking them for a GPU, take many seconds, in which a run trains. */
#pragma once
#include "llmc/model/tensor.h"

typedef struct HostBuffer HostBuffer;
/* NONE: the host does not have it. In this order: the least of several counts */
typedef enum { BUFFER_NONE, BUFFER_LATER, BUFFER_READY } BufferState;

HostBuffer     *host_buffer_open(const Device *dev, const void *near, size_t bytes);  /* near: memory of the device */
BufferState host_buffer_state(HostBuffer *r, int waits);    /* waits: not LATER */
void     *host_buffer_memory(const HostBuffer *r);          /* of one that is READY: zeros */
void      host_buffer_close(HostBuffer *r);                 /* also LATER */
