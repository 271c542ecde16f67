/*
 * check.c - see check.h. The order of the parts, the settings and counters
 * (M, S), and what the parts use to read records and to report.
 */
#include "store/check/check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/scope.h"
#include "store/check/check_work.h"

#define KNOWN_KINDS "ADEFHIKLMOPSUWX"

static int count_record(void *count, struct kv_slice key, struct kv_slice value)
{
	(void)key;
	(void)value;
	(*(unsigned long long *)count)++;
	return 0;
}

static int check_unknown_kind(struct check *c, uint8_t kind)
{
	unsigned long long count = 0;
	int rc =
		records_each(c->kv, key_kind((char)kind), count_record, &count);
	char object[32];

	if (rc < 0)
		return check_database_failed(c, rc);
	(void)snprintf(object, sizeof(object), "records of kind 0x%02x", kind);
	if (count > 0)
		check_report(c, "kind", object,
			     "no such kind is known, but there are %llu; they "
			     "are damaged or from another version of ckptfs",
			     count);
	return 0;
}

static int check_kinds(struct check *c)
{
	int rc = 0;

	for (unsigned kind = 0; rc == 0 && kind < 256; kind++)
		if (kind == 0 || !strchr(KNOWN_KINDS, (int)kind))
			rc = check_unknown_kind(c, (uint8_t)kind);
	return rc;
}

/* Settings and counters. */

static int check_setting(struct check *c, const struct check_record *r)
{
	uint64_t count; /* what it says is compared when all was counted */
	const struct {
		const char *name;
		uint64_t *number;
	} known[] = {
		{ META_NEXT_INO, &c->next_ino },
		{ META_NEXT_IMAGE, &c->next_image },
		{ META_UNFINISHED, &c->unfinished_from },
		{ META_FILES, &count },
		{ META_LOGICAL, &count },
		{ META_PHYSICAL, &count },
		{ META_CHUNKS, &count },
		{ META_SHARED, &count },
		{ META_IMAGES, &count },
	};
	char name[STORE_NAME_MAX + 1] = "";

	if (r->key_len - 1 <= STORE_NAME_MAX)
		memcpy(name, r->key + 1, r->key_len - 1);
	if (strcmp(name, META_SECRET) == 0) {
		if (r->value_len != sizeof(c->secret))
			return check_report_record(c, r);
		memcpy(c->secret, r->value, r->value_len);
		c->secret_known = true;
		return 0;
	}
	if (strcmp(name, META_NEXT_PLACE) == 0) {
		if (u64_decode(r->value, r->value_len, &c->next_place) < 0)
			c->next_place = UINT64_MAX;
		return 0;
	}
	for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
		if (strcmp(name, known[i].name) == 0)
			return u64_decode(r->value, r->value_len,
					  known[i].number) < 0
				       ? check_report_record(c, r)
				       : 0;
	if (strncmp(name, META_OF_SHARED, strlen(META_OF_SHARED)) == 0)
		return 0; /* store/shared/ knows them */
	check_remark(c, "setting", "settings",
		     "a setting '%s' is not known to this version", name);
	return 0;
}

static int check_series(struct check *c, const struct check_record *r)
{
	struct series_rec s;

	if (r->key_len != 9 || series_decode(r->value, r->value_len, &s) < 0)
		return check_report_record(c, r);
	return 0;
}

static int check_settings(struct check *c)
{
	int rc = check_each(c, 'M', "settings", check_setting);

	if (rc == 0)
		rc = check_each(c, 'S', "settings", check_series);
	if (rc < 0)
		return rc;
	if (!c->secret_known)
		check_report_text(c, "secret", "settings",
				  "the secret of this store's hashes is gone, "
				  "so its bytes cannot be verified; copy the "
				  "files to a new store");
	return 0;
}

static int check_counter(struct check *c, const char *name, uint64_t counted)
{
	SCOPED(scope_free) void *value = NULL;
	uint64_t number = 0;
	size_t len;
	int rc = record_load(c->kv, key_meta(name), &value, &len);

	if (rc < 0 && rc != -ENOENT)
		return check_database_failed(c, rc);
	/* One that cannot be read was reported with the settings. */
	if (rc == 0 && u64_decode(value, len, &number) < 0)
		return 0;
	if (number != counted)
		check_report_text(c, "counter", name,
				  "the counter %s says %llu, but there are "
				  "%llu; no data is affected, but 'ckptctl "
				  "status MOUNTPOINT' and df are off",
				  name, (unsigned long long)number,
				  (unsigned long long)counted);
	return 0;
}

static int check_counters(struct check *c)
{
	const struct check_result *r = c->result;
	const struct {
		const char *name;
		uint64_t counted;
	} counters[] = {
		{ META_FILES, r->files },
		{ META_LOGICAL, r->logical_bytes },
		{ META_PHYSICAL, r->physical_bytes },
		{ META_CHUNKS, r->chunks },
		{ META_SHARED, r->shared_bytes },
		{ META_IMAGES, c->image_records },
	};
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < sizeof(counters) / sizeof(*counters);
	     i++)
		rc = check_counter(c, counters[i].name, counters[i].counted);
	return rc;
}

/* What is newer than all that there is has to have a greater number. */
static int check_next_place(struct check *c)
{
	if (c->next_place > PLACE_MAX)
		check_report_text(c, "next-place", "settings",
				  "the setting " META_NEXT_PLACE " is damaged, "
				  "so this store cannot be mounted; run "
				  "'ckptctl rebuild', which writes it anew");
	else if (c->next_place <= c->result->greatest_number)
		check_report_text(
			c, "next-place", "settings",
			"the setting " META_NEXT_PLACE " says %llu, "
			"but %llu was given already, so that what is "
			"new may be taken for older; run 'ckptctl "
			"rebuild', which writes it anew",
			(unsigned long long)c->next_place,
			(unsigned long long)c->result->greatest_number);
	return 0;
}

static int check_all(struct check *c)
{
	static int (*const parts[])(struct check *) = {
		check_kinds,      check_settings, check_names,
		check_content,    check_staged,   check_counters,
		check_next_place, check_digests,  check_scrub,
		check_mend,       check_zeros,    check_name_damage,
	};
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < sizeof(parts) / sizeof(*parts); i++)
		rc = parts[i](c);
	return rc;
}

int check_store(struct kv *kv, int images_dirfd,
		const struct check_options *options, struct check_result *ret)
{
	struct check c = {
		.kv = kv,
		.images_dirfd = images_dirfd,
		.options = options,
		.result = ret,
		.unfinished_from = UINT64_MAX,
		.next_place = PLACES_OF_A_MOUNT,
	};
	int rc;

	memset(ret, 0, sizeof(*ret));
	lock_init(&c.deciding, LOCK_RECLAIM_DECIDING);
	rc = check_all(&c);
	lock_destroy(&c.deciding);
	free(c.inodes);
	free(c.images);
	free(c.chunks);
	free(c.damage);
	if (rc < 0 && !c.database_failed)
		return rc;
	return ret->problems > 0 ? 1 : 0;
}
