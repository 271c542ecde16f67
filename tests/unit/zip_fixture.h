/*
 * zip_fixture.h - write archives like torch.save, or like Python's zipfile.
 *
 * torch leaves the sizes in local headers 0 and puts a descriptor behind the
 * payload, pads so that payloads start at multiples of 64 bytes in the
 * archive, and always adds zip64 end records. Payloads are holes.
 */
#ifndef TESTS_UNIT_ZIP_FIXTURE_H
#define TESTS_UNIT_ZIP_FIXTURE_H

#include <stdio.h>

#include "tests/unit/cut_fixture.h"

enum zip_style {
	ZIP_TORCH,
	ZIP_PYTHON, /* sizes in local headers, no descriptors, no zip64 end */
};

struct zip_out {
	struct file *f;
	enum zip_style style;
	uint64_t base; /* offsets in the archive count from here */
	uint64_t entries;
	uint64_t member_at; /* payload of the last member, in the file */
	struct bytes dir;
};

static inline void zip_begin(struct zip_out *z, struct file *f,
			     enum zip_style style)
{
	memset(z, 0, sizeof(*z));
	z->f = f;
	z->style = style;
	z->base = f->size;
}

static inline uint32_t zip_u32(uint64_t v)
{
	return v < UINT32_MAX ? (uint32_t)v : UINT32_MAX;
}

/* Both kinds of headers, from the version on to the name's length. */
static inline void zip_put_common(struct bytes *b, const struct zip_out *z,
				  uint64_t size)
{
	bool torch = z->style == ZIP_TORCH;

	bytes_put_u16(b, torch ? 0 : 20);
	bytes_put_u16(b, torch ? 0x0808 : 0);
	bytes_put_u16(b, 0); /* stored */
	bytes_put_u32(b, 0); /* time and date */
	bytes_put_u32(b, 0x12345678); /* checksum */
	bytes_put_u32(b, zip_u32(size));
	bytes_put_u32(b, zip_u32(size));
}

static inline void zip_put_local(struct zip_out *z, const char *name,
				 uint64_t len, uint64_t local)
{
	bool torch = z->style == ZIP_TORCH;
	struct bytes extra = { 0 };
	struct bytes b = { 0 };
	uint64_t start = local + 30 + strlen(name);

	if (torch) {
		uint64_t pad = 64 - (start + 4) % 64;

		bytes_put(&extra, "FB", 2);
		bytes_put_u16(&extra, (uint16_t)pad);
		for (; pad > 0; pad--)
			bytes_put(&extra, "Z", 1);
	} else if (len >= UINT32_MAX) {
		bytes_put_u16(&extra, 1);
		bytes_put_u16(&extra, 16);
		bytes_put_u64(&extra, len);
		bytes_put_u64(&extra, len);
	}
	bytes_put(&b, "PK\3\4", 4);
	zip_put_common(&b, z, torch ? 0 : len);
	bytes_put_u16(&b, (uint16_t)strlen(name));
	bytes_put_u16(&b, (uint16_t)extra.len);
	bytes_put(&b, name, strlen(name));
	bytes_put(&b, extra.data, extra.len);
	file_put_bytes(z->f, &b);
	bytes_release(&b);
	bytes_release(&extra);
}

static inline void zip_put_descriptor(struct zip_out *z, uint64_t len)
{
	struct bytes b = { 0 };

	bytes_put(&b, "PK\7\10", 4);
	bytes_put_u32(&b, 0x12345678);
	if (len < UINT32_MAX) {
		bytes_put_u32(&b, (uint32_t)len);
		bytes_put_u32(&b, (uint32_t)len);
	} else {
		bytes_put_u64(&b, len);
		bytes_put_u64(&b, len);
	}
	file_put_bytes(z->f, &b);
	bytes_release(&b);
}

