/*
 * ckpt_gpu.h - saving tensors into a ckptfs mount, and loading them from it,
 * through memory that both sides share.
 *
 * A save is laid out in a segment: memory of the mount that this process has
 * mapped, and pinned for its GPUs, once. When the last byte is in it the mount
 * makes the segment the file: nothing is copied again, and what lies there is
 * an ordinary safetensors file. The next save with the same structure finds
 * its segments where they are; there are two for each structure, so that one
 * save can be filled while the one before is made durable.
 *
 *     ckpt_begin   ckpt_add ...   ckpt_commit          ckpt_wait
 *     |            |              |                    |
 *     names, shapes and pointers  the bytes are        ... and would
 *     are noted, none is read     copied, the file     survive a
 *                                 is there             power cut
 *
 * The CUDA driver is opened when the program runs. Without one, and for
 * tensors in host memory, the same calls work on host memory.
 *
 * Errors:  0 or a negative errno; ret_* are written on success only.
 *          ckpt_last_error() has the sentence for the user.
 * Threads: any thread may call anything here; one ckpt_save, ckpt_file or
 *          ckpt_stash belongs to one thread at a time.
 * Forks:   a child must not use what its parent made: -ECHILD. It may open its
 *          own. The child does not have the parent's segments mapped.
 * Units:   bytes, unless a name says otherwise.
 */
#ifndef GPU_CKPT_GPU_H
#define GPU_CKPT_GPU_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define CKPT_API __attribute__((visibility("default")))
#else
#define CKPT_API
#endif

/* --- The process's side of it --------------------------------------------
 */

struct ckpt;

/* NO_GPU is the handle's; the others are for its saves: ckpt_begin_with(). */
enum ckpt_flags {
	/* Where there is no ckptfs: write the file there all the same. */
	CKPT_PLAIN = 1,
	/* Do not look for a CUDA driver: every pointer is host memory. */
	CKPT_NO_GPU = 2,
	/*
	 * Hash tensors on the device first, and do not copy what the segment
	 * holds already. Trusts a 128-bit hash; see hash.h.
	 */
	CKPT_SKIP_UNCHANGED = 4,
	/* Fail, do not write through the file, when there is no segment. */
	CKPT_SEGMENT_ONLY = 8,
};

struct ckpt_options {
	unsigned flags; /* enum ckpt_flags */
	unsigned copy_threads; /* for host memory; 0: up to 4 */
	uint64_t buffer_bytes; /* one pinned transfer buffer; 0: 32 MiB */
};

/* options may be NULL. The caller owns *ret_ckpt. Nothing is connected yet. */
CKPT_API int ckpt_open(const struct ckpt_options *options,
		       struct ckpt **ret_ckpt);
/*
 * Gives segments, pinned memory and connections back. Saves and files must
 * have been freed; what was committed becomes durable all the same.
 */
CKPT_API void ckpt_close(struct ckpt *c);

/* Of the last call of this thread that failed; names the object. */
CKPT_API const char *ckpt_last_error(void);

/*
 * "CUDA driver 13.0, 1 device" or why there is none. The library's. It opens
 * the driver, as the first tensor on a device does; without either a driver
 * that the program has not started itself is left alone.
 */
CKPT_API const char *ckpt_gpu_state(struct ckpt *c);

struct ckpt_counters {
	uint64_t saves; /* committed */
	uint64_t d2h_bytes; /* copied from devices */
	uint64_t h2d_bytes; /* copied to devices */
	uint64_t host_bytes; /* to host memory, from there or from a file */
	uint64_t skipped_bytes; /* known to be in the segment already */
	uint64_t segments_new; /* got from the mount */
	uint64_t segments_reused;
	uint64_t pinned_bytes; /* registered with the driver now */
	uint64_t pin_failures; /* went on unpinned */
	uint64_t plain_saves; /* written through the file */
	uint64_t primed_again; /* saves carried over a restart of the mount */
	uint64_t released; /* segments given back because memory was wanted */
	uint64_t buffered_bytes; /* of h2d_bytes: by way of a pinned buffer */
};
CKPT_API void ckpt_get_counters(struct ckpt *c, struct ckpt_counters *ret);

/* --- Saving ----------------------------------------------------------------
 */

struct ckpt_save;

#define CKPT_RANK_MAX 64
#define CKPT_DEVICE_HOST (-1)
/* Ask the driver where the pointer leads. */
#define CKPT_DEVICE_ANY (-2)

