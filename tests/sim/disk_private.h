/*
 * disk_private.h - what is known of a run's files, for disk.c (files and
 * descriptors), disk_cut.c (what a power cut takes back) and disk_calls.c (the
 * calls that come here).
 */
#ifndef TESTS_SIM_DISK_PRIVATE_H
#define TESTS_SIM_DISK_PRIVATE_H

#include <dirent.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>

#include "tests/sim/disk.h"
#include "tests/sim/wrap.h"

#define FDS_MAX 1024
#define MAPS_MAX 256
#define BLOCK 4096u

enum place {
	ELSEWHERE,
	DISK,
	STAGE,
};

struct file {
	uint64_t ino;
	enum place place;
	struct timespec mtime;
	bool dir;
	/* DISK: */
	uint64_t durable_size;
	bool changed; /* since it was synced */
	uint8_t **old; /* by block: as it was; NULL: not changed */
	size_t blocks;
};

struct name_change {
	char dir[200], name[100];
	uint64_t before, after; /* inode numbers; 0: nothing */
	bool joined; /* with the one before it: both or none */
};

struct disk_state {
	char root[128], store[160], stage[160], grave[160], empty[160];
	struct chance chance;
	struct {
		enum place place;
		bool backing;
		struct file *file;
		char *path;
	} fd[FDS_MAX];
	struct {
		void *at;
		size_t len;
		int part;
	} map[MAPS_MAX];
	struct file **file;
	size_t file_count, file_room;
	struct name_change *change;
	size_t change_count, change_room;
	uint64_t size, used;
	uint64_t errors_one_in;
	int64_t errors_until_ns;
	bool backing;
};
extern struct disk_state disk;

/* --- disk.c */

/* By the clock of the run. */
struct timespec disk_now(void);
/* The file with this number, made known when it is not. */
struct file *disk_file_of(uint64_t ino, enum place place);
/* ret: what dirfd and path mean, without the root. */
enum place disk_resolve(int dirfd, const char *path, char ret[400]);
/* For the trace: no number of this process is in it. */
const char *disk_shown(const char *path);
/* Which of several stores, by a path without the root; -1: none. */
int disk_part_of(const char *path);
/* NULL: it is elsewhere. */
struct file *disk_of_fd(int fd);
bool disk_on_disk(int fd);
/* A point, and perhaps an error: 0 or an errno. */
int disk_step(const char *what, int fd, bool may_fail);
/* Bytes that it takes, when somebody counts; else 0. */
uint64_t disk_blocks_of(int fd);

/* --- disk_cut.c */

extern uint8_t disk_hole[BLOCK]; /* in file.old: it was not there */
/* It is not durable as it is any more. */
void disk_begin_change(struct file *f, uint64_t size);
/* Keep what [off, off + len) is, before it changes. */
void disk_keep_old(int fd, uint64_t off, uint64_t len);
/* It is durable as it is. */
void disk_synced(struct file *f);
void disk_split(const char *path, char dir[200], char name[100]);
/* joined: with the change before it, both or none. */
void disk_note_name(const char *path, uint64_t before, uint64_t after,
		    bool joined);
/* The names in this directory are durable. */
void disk_names_synced(const char *dir);
/* 0: there is nothing. */
uint64_t disk_ino_at(const char *path);
/* The last name goes; a power cut may bring it back. */
void disk_bury(const char *path, uint64_t ino);
/* All that is in a directory. */
void disk_remove_tree(const char *path);

/* --- disk_durable.c */

/* These bytes (NULL: zeros) are about to be there. */
void disk_guard(int fd, const void *bytes, uint64_t off, uint64_t len);
/* This name is about to go. */
void disk_guard_name(const char *path);

#endif