/* A directory entry that claims `len` bytes at `local` from the base. */
static inline void zip_put_entry(struct zip_out *z, const char *name,
				 uint64_t len, uint64_t local)
{
	struct bytes *d = &z->dir;
	struct bytes extra = { 0 };

	if (len >= UINT32_MAX) {
		bytes_put_u64(&extra, len);
		bytes_put_u64(&extra, len);
	}
	if (local >= UINT32_MAX)
		bytes_put_u64(&extra, local);

	bytes_put(d, "PK\1\2\0\0", 6);
	zip_put_common(d, z, len);
	bytes_put_u16(d, (uint16_t)strlen(name));
	/* An unknown extra field comes first: readers must pass over it. */
	bytes_put_u16(d, (uint16_t)(extra.len > 0 ? extra.len + 9 : 0));
	bytes_put_u16(d, 0); /* comment */
	bytes_put_u64(d, 0); /* disk, attributes */
	bytes_put_u32(d, zip_u32(local));
	bytes_put(d, name, strlen(name));
	if (extra.len > 0) {
		bytes_put(d, "XX\1\0x", 5);
		bytes_put_u16(d, 1);
		bytes_put_u16(d, (uint16_t)extra.len);
		bytes_put(d, extra.data, extra.len);
	}
	z->entries++;
	bytes_release(&extra);
}

/* Add a member; returns where in the file its bytes start. NULL: zeros. */
static inline uint64_t zip_add_data(struct zip_out *z, const char *name,
				    const void *data, uint64_t len)
{
	uint64_t local = z->f->size - z->base;

	zip_put_local(z, name, len, local);
	z->member_at = z->f->size;
	if (data)
		file_put(z->f, data, len);
	else
		file_hole(z->f, len);
	if (z->style == ZIP_TORCH)
		zip_put_descriptor(z, len);
	zip_put_entry(z, name, len, local);
	return z->member_at;
}

static inline uint64_t zip_add(struct zip_out *z, const char *name,
			       uint64_t len)
{
	return zip_add_data(z, name, NULL, len);
}

static inline void zip_put_end64(struct zip_out *z, uint64_t dir_off)
{
	struct bytes b = { 0 };

	bytes_put(&b, "PK\6\6", 4);
	bytes_put_u64(&b, 44);
	bytes_put_u32(&b, 0); /* versions */
	bytes_put_u64(&b, 0); /* disks */
	bytes_put_u64(&b, z->entries);
	bytes_put_u64(&b, z->entries);
	bytes_put_u64(&b, z->dir.len);
	bytes_put_u64(&b, dir_off);
	bytes_put(&b, "PK\6\7\0\0\0\0", 8);
	bytes_put_u64(&b, dir_off + z->dir.len);
	bytes_put_u32(&b, 1);
	file_put_bytes(z->f, &b);
	bytes_release(&b);
}

static inline void zip_end(struct zip_out *z, const char *comment)
{
	uint64_t dir_off = z->f->size - z->base;
	uint16_t entries =
		z->entries < UINT16_MAX ? (uint16_t)z->entries : UINT16_MAX;
	struct bytes b = { 0 };

	file_put_bytes(z->f, &z->dir);
	if (z->style == ZIP_TORCH || dir_off >= UINT32_MAX ||
	    z->entries >= UINT16_MAX)
		zip_put_end64(z, dir_off);
	bytes_put(&b, "PK\5\6\0\0\0\0", 8);
	bytes_put_u16(&b, entries);
	bytes_put_u16(&b, entries);
	bytes_put_u32(&b, zip_u32(z->dir.len));
	bytes_put_u32(&b, zip_u32(dir_off));
	bytes_put_u16(&b, (uint16_t)strlen(comment));
	bytes_put(&b, comment, strlen(comment));
	file_put_bytes(z->f, &b);
	bytes_release(&b);
	bytes_release(&z->dir);
}

/* What torch.save(tensor) writes; returns where its bytes are. */
static inline uint64_t put_item(struct file *f, enum zip_style style,
				uint64_t tensor_bytes)
{
	struct zip_out z;
	uint64_t at;

	zip_begin(&z, f, style);
	zip_add(&z, "archive/data.pkl", 149);
	zip_add(&z, "archive/byteorder", 6);
	at = zip_add(&z, "archive/data/0", tensor_bytes);
	zip_add(&z, "archive/version", 2);
	zip_add(&z, "archive/.data/serialization_id", 40);
	zip_end(&z, "");
	return at;
}

#endif
