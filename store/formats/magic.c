/*
 * magic.c - see magic.h. A format is here when trainers meet it as a checkpoint
 * or as what a checkpoint is packed into; that a file is listed by others and
 * not by us is said, with what lists it.
 */
#include "store/formats/magic.h"

#include <string.h>

static const struct {
	size_t at;
	const char *bytes;
	size_t len;
	struct magic is;
} rows[] = {
#define ROW(at, bytes, format, note)          \
	{                                     \
		at, bytes, sizeof(bytes) - 1, \
		{                             \
			format, note          \
		}                             \
	}
	ROW(0, "\x89HDF\r\n\x1a\n", "hdf5", "HDF5: h5ls -r lists its datasets"),
	/* Behind a block of the user's own. */
	ROW(512, "\x89HDF\r\n\x1a\n", "hdf5",
	    "HDF5: h5ls -r lists its datasets"),
	ROW(0, "\x0c\xdb\x3a\x2a", "ocdbt",
	    "a manifest of OCDBT (orbax): tensorstore reads its directory"),
	ROW(0, "\x0c\xdb\x20\xde", "ocdbt",
	    "a node of OCDBT (orbax): tensorstore reads the directory of "
	    "manifest.ocdbt"),
	ROW(0, "GGUF", "gguf", "GGUF (llama.cpp): gguf-dump lists its tensors"),
	/* Before the pickle that it begins with: torch's own number. */
	ROW(0, "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19",
	    "torch_legacy",
	    "torch.save before torch 1.6, pickles without an archive: load it "
	    "and save it again"),
	ROW(0, "\x80\x02", "pickle", "a pickle: it is not read"),
	ROW(0, "\x80\x03", "pickle", "a pickle: it is not read"),
	ROW(0, "\x80\x04\x95", "pickle", "a pickle: it is not read"),
	ROW(0, "\x80\x05\x95", "pickle", "a pickle: it is not read"),
	ROW(257, "ustar", "tar", "a tar archive: tar -tvf lists it"),
	ROW(0, "\x1f\x8b", "gzip", "compressed: gzip -d, then look again"),
	ROW(0, "\x28\xb5\x2f\xfd", "zstd",
	    "compressed: zstd -d, then look again"),
	ROW(0, "\x04\x22\x4d\x18", "lz4",
	    "compressed: lz4 -d, then look again"),
	ROW(0, "\xfd\x37\x7a\x58\x5a", "xz",
	    "compressed: xz -d, then look again"),
	ROW(0, "BZh", "bzip2", "compressed: bzip2 -d, then look again"),
	ROW(0, "PAR1", "parquet", "Parquet: a table, no tensors"),
	ROW(0, "ARROW1", "arrow", "Arrow: a table, no tensors"),
	ROW(0, "SQLite format 3", "sqlite", "a database of SQLite"),
	ROW(0,
	    "\x7f"
	    "ELF",
	    "elf", "a program or a library"),
#undef ROW
};

const struct magic *magic_of(const void *bytes, size_t len)
{
	const char *p = bytes;

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
		if (rows[i].at <= len && rows[i].len <= len - rows[i].at &&
		    memcmp(p + rows[i].at, rows[i].bytes, rows[i].len) == 0)
			return &rows[i].is;
	return NULL;
}
