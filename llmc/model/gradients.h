/* gradients.h: which gradients are overwritten, which added to, and how the host reads them. */
#pragma once
#include "model.h"

/* How the backward of layer l writes the gradient of a matrix. */
Write gradient_write(const Model *m, int l);
Write kept_gradient_write(const Model *m, int l);   /* of one that AdamW updates, which is kept until the step ends */
void model_clear_gradients(Model *m, int range);    /* those of a range that are sums begin at zero */
void model_gradients(const Model *m, OUT double *host);    /* (manifest.total) laid out like the weights */
