/* writer.c - see writer.h. */
#include "store/db/writer.h"

#include <string.h>

/* A number has at most so many digits, leading zeros included. */
#define DIGITS_MAX 10

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static bool is_word(char c)
{
	return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* The digits at *at, up to *at's new place. False: no rank begins there. */
static bool take_number(const char **at, const char *end, uint32_t *ret)
{
	const char *p = *at;
	uint64_t v = 0;

	while (p < end && is_digit(*p) && p - *at < DIGITS_MAX)
		v = v * 10 + (uint64_t)(*p++ - '0');
	if (p == *at || (p < end && is_digit(*p)) || v > WRITER_RANK_MAX)
		return false;
	*at = p;
	*ret = (uint32_t)v;
	return true;
}

void writer_set_text(char *ret, size_t max, const char *text, size_t len)
{
	bool good = len <= max;

	for (size_t i = 0; good && i < len; i++)
		good = text[i] > ' ' && text[i] <= '~';
	if (!good)
		len = 0;
	memcpy(ret, text, len);
	ret[len] = 0;
}

/* --- environment --------------------------------------------------------- */

struct variable {
	const char *text; /* NULL: not there */
	size_t len;
};

/* The first one counts, as for getenv(). One that is cut off does not. */
static struct variable find(const char *block, size_t len, const char *name)
{
	size_t name_len = strlen(name);
	const char *end = block + len;

	for (const char *p = block; p < end;) {
		const char *stop = memchr(p, 0, (size_t)(end - p));

		if (!stop)
			break;
		if ((size_t)(stop - p) > name_len && p[name_len] == '=' &&
		    memcmp(p, name, name_len) == 0)
			return (struct variable){
				p + name_len + 1,
				(size_t)(stop - p) - name_len - 1,
			};
		p = stop + 1;
	}
	return (struct variable){ NULL, 0 };
}

static bool find_number(const char *block, size_t len, const char *name,
			uint32_t *ret)
{
	struct variable v = find(block, len, name);
	const char *at = v.text;

	return v.text && take_number(&at, v.text + v.len, ret) &&
	       at == v.text + v.len;
}

/*
 * mpirun starts its ranks below one task of Slurm on each node, whose variables
 * they inherit: the scheduler's come last.
 */
static const struct {
	const char *rank, *world;
} pairs[] = {
	{ "RANK", "WORLD_SIZE" },
	{ "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE" },
	{ "PMI_RANK", "PMI_SIZE" },
	{ "SLURM_PROCID", "SLURM_NTASKS" },
};

/* Does anybody say a rank, whatever it is? */
static bool has_rank(const char *block, size_t len)
{
	bool has = false;

	for (size_t i = 0; i < sizeof(pairs) / sizeof(*pairs); i++)
		has = has || find(block, len, pairs[i].rank).text;
	return has;
}

void writer_of_environment(const char *block, size_t len, struct writer *ret,
			   bool *ret_scheduler)
{
	struct variable job;
	uint32_t world_said;

	memset(ret, 0, sizeof(*ret));
	*ret_scheduler = false;
	for (size_t i = 0; i < sizeof(pairs) / sizeof(*pairs); i++) {
		uint32_t rank, world;

		if (!find_number(block, len, pairs[i].rank, &rank))
			continue;
		if (!find_number(block, len, pairs[i].world, &world))
			world = 0;
		else if (rank >= world)
			continue;
		ret->source = WRITER_ENVIRONMENT;
		ret->rank = rank;
		ret->world_size = world;
		*ret_scheduler = i > 0;
		break;
	}
	/* Who is told to be one of one, and nothing else, is the first. */
	if (ret->source == WRITER_NOWHERE && !has_rank(block, len) &&
	    find_number(block, len, "WORLD_SIZE", &world_said) &&
	    world_said == 1) {
		ret->source = WRITER_ENVIRONMENT;
		ret->world_size = 1;
		*ret_scheduler = true;
	}
	job = find(block, len, "TORCHELASTIC_RUN_ID");
	/* torchrun's default when nobody gave one. */
	if (!job.text || job.len == 0 ||
	    (job.len == 4 && memcmp(job.text, "none", 4) == 0))
		job = find(block, len, "SLURM_JOB_ID");
	if (job.text)
		writer_set_text(ret->job, WRITER_JOB_MAX, job.text, job.len);
}

/* --- names --------------------------------------------------------------- */

/*
 * Does the name, from `at` on, have this form? In a form R stands for the rank,
 * W for the world size, N for a number that does not count, $ for the end, *
 * for whatever follows; all else for itself, and no word goes on behind it.
 */
static bool has_form(const char *at, const char *form, struct writer *ret)
{
	const char *end = at + strlen(at);
	uint32_t ignored;

	for (; *form && *form != '$' && *form != '*'; form++) {
		bool fits;

		if (*form == 'R')
			fits = take_number(&at, end, &ret->rank);
		else if (*form == 'W')
			fits = take_number(&at, end, &ret->world_size);
		else if (*form == 'N')
			fits = take_number(&at, end, &ignored);
		else
			fits = *at++ == *form;
		if (!fits)
			return false;
	}
	return *form == '*' || at == end || (!*form && !is_word(*at));
}

/* Where FSDP's users say the world size, or "". */
static const char *world_of(const char *name)
{
	const char *at = strstr(name, "world_size_");

	return at && (at == name || at[-1] == '_') ? at : "";
}

/* What is behind the last "__", or "". */
static const char *behind_hint(const char *name)
{
	const char *at = "";

	for (const char *s = name; (s = strstr(s, "__")) != NULL; s++)
		at = s + 2;
	return at;
}

void writer_of_name(const char *name, struct writer *ret)
{
	const char *world = world_of(name), *last = behind_hint(name);
	const struct {
		const char *at, *form;
		enum writer_kind kind;
	} forms[] = {
		/* [hint]__RANK_I.distcp, or .tmp behind it: DCP, Megatron */
		{ last, "R_N.distcp$", WRITER_GLOBAL },
		{ last, "R_N.distcp.*", WRITER_GLOBAL },
		{ name, "rank_R", WRITER_GLOBAL },
		{ name, "rankR", WRITER_GLOBAL },
		/* of the Hugging Face trainer */
		{ name, "rng_state_R.pth$", WRITER_GLOBAL },
		{ world, "world_size_W_rank_R", WRITER_GLOBAL },
		/* of DeepSpeed; the world is not known */
		{ name, "mp_rank_R", WRITER_MODEL_PARALLEL },
		{ name, "zero_pp_rank_R_mp_rank_N", WRITER_DATA_PARALLEL },
		{ name, "bf16_zero_pp_rank_R_mp_rank_N", WRITER_DATA_PARALLEL },
		{ name, "fp16_zero_pp_rank_R_mp_rank_N", WRITER_DATA_PARALLEL },
	};

	for (size_t i = 0; i < sizeof(forms) / sizeof(*forms); i++) {
		*ret = (struct writer){ .source = WRITER_NAME,
					.kind = forms[i].kind };
		if (has_form(forms[i].at, forms[i].form, ret) &&
		    (forms[i].at != world || ret->rank < ret->world_size))
			return;
	}
	*ret = (struct writer){ .source = WRITER_NOWHERE };
}

void writer_add_name(struct writer *w, bool scheduler, const char *name)
{
	struct writer said;

	if (w->source == WRITER_ENVIRONMENT && !scheduler)
		return;
	writer_of_name(name, &said);
	if (said.source == WRITER_NOWHERE)
		return;
	if (w->source == WRITER_ENVIRONMENT &&
	    (said.kind != WRITER_GLOBAL || said.rank == w->rank))
		return;
	w->source = said.source;
	w->kind = said.kind;
	w->rank = said.rank;
	w->world_size = said.world_size;
}

/* --- words --------------------------------------------------------------- */

bool writer_equal(const struct writer *a, const struct writer *b)
{
	return a->source == b->source && a->kind == b->kind &&
	       a->rank == b->rank && a->world_size == b->world_size &&
	       strcmp(a->host, b->host) == 0 && strcmp(a->job, b->job) == 0;
}

const char *writer_source_word(const struct writer *w)
{
	static const char *const words[] = {
		[WRITER_NOWHERE] = NULL,
		[WRITER_ENVIRONMENT] = "environment",
		[WRITER_NAME] = "name",
	};

	return words[w->source];
}

const char *writer_kind_word(const struct writer *w)
{
	static const char *const words[] = {
		[WRITER_GLOBAL] = "global",
		[WRITER_DATA_PARALLEL] = "data_parallel",
		[WRITER_MODEL_PARALLEL] = "model_parallel",
	};

	return words[w->kind];
}
