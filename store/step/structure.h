/*
 * structure.h - what a step of training consists of: which tensors are in
 * which files, of what type and shape.
 *
 * A step is a folder, or one file. What a folder has is looked for in its
 * files, and in those of the folders below it (mp_rank_00, actor, critic), but
 * for those that are steps themselves; where there is a .metadata, it says what
 * the .distcp files beside it have. Only headers are read. Where there is an
 * index of Hugging Face's (weight_map), its files and tensors must be there,
 * and a file must be what its name promises (structure_named.h).
 *
 * The signature is of files, names, types, shapes and lengths. It is not of the
 * order in a file, nor of the offsets: what is no tensor changes its length
 * from step to step, and moves all that follows it.
 *
 * Where the files come from is the caller's: a mount looks into its own store,
 * ckptctl at any folder.
 */
#ifndef STORE_STEP_STRUCTURE_H
#define STORE_STEP_STRUCTURE_H

#include "store/formats/chunks.h"
#include "store/formats/dcp.h"
#include "store/formats/tensors.h"
#include "store/step/closure.h"

#define STRUCTURE_TEXT_BYTES 33 /* a signature: 32 hexadecimal digits, NUL */
/* Files and folders of a step; what has more is none. */
#define STRUCTURE_FILES_MAX 65536
/* Folders below each other. */
#define STRUCTURE_DEPTH_MAX 4
/* A larger index is not looked into: 400,000 tensors have 40 MB. */
#define STRUCTURE_INDEX_BYTES_MAX (UINT64_C(48) << 20)

struct structure_source {
	void *self;
	/*
	 * Call fn for every file and folder in `below` ("": in the folder
	 * itself), in any order, until it returns other than 0. size_bytes:
	 * CLOSURE_SIZE_UNKNOWN where somebody writes it on another node.
	 */
	int (*list)(void *self, const char *below,
		    int (*fn)(void *arg, const char *name, bool folder,
			      uint64_t size_bytes),
		    void *arg);
	/*
	 * A file, by its name in the folder, "mp_rank_00/a" too. -EINPROGRESS:
	 * it is there, and its bytes are not, see STRUCTURE_ELSEWHERE.
	 */
	int (*open)(void *self, const char *name, struct cut_source *ret);
	void (*close)(void *self, struct cut_source *source);
	/* How many ranks its writer's job had; 0: not known. May be NULL. */
	uint32_t (*world)(void *self, const char *name);
	uint64_t metadata_bytes_max; /* of all .metadata together */
	size_t memory_bytes_max; /* of all tensors; 0: no limit */
	/* What this folder and others take together; NULL: no limit. */
	struct memory_budget *budget;
	/*
	 * Of a .metadata the tensors as they were before they were cut up, as
	 * compare.h wants them: each once, whole, with .metadata as its file,
	 * and without what Megatron adds to a name to tell pieces apart
	 * (/shard_0_8, .__tp_replica_1). The signature then says nothing.
	 */
	bool whole;
};

enum structure_fault {
	STRUCTURE_TORN, /* it is not what its format says */
	STRUCTURE_MISSING, /* what names it is there, and it is not */
	STRUCTURE_NOT_READ, /* too large, or an error kept from it */
	STRUCTURE_ELSEWHERE, /* another node has its bytes still */
};
#define STRUCTURE_ELSEWHERE_TEXT \
	"another node has its bytes, and they are not all there yet"

struct structure_error {
	enum structure_fault fault;
	char *file; /* owned */
	char what[512];
};

struct structure {
	const char *format;
	struct tensors tensors; /* by name, then place, then file */
	char **names; /* owned; of files, for the tensors */
	size_t name_count, name_capacity;
	struct structure_error *errors; /* owned; files that are damaged */
	size_t error_count, error_capacity;
	/*
	 * Files that are called like those of torch.save() or numpy, as
	 * anybody's may be, and begin like nothing that is known; owned, their
	 * names are not.
	 */
	const char **unexplained;
	size_t unexplained_count, unexplained_capacity;
	/* Files of a format for tensors, a .metadata too, that have none. */
	const char **bare;
	size_t bare_count, bare_capacity;
	struct dcp dcp; /* of the folder itself */
	bool has_dcp;
	struct dcp *nested; /* owned; of folders below it */
	size_t nested_count, nested_capacity;
	struct closure closure; /* of all that have a .metadata */
	uint32_t world; /* ranks of who wrote it; 0: not known */
	bool only_text; /* it has files, and none that could have a tensor */
	bool empty; /* it is a folder, and has no file, nor one below it */
	bool opaque; /* a file may have some, in a format that is not known */
	char signature[STRUCTURE_TEXT_BYTES];
};

/*
 * Look into a folder. A damaged file is one of the errors; a negative errno
 * is returned for what kept it from looking. structure_release() it in any
 * case.
 */
int structure_of_folder(struct structure *s, const struct structure_source *in);
/*
 * Look into one file, called `name`. beside: the folder that it is in, whose
 * .metadata gives the names of what a .distcp has; may be NULL.
 */
int structure_of_file(struct structure *s, const struct cut_source *file,
		      const char *name, const struct structure_source *beside);
void structure_release(struct structure *s);
/* A .metadata that was read for it is let go of, with its memory. */
void structure_release_dcp(struct structure *s, struct dcp *d);

/* One more error. -ENOMEM. */
int structure_add_fault(struct structure *s, enum structure_fault fault,
			const char *file, const char *what);
/* The file is torn. -ENOMEM. */
int structure_add_error(struct structure *s, const char *file,
			const char *what);

/* A copy of a file's name, which is the structure's. NULL: no memory. */
char *structure_keep_name(struct structure *s, const char *name);
/* Everything was added: put it in order, and sign it. -ENOMEM. */
int structure_finish(struct structure *s);

/* Was something not read, and may be there all the same? */
bool structure_is_partly_read(const struct structure *s);
/* Does it hold together: nothing damaged, and .metadata fits the files? */
bool structure_is_sound(const struct structure *s);

/*
 * Call fn for each tensor of both, with the one that is the same in the other:
 * of the same name and place, in the same file where there is such a one.
 * NULL: there is none. -ENOMEM.
 */
int structure_pair(const struct structure *a, const struct structure *b,
		   void (*fn)(void *arg, const struct tensor *a,
			      const struct tensor *b),
		   void *arg);

/* What is not the same about two of a pair. */
bool structure_same_type(const struct tensor *a, const struct tensor *b);
bool structure_same_shape(const struct tensor *a, const struct tensor *b);
bool structure_same_file(const struct tensor *a, const struct tensor *b);

#endif
