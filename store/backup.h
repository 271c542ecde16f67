/*
 * backup.h - copies of the database in STORE/backup, made with RocksDB's own
 * backup engine: a way back when the database is lost (rebuild.h).
 *
 * One is made after a publish (a rename), at most one in backup_interval_s; the
 * last two are kept, and share what did not change. A thread of its own makes
 * it, under no lock: nobody waits for it. None is made when the disk has little
 * room.
 */
#ifndef STORE_BACKUP_H
#define STORE_BACKUP_H

#include <stdint.h>

struct store;

int backup_start(struct store *st);
/* A running one is finished before. */
void backup_stop(struct store *st);
/* Something was published: what the next backup has is worth having. */
void backup_wanted(struct store *st);

struct backup_figures {
	uint64_t made, failed;
	uint64_t bytes; /* that the last one holds */
	int64_t took_ns; /* the last one */
	int64_t at_ns; /* when it was done, as a date; 0: there is none */
};
void backup_figures(struct store *st, struct backup_figures *ret);

#endif