struct ckpt_tensor {
	const char *name; /* UTF-8, at most 4096 bytes, not "__metadata__" */
	const char *dtype; /* as safetensors writes it: "F32", "BF16", ... */
	const uint64_t *shape; /* of `rank` numbers; 0 is legal */
	unsigned rank; /* 0: a scalar */
	/*
	 * In elements, as shape; NULL: contiguous, the last dimension densest.
	 * Others are gathered: correct, but slower.
	 */
	const int64_t *stride;
	const void *data; /* borrowed until ckpt_commit() has returned */
	/*
	 * An ordinal, CKPT_DEVICE_HOST or CKPT_DEVICE_ANY. Managed memory, and
	 * the host's that is mapped for devices, are what is said here.
	 */
	int device;
	/*
	 * CUstream whose work makes the data, NULL: the default one. What it
	 * has when the save is started is waited for, nothing that comes later.
	 */
	void *stream;
};

/*
 * Begin a save that will be the file `path`. Nothing appears there before
 * ckpt_commit(). -ENOTTY: not in a ckptfs mount (and CKPT_PLAIN is not set).
 */
CKPT_API int ckpt_begin(struct ckpt *c, const char *path,
			struct ckpt_save **ret_save);
/*
 * The same with flags of its own in place of the handle's, so that saves that
 * differ in them have their segments together. -EINVAL: CKPT_NO_GPU.
 */
CKPT_API int ckpt_begin_with(struct ckpt *c, const char *path, unsigned flags,
			     struct ckpt_save **ret_save);
/* A string for the file's __metadata__; copied. -EEXIST: it has that key. */
CKPT_API int ckpt_metadata(struct ckpt_save *s, const char *key,
			   const char *value);
/*
 * Note a tensor; all but t->data is copied. -EEXIST: that name was added.
 * -EINVAL: unknown dtype, or the pointer is not where t->device says.
 * -EOVERFLOW: more bytes than a file can have. The save stays usable.
 */
CKPT_API int ckpt_add(struct ckpt_save *s, const struct ckpt_tensor *t);
/*
 * The same for a file of any format: the tensor lies at this offset, and what
 * nobody places is zeros. What a file is made of besides tensors is host memory
 * of dtype U8. Contiguous tensors only; not together with ckpt_add() or
 * ckpt_metadata(). Two in one place are an error of ckpt_commit(), -EINVAL.
 */
CKPT_API int ckpt_place(struct ckpt_save *s, const struct ckpt_tensor *t,
			uint64_t offset);
/*
 * Copy, and make the file, in the background: the data must stay as it is
 * until ckpt_commit() has returned or ckpt_is_committed() said 1.
 */
CKPT_API int ckpt_start(struct ckpt_save *s);
/* 1: ckpt_commit() would not wait, whether it went well or not. */
CKPT_API int ckpt_is_committed(struct ckpt_save *s);
/*
 * Returns when everything is copied and the file is there: data may change.
 * Replaces a file of that name; who has it open keeps what he had. On an
 * error the name means what it meant before, and the save can only be freed.
 * But for -EUCLEAN: the file is there, and is refused as a step (ckptfs(8)).
 * -ENOSPC, -EDQUOT: the stage, or the user's part of it, is full, and the
 * disk as well. Waits for an earlier save when both segments are in use.
 */
CKPT_API int ckpt_commit(struct ckpt_save *s);
/*
 * Why a file that was committed lies in no segment, in a sentence that names
 * it; the save's. NULL: it lies in one, is empty, or is not committed.
 */
CKPT_API const char *ckpt_plain_reason(struct ckpt_save *s);
/*
 * Returns when the file is durable. The error that keeps it from being so is
 * returned, and stays with the file: fsync(2) and open(2) tell it too.
 * -ENOENT: it was deleted or replaced before.
 */
CKPT_API int ckpt_wait(struct ckpt_save *s);
/*
 * s may be NULL. What was started is brought to its end: the file appears.
 * What was neither started nor committed leaves nothing.
 */
CKPT_API void ckpt_save_free(struct ckpt_save *s);

/* --- Loading ---------------------------------------------------------------
 *
 * An open file keeps its version alive: it may be replaced or deleted, and is
 * read all the same. What is still in memory is read from there.
 */

struct ckpt_file;

