/* relay.h: a model whose layers are dealt out over several devices of one kind: each has the
 * weights and the cache of some consecutive layers. The last device's part is an ordinary Model;
 * its forward first has the other devices compute the residual stream that enters its first layer.
 * The stream goes from device to device through the host's memory. The devices work one after the
 * other, each driven by its thread, the last by the caller's. The same bits as on one. No training.
 *
 *     Relay *r = relay_open(dev, 1, &config, 2, B * capacity, why);  dev: open here, as device 0
 *     model_plan_dealt(&m, dev, &config, B, T, capacity, r);         or decoder_plan_dealt; then
 *     model_allocate(&m), hf_load_weights(&m, ...);                  relay_each does the others */
#pragma once
#include "model.h"

/* devices: from 2 to as many as there are layers; those before the last are number first,
 * first + 1, ... of the machine; the caller has opened another. cache: positions of keys and values
 * that each layer has to hold: they count when layers are dealt. NULL and the reason: a device
 * cannot be opened, or the model has one block for all layers. */
Relay *relay_open(const Device *dev, int first, const Config *c, int devices, size_t cache, char why[256]);
void   relay_close(Relay *r);           /* after the models are freed */

int    relay_devices(const Relay *r);
size_t relay_learnable(const Relay *r);     /* parameters on the devices before the last that the last does not have */
/* The Model of a device before the last, and which layers it has (from, to). */
const Model *relay_model(const Relay *r, int device);
size_t relay_memory(Relay *r, int device);                  /* that it has, as Device.memory */
/* work(model, context) in the thread of each device before the last, in order, until one is 0. */
int    relay_each(Relay *r, int (*work)(Model *m, void *context), void *context);

/* As model_plan_inference, of the last device's layers and of the others'. r NULL: all are here. */
void   model_plan_dealt(Model *m, const Device *dev, const Config *c, int B, int T, int capacity, Relay *r);
