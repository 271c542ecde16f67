/*
 * structure_named.c - names that one framework alone gives, and numbers in
 * names that count a set. A set is found by sorting its members, so a step of
 * many thousand files costs no more than that.
 */
#include "store/step/structure_named.h"

#include <ctype.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/scope.h"
#include "store/base/text.h"
#include "store/base/vec.h"

#define COUNT(a) (sizeof(a) / sizeof(*(a)))
/* A larger number in a name counts no files. */
#define SET_MAX (UINT32_C(1) << 20)
/* Others than Hugging Face's libraries write other ones. */
#define SHARD_DIGITS 5

/* --- what a file is ------------------------------------------------------- */

/* What torch.save() alone writes: DeepSpeed's, Megatron's, HF's, verl's, ... */
static const char *const torch_names[] = {
	"*[_-]model_states.pt",
	"*_optim_states.pt",
	"model_optim_rng.pt",
	"distrib_optim.pt",
	"common.pt",
	"*_world_size_[0-9]*_rank_[0-9]*.pt",
	"optimizer.pt",
	"scheduler.pt",
	"scaler.pt",
	"rng_state.pth",
	"rng_state_[0-9]*.pth",
	"consolidated.[0-9]*.pth",
	"pytorch_model*.bin",
	"diffusion_pytorch_model*.bin",
	"adapter_model.bin",
	"training_args.bin",
	"optimizer.bin",
	"scheduler.bin",
	"random_states_[0-9]*.pkl",
	"*epoch=[0-9]*step=[0-9]*.ckpt",
	"last.ckpt",
	"last-v[0-9]*.ckpt",
};

/* What most often has tensors, torch.save()'s or numpy's; or is another's. */
static const char *const tensor_suffixes[] = { ".pt",   ".pth", ".pth.tar",
					       ".ckpt", ".bin", ".npy",
					       ".npz" };

/* What Hugging Face's libraries write, and cannot do without: an object. */
static const char *const json_names[] = {
	"config.json",         "generation_config.json", "trainer_state.json",
	"adapter_config.json", "tokenizer_config.json",
};
/* Spaces and newlines at its end that are passed over. */
#define JSON_TAIL_BYTES 64u

static bool is_json_name(const char *name)
{
	for (size_t i = 0; i < COUNT(json_names); i++)
		if (strcmp(json_names[i], name) == 0)
			return true;
	return false;
}

static bool is_torch_name(const char *name)
{
	for (size_t i = 0; i < COUNT(torch_names); i++)
		if (fnmatch(torch_names[i], name, 0) == 0)
			return true;
	return false;
}

static bool has_tensor_suffix(const char *name)
{
	for (size_t i = 0; i < COUNT(tensor_suffixes); i++)
		if (text_ends_in(name, tensor_suffixes[i]))
			return true;
	return false;
}