struct ckpt_entry {
	const char *name; /* the file's, like everything here */
	const char *dtype;
	const uint64_t *shape;
	unsigned rank;
	uint64_t offset; /* in the file */
	uint64_t bytes;
};

/*
 * Any safetensors file, in a mount or not. -EBADMSG: it is none (the message
 * says what is wrong with it). The caller owns *ret_file.
 */
CKPT_API int ckpt_file_open(struct ckpt *c, const char *path,
			    struct ckpt_file **ret_file);
/*
 * Any file, whatever is in it: it has no entries. For ckpt_file_map(),
 * ckpt_file_pin() and ckpt_file_read_ranges().
 */
CKPT_API int ckpt_file_open_any(struct ckpt *c, const char *path,
				struct ckpt_file **ret_file);
CKPT_API void ckpt_file_close(struct ckpt_file *f);

/* Entries are in the order of their offsets. NULL: there is no such one. */
CKPT_API size_t ckpt_file_count(const struct ckpt_file *f);
CKPT_API const struct ckpt_entry *ckpt_file_entry(const struct ckpt_file *f,
						  size_t index);
CKPT_API const struct ckpt_entry *ckpt_file_find(const struct ckpt_file *f,
						 const char *name);
/* The file's __metadata__: index-th key and value; -ENOENT after the last. */
CKPT_API int ckpt_file_metadata(const struct ckpt_file *f, size_t index,
				const char **ret_key, const char **ret_value);
/*
 * All of the file, mapped for reading (length in *ret_len), until
 * ckpt_file_close(). NULL: it cannot be mapped; reading works all the same.
 */
CKPT_API const void *ckpt_file_map(const struct ckpt_file *f,
				   uint64_t *ret_len);

/*
 * The same as the caller's own, to be given back by munmap(2), before or after
 * ckpt_file_close(): it keeps the version. What is written there is seen there
 * alone. Memory that is touched when the file was cut short meanwhile is gone
 * (SIGBUS). -EOPNOTSUPP: it cannot be mapped.
 */
CKPT_API int ckpt_file_map_private(const struct ckpt_file *f,
				   void **ret_memory, uint64_t *ret_len);

/*
 * Pin the file's own memory, until ckpt_file_close(), so that reads to devices
 * are one copy from there and none on the host. It takes longer than one read
 * by way of buffers, and is for who reads the bytes more than once. -ENODEV:
 * there is no device. Any other error, as when the driver cannot pin what may
 * only be read, costs the buffers and nothing else. What ckpt_file_map() gave is
 * pinned from here on; a child of fork may still read it, and is given none.
 */
CKPT_API int ckpt_file_pin(struct ckpt_file *f);

struct ckpt_target {
	const struct ckpt_entry *entry;
	void *data; /* entry->bytes of room */
	int device; /* where data is: an ordinal or CKPT_DEVICE_HOST */
};
/*
 * Read the entries into memory, best many at once: to a device by way of two
 * pinned buffers, or from the file's own memory when that is pinned; one copy
 * over the bus for each byte, on streams of our own.
 * Returns when all of it is there. What is queued for the targets' memory on
 * other streams must be over. -ESTALE: the file was cut short meanwhile.
 */
CKPT_API int ckpt_file_read(struct ckpt_file *f,
			    const struct ckpt_target *targets, size_t count);

struct ckpt_range { /* of the file's bytes */
	uint64_t offset, bytes;
	void *data; /* bytes of room */
	int device; /* where data is: an ordinal or CKPT_DEVICE_HOST */
};
/* The same of ranges. -EINVAL also: one does not lie in the file. */
CKPT_API int ckpt_file_read_ranges(struct ckpt_file *f,
				   const struct ckpt_range *ranges,
				   size_t count);

/* --- Buckets ---------------------------------------------------------------
 *
 * How tensors that go to others are packed into transfer buffers: each starts
 * at a multiple of 256 bytes. The rules are verl's and nvidia-resiliency-ext's
 * (vectors in tests/unit/test_gpu_pack.c).
 */

#define CKPT_BUCKET_ALIGN 256u

struct ckpt_bucket {
	unsigned rank; /* who sends it */
	uint64_t bytes; /* sum of the aligned sizes */
	size_t first, count; /* its items in `order` */
};
/*
 * Item i belongs to ranks[i % rank_count] of the sorted ranks; each rank packs
 * its items in order. A bucket holds max(device_buffer_bytes, the largest
 * aligned item): *ret_bucket_bytes. buckets has room for `count`, order for
 * `count` indices; *ret_buckets says how many there are, by rank, then order.
 */
