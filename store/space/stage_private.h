/* stage_private.h - between the files that make stages: see stage.h. */
#ifndef STORE_STAGE_PRIVATE_H
#define STORE_STAGE_PRIVATE_H

#include "store/db/layout.h"
#include "store/space/stage.h"

#define STAGE_TABLE "table"
#ifndef STAGE_SLOTS /* a simulator has few files */
#define STAGE_SLOTS 65535u
#endif
#define STAGE_BOOT_ID_BYTES 40

/* What the table begins with; the slots follow at STAGE_HEADER_BYTES. */
struct stage_header {
	char magic[16];
	char boot_id[STAGE_BOOT_ID_BYTES];
	char uuid[40];
	uint32_t slot_count;
	uint32_t unused32;
	uint64_t next_place; /* see stages_had_last() */
	uint64_t unused;
};
_Static_assert(sizeof(struct stage_header) == 120, "header is shared");
#define STAGE_MAGIC "ckptfs stages 1"
#define STAGE_HEADER_BYTES 4096

/* "" when it is not known: then nothing that was left is believed. */
void stage_boot_id(char ret[STAGE_BOOT_ID_BYTES]);
/* Is it the table of a daemon of this boot, and of this store (uuid)? */
bool stage_header_is_ours(const struct stage_header *h,
			  const char boot_id[STAGE_BOOT_ID_BYTES],
			  const char *uuid);

/* Its name on the tmpfs. */
void stage_file_name(uint64_t number, char ret[24]);
/* Remove that file, sealed or not. */
void stage_unlink(struct stages *st, uint64_t number);
/* The flag of a file, as chattr(1) has it: append-only or not. */
int stage_set_sealed(int fd, bool on);
bool stage_is_sealed(int fd);

/* One reference, and no slot. NULL: out of memory. */
struct stage *stage_new(uint64_t ino, enum stage_kind kind);
/* A memory stage without bytes, with a slot. */
int stage_new_slot(struct stages *st, uint64_t ino, uid_t uid,
		   struct stage **ret_stage);
/*
 * Its bytes, allocated. -ENOSPC: there is no room for so many; `ask`: segments
 * were asked back, for the next time.
 */
int stage_make_memory(struct stages *st, struct stage *s, uint64_t size_bytes,
		      bool ask);

/* All but the slot's ino, which makes it count: see stage_show(). */
void stage_write_slot(struct stage *s);

#endif
