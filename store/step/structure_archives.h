/*
 * structure_archives.h - do the .distcp files of a .metadata hold archives
 * where it says that tensors are?
 */
#ifndef STORE_STEP_STRUCTURE_ARCHIVES_H
#define STORE_STEP_STRUCTURE_ARCHIVES_H

#include "store/step/structure.h"

/* Entries of one file that are looked at, from its first one to its last. */
#define STRUCTURE_ARCHIVES_MAX 8

/*
 * torch.save() writes each tensor, so an entry begins with the first bytes of
 * an archive and ends with its end record; noise and zeros do neither. Not
 * looked at is what was transformed, is no tensor, or lies in another file than
 * a .distcp, and nothing that closure.h says. `below` is the folder. Findings
 * are added, of names that are d's. -ENOMEM.
 */
int structure_check_archives(const struct structure_source *in,
			     const struct dcp *d, const char *below,
			     struct closure *found);

#endif
