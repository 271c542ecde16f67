/* safetensors.h - a JSON header with the offsets of all tensors, then they. */
#ifndef STORE_FORMATS_SAFETENSORS_H
#define STORE_FORMATS_SAFETENSORS_H

#include "store/formats/walk.h"

/*
 * Mark where the tensors start and end. 1: this is a safetensors file; 0: it
 * is not, nothing was marked; -ENOMEM, or an error of walk_*().
 */
int safetensors_walk(struct walk *w);

#endif
