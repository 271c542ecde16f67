/* npy.h - NumPy's .npy: a short header, then one array. */
#ifndef STORE_FORMATS_NPY_H
#define STORE_FORMATS_NPY_H

#include "store/formats/walk.h"

/*
 * Mark the start of the file's array. 1: this is an .npy file; 0: it is not,
 * nothing was marked; or an error of walk_*().
 */
int npy_walk(struct walk *w);

/*
 * The same for an .npy that is a member of an archive and takes up
 * [at, at + len_bytes) of the file.
 */
int npy_walk_member(struct walk *w, uint64_t at, uint64_t len_bytes);

#endif
