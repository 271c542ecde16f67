/* file_private.h - between file.c and file_io.c. */
#ifndef STORE_FILE_PRIVATE_H
#define STORE_FILE_PRIVATE_H

#include "store/file/file.h"

/* file_truncate() for who holds the turn. */
int file_truncate_turn(struct store *st, struct inode *in, uint64_t size);
/* A sealed stage that is only a cache goes; -EAGAIN: it is more than that. */
int file_give_up_turn(struct store *st, struct inode *in);
/* Ends what file->changing++ began. */
void file_change_end(struct store *st, struct inode *in);
/* Mark the stage as changed; expects the caller to have it referenced. */
void file_dirtied(struct store *st, struct inode *in, struct stage *s);
/* See new_stage() in file.c; installs it. */
int file_install_stage(struct store *st, struct inode *in, uint64_t size,
		       struct stage **ret_stage);

#endif