CKPT_API int ckpt_pack_buckets(const uint64_t *sizes, size_t count,
			       const unsigned *ranks, size_t rank_count,
			       uint64_t device_buffer_bytes,
			       struct ckpt_bucket *buckets, size_t *order,
			       size_t *ret_buckets, uint64_t *ret_bucket_bytes);
/*
 * Split items over `bins` files: with one bin all go there in order; else
 * objects (is_object[i]) go round in turn, then tensors, largest first, to the
 * bin with the fewest bytes. bin_of has room for `count`, place_of too: the
 * item's place in its bin.
 */
CKPT_API int ckpt_split_items(const uint64_t *sizes, const uint8_t *is_object,
			      size_t count, size_t bins, size_t *bin_of,
			      size_t *place_of);

/* --- Paged stash -----------------------------------------------------------
 *
 * Rows whose number only the device knows, packed into pages of fixed size and
 * taken out again later: what MoE layers keep from forward to backward. After
 * Megatron-LM's paged stash (core/transformer/moe/paged_stash.py): free pages
 * are a ring with counters that only grow; an item gets all its pages in one
 * tier or none; one that fits nowhere sets a flag that stays until the reset.
 * Nothing between pack and unpack waits for the device, so both can be
 * captured in a graph. All calls on one stash go to one stream.
 */

struct ckpt_stash;

struct ckpt_stash_type { /* rows of one kind: a ring of pages of their own */
	uint32_t element_bytes; /* 1, 2, 4 or 8 */
	uint32_t row_elements;
	uint64_t device_rows; /* room for so many, rounded up to pages */
	uint64_t host_rows; /* room in pinned host memory, 0: none */
};

struct ckpt_stash_options {
	int device; /* CKPT_DEVICE_HOST: everything in host memory */
	uint32_t page_rows; /* 0: 64 */
	const struct ckpt_stash_type *types;
	size_t type_count; /* at most 64; no two alike */
};

/* What was packed: needed to unpack it. Reusable once it is unpacked. */
struct ckpt_stash_item;

struct ckpt_stash_state { /* of one type; [0] device tier, [1] host tier */
	uint64_t head[2], tail[2], capacity[2]; /* pages; free: tail - head */
	uint32_t overflow; /* sticky until the reset */
	uint32_t host_spill; /* something went to the host tier */
};

CKPT_API int ckpt_stash_new(struct ckpt *c,
			    const struct ckpt_stash_options *options,
			    struct ckpt_stash **ret_stash);
/* Every stream that was used must be idle. s may be NULL. */
CKPT_API void ckpt_stash_free(struct ckpt_stash *s);
/* For at most max_rows rows of one type. Freed with ckpt_stash_item_free(). */
CKPT_API int ckpt_stash_item_new(struct ckpt_stash *s, uint32_t element_bytes,
				 uint32_t row_elements, uint64_t max_rows,
				 struct ckpt_stash_item **ret_item);
CKPT_API void ckpt_stash_item_free(struct ckpt_stash_item *i);
/*
 * Enqueue: the first *rows of `data` go into the stash. rows is a device
 * pointer to one int64 (host: a host pointer), read when the work is done;
 * more than the item's max_rows count as an overflow.
 */
CKPT_API int ckpt_stash_pack(struct ckpt_stash_item *i, const void *data,
			     const int64_t *rows, void *stream);
/* Enqueue: what was packed comes back to `data`; its pages are free again. */
CKPT_API int ckpt_stash_unpack(struct ckpt_stash_item *i, void *data,
			       void *stream);
/* Enqueue: everything is free, no flag is set. Items must be packed anew. */
CKPT_API int ckpt_stash_reset(struct ckpt_stash *s, void *stream);
/* Waits for the stream. For tests, and once for each step. */
CKPT_API int ckpt_stash_get_state(struct ckpt_stash *s, uint32_t element_bytes,
				  uint32_t row_elements, void *stream,
				  struct ckpt_stash_state *ret);
/*
 * Did anything overflow, in any type? Enqueues a copy of one uint32 to `flag`
 * (pinned host memory of the caller) and does not wait.
 */
CKPT_API int ckpt_stash_overflowed(struct ckpt_stash *s, uint32_t *flag,
				   void *stream);

#ifdef __cplusplus
}
#endif

#endif