static const char *last_part(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

/* A pickle of protocol 2 to 5; a short one has no frame. */
static int begins_as_pickle(const struct cut_source *file, bool *ret)
{
	uint8_t head[2] = { 0 };
	int rc = file->size_bytes < sizeof(head)
			 ? 0
			 : file->read(file->self, head, sizeof(head), 0);

	*ret = head[0] == 0x80 && head[1] >= 2 && head[1] <= 5;
	return rc;
}

/* Is it there from its first brace to its last? What lies between may be odd.
 */
static int check_json(struct structure *s, const struct cut_source *file,
		      const char *path)
{
	char first = 0, tail[JSON_TAIL_BYTES];
	size_t len = file->size_bytes < sizeof(tail) ? (size_t)file->size_bytes
						     : sizeof(tail);
	int rc = len > 0 ? file->read(file->self, &first, 1, 0) : 0;

	if (rc == 0 && len > 0)
		rc = file->read(file->self, tail, len, file->size_bytes - len);
	if (rc < 0)
		return rc;
	while (len > 0 && isspace((unsigned char)tail[len - 1]))
		len--;
	if (file->size_bytes == 0)
		return structure_add_error(s, path, "it is empty");
	/* Spaces and a mark of the order of bytes may come first. */
	if (!first || !strchr("{[ \t\r\n\xef", first))
		return structure_add_error(s, path,
					   "it does not begin like JSON");
	return first == '{' && (len == 0 || tail[len - 1] != '}')
		       ? structure_add_error(s, path,
					     "it has no end: it was cut off")
		       : 0;
}

int structure_check_named(struct structure *s, const struct cut_source *file,
			  const char *format, const char *path)
{
	const char *name = last_part(path);
	bool distcp = dcp_file_rank(name) != DCP_NONE;
	bool pickle = false;
	int rc;

	if (is_json_name(name))
		return check_json(s, file, path);
	/* A rank that had nothing to write leaves an empty .distcp. */
	if (strcmp(format, "plain") != 0 || (distcp && file->size_bytes == 0) ||
	    (!distcp && !is_torch_name(name) && !has_tensor_suffix(name)))
		return 0;
	rc = begins_as_pickle(file, &pickle);
	if (rc < 0 || (pickle && !distcp))
		return rc;
	if (distcp || is_torch_name(name))
		return structure_add_error(
			s, path,
			file->size_bytes == 0
				? "it is empty"
				: "it is called like a file of torch.save(), "
				  "and does not begin like one");
	rc = vec_grow(&s->unexplained, s->unexplained_count,
		      &s->unexplained_capacity, sizeof(*s->unexplained));
	if (rc == 0)
		s->unexplained[s->unexplained_count++] = path;
	return rc;
}

/* --- which others belong to it -------------------------------------------- */

enum set_kind { SET_SHARDS, SET_RANKS };

struct member {
	enum set_kind kind;
	uint32_t in; /* the number of its folder */
	uint32_t count; /* of its set, as its name has it */
	uint32_t at; /* its own number */
	const char
		*name; /* borrowed; its first bytes and its end are the set's */
	size_t prefix_len, digits;
};

struct members {
	struct member *all; /* owned */
	size_t count, capacity;
};

static void members_release(struct members *m)
{
	free(m->all);
}

/* The digits at p as a number; 0 digits: there are none, or too many. */
static uint32_t number_at(const char *p, size_t *ret_digits)
{
	uint32_t v = 0;
	size_t n = 0;

	while (isdigit((unsigned char)p[n]) && n < 9)
		v = v * 10 + (uint32_t)(p[n++] - '0');
	*ret_digits = isdigit((unsigned char)p[n]) ? 0 : n;
	return v;
}

/* PREFIXmodel-00001-of-00003.safetensors; the prefix has no digits. */
static bool is_shard(const char *name, struct member *ret)
{
	const char *at = strstr(name, "-of-");
	size_t n;

	if (!at || (!text_ends_in(name, ".safetensors") &&
		    !text_ends_in(name, ".bin")))
		return false;
	ret->count = number_at(at + 4, &n);
	if (n != SHARD_DIGITS || at[4 + n] != '.' || strchr(at + 5 + n, '.'))
		return false;
	ret->prefix_len = strcspn(name, "0123456789");
	ret->at = number_at(name + ret->prefix_len, &ret->digits);
	if (ret->digits != SHARD_DIGITS ||
	    name + ret->prefix_len + ret->digits != at || ret->prefix_len < 6 ||
	    memcmp(name + ret->prefix_len - 6, "model-", 6) != 0)
		return false;
	ret->kind = SET_SHARDS;
	return true;
}

/* model_world_size_4_rank_0.pt */
static bool is_rank(const char *name, struct member *ret)
{
	static const char world[] = "_world_size_", rank[] = "_rank_";
	const char *at = strstr(name, world);
	size_t n;

	if (!at || at == name)
		return false;
	ret->prefix_len = (size_t)(at - name);
	at += strlen(world);
	ret->count = number_at(at, &n);
	if (n == 0 || strncmp(at + n, rank, strlen(rank)) != 0)
		return false;
	at += n + strlen(rank);
	ret->at = number_at(at, &ret->digits);
	ret->kind = SET_RANKS;
	return ret->digits > 0 && strcmp(at + ret->digits, ".pt") == 0;
}

/* Of ranks the world first, then what they have; of shards as they are named.
 */
static int compare_sets(const struct member *x, const struct member *y)
{
	size_t n =
		x->prefix_len < y->prefix_len ? x->prefix_len : y->prefix_len;
	int c;

	if (x->kind != y->kind || x->in != y->in)
		return x->kind != y->kind ? (x->kind > y->kind) * 2 - 1
					  : (x->in > y->in) * 2 - 1;
	if (x->count != y->count)
		return x->count < y->count ? -1 : 1;
	c = memcmp(x->name, y->name, n);
	if (c == 0 && x->prefix_len != y->prefix_len)
		c = x->prefix_len < y->prefix_len ? -1 : 1;
	return c || x->kind == SET_RANKS
		       ? c
		       : strcmp(strrchr(x->name, '.'), strrchr(y->name, '.'));
}

static int compare_members(const void *a, const void *b)
{
	const struct member *x = a, *y = b;
	int c = compare_sets(x, y);

	return c ? c : (x->at > y->at) - (x->at < y->at);
}

static int find_members(const struct tree *t, struct members *ret)
{
	for (size_t i = 0; i < t->count; i++) {
		const struct tree_entry *e = &t->all[i];
		struct member m = { .in = e->in, .name = e->name };
		int rc;

		if (e->folder ||
		    (!is_shard(e->name, &m) && !is_rank(e->name, &m)) ||
		    m.count == 0 || m.count > SET_MAX)
			continue;
		rc = vec_grow(&ret->all, ret->count, &ret->capacity,
			      sizeof(*ret->all));
		if (rc < 0)
			return rc;
		ret->all[ret->count++] = m;
	}
	if (ret->count > 1)
		qsort(ret->all, ret->count, sizeof(*ret->all), compare_members);
	return 0;
}

static int lacks(struct structure *s, const struct tree *t, uint32_t in,
		 const char *name, const char *what)
{
	SCOPED(scope_free) char *path = tree_join(t->all[in].path, name);

	return path ? structure_add_fault(s, STRUCTURE_MISSING, path, what)
		    : -ENOMEM;
}

/* The member of this set that has the number. */
static int lacks_member(struct structure *s, const struct tree *t,
			const struct member *m, uint32_t number)
{
	const char *digits = m->kind == SET_SHARDS ? m->name + m->prefix_len
						   : strrchr(m->name, '_') + 1;
	SCOPED(scope_free) char *name = NULL;
	char what[64];

	if (asprintf(&name, "%.*s%0*u%s", (int)(digits - m->name), m->name,
		     (int)m->digits, number, digits + m->digits) < 0) {
		name = NULL;
		return -ENOMEM;
	}
	(void)snprintf(what, sizeof(what), "one of %u, and not there",
		       m->count);
	return lacks(s, t, m->in, name, what);
}

/* Some index is there, which then says what belongs to the model. */
static bool has_index(const struct tree *t, uint32_t in)
{
	for (size_t i = 0; i < t->count; i++)
		if (t->all[i].in == in && !t->all[i].folder &&
		    text_ends_in(t->all[i].name, ".json") &&
		    strstr(t->all[i].name, ".index."))
			return true;
	return false;
}

/* Of n shards, by number, each once. */
static int check_shards(struct structure *s, const struct tree *t,
			const struct member *m, size_t n)
{
	static const char *const indexed[] = { "model-", "pytorch_model-",
					       "diffusion_pytorch_model-" };
	uint32_t next = m[0].at == 0 ? 0 : 1; /* counted from */
	SCOPED(scope_free) char *name = NULL;

	if (has_index(t, m->in))
		return 0;
	for (size_t i = 0; i < n; i++, next++)
		if (m[i].at != next)
			return lacks_member(s, t, m, next);
	if (n < m->count)
		return lacks_member(s, t, m, next);
	for (size_t i = 0; n > 1 && i < COUNT(indexed); i++) {
		if (strlen(indexed[i]) != m->prefix_len ||
		    memcmp(m->name, indexed[i], m->prefix_len) != 0)
			continue;
		if (asprintf(&name, "%.*s%s.index.json", (int)m->prefix_len - 1,
			     m->name, strrchr(m->name, '.')) < 0) {
			name = NULL;
			return -ENOMEM;
		}
		return lacks(s, t, m->in, name,
			     "the index of a model in several files is not "
			     "there");
	}
	return 0;
}

/*
 * Of n ranks, by number, each once. A machine may have its own alone: a part of
 * the world like all others, and all in it.
 */
static int check_ranks(struct structure *s, const struct tree *t,
		       const struct member *m, size_t n)
{
	for (size_t i = 1; i < n; i++)
		if (m[i].at != m[i - 1].at + 1)
			return lacks_member(s, t, m, m[i - 1].at + 1);
	if (n > m->count || (m->count % n == 0 && m[0].at % n == 0))
		return 0;
	return lacks_member(s, t, m,
			    m[0].at > 0 ? m[0].at - 1 : m[n - 1].at + 1);
}

/* The same ranks have what another kind of file is of, in the same world. */
static int check_kinds(struct structure *s, const struct tree *t,
		       const struct member *a, size_t n, const struct member *b,
		       size_t m)
{
	size_t i = 0;

	while (i < n && i < m && a[i].at == b[i].at)
		i++;
	if (i == n && i == m)
		return 0;
	return i == m || (i < n && a[i].at < b[i].at)
		       ? lacks_member(s, t, b, a[i].at)
		       : lacks_member(s, t, a, b[i].at);
}

int structure_check_sets(struct structure *s, const struct tree *t)
{
	SCOPED(members_release) struct members m = { .all = NULL };
	size_t before = 0, before_count = 0, n = 0;
	int rc = find_members(t, &m);

	for (size_t i = 0; rc == 0 && i < m.count; i += n) {
		const struct member *at = &m.all[i];

		for (n = 1; i + n < m.count && compare_sets(at, at + n) == 0;)
			n++;
		rc = at->kind == SET_SHARDS ? check_shards(s, t, at, n)
					    : check_ranks(s, t, at, n);
		if (rc == 0 && at->kind == SET_RANKS && before_count > 0 &&
		    m.all[before].in == at->in &&
		    m.all[before].count == at->count)
			rc = check_kinds(s, t, &m.all[before], before_count, at,
					 n);
		before = i;
		before_count = at->kind == SET_RANKS ? n : 0;
	}
	return rc;
}
