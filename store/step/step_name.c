/*
 * step_name.c - a name is cut into pieces: numbers, each with what it counts,
 * and single characters. All questions about names go through the pieces.
 */
#include "store/step/step_name.h"

#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "store/base/text.h"

/* Longer numbers are in no row. */
#define ROW_DIGITS_MAX 18

#define COUNT(a) (sizeof(a) / sizeof(*(a)))

/* What the number behind it counts. */
static const char *const step_words[] = { "step",  "iter",       "iteration",
					  "epoch", "checkpoint", "ckpt" };
/* Not finished yet. */
static const char *const staging_words[] = { "tmp",        "partial",
					     "incomplete", "unfinished",
					     "inprogress", "staging" };
/* Moved out of the way, wherever the word stands, or at the end alone. */
static const char *const aside_words[] = { "corrupt", "corrupted",  "broken",
					   "damaged", "quarantine", "trash",
					   "deleted", "deleting" };
static const char *const aside_ends[] = { "bad", "bak", "old" };
/* Of files that have tensors. */
static const char *const file_suffixes[] = { ".pt", ".pth", ".ckpt", ".bin",
					     ".safetensors" };
/* Parts of one step are beside each other, too. */
static const char *const part_words[] = { "rank", "shard", "part", "worker",
					  "node" };

enum role { LITERAL, STEP, MEASURED, LAST };

struct piece {
	enum role role;
	const char *at;
	size_t len;
};

bool step_name_word_ends(const char *text, size_t len, const char *word)
{
	size_t n = strlen(word);

	return len >= n && strncasecmp(text + len - n, word, n) == 0 &&
	       (len == n || !isalpha((unsigned char)text[len - n - 1]));
}

static bool has_word(const char *name, const char *word)
{
	size_t len = strlen(name);

	for (size_t end = strlen(word); end <= len; end++)
		if (step_name_word_ends(name, end, word) &&
		    !isalpha((unsigned char)name[end]))
			return true;
	return false;
}

static size_t digits_at(const char *text)
{
	size_t n = 0;

	while (isdigit((unsigned char)text[n]))
		n++;
	return n;
}

/* "-last" says which one it is, not what it is. */
static bool is_last(const char *at)
{
	return strncasecmp(at, "-last", 5) == 0 && (!at[5] || at[5] == '.');
}

/* How much behind '=' was measured: 0.5, -1.2e-05, nan. */
static size_t measured_at(const char *at)
{
	size_t n = at[0] == '-' || at[0] == '+', from = n;

	if (strncasecmp(at + n, "nan", 3) == 0 ||
	    strncasecmp(at + n, "inf", 3) == 0)
		return n + 3;
	n += digits_at(at + n);
	if (n > from && at[n] == '.' && isdigit((unsigned char)at[n + 1]))
		n += 1 + digits_at(at + n + 1);
	if (n > from && (at[n] == 'e' || at[n] == 'E')) {
		size_t sign = at[n + 1] == '-' || at[n + 1] == '+';
		size_t power = digits_at(at + n + 1 + sign);

		n += power > 0 ? 1 + sign + power : 0;
	}
	return n > from ? n : 0;
}

/* Is the number at name[at, at + len) behind one of the words for steps? */
static bool is_step(const char *name, size_t at, size_t len)
{
	char next = name[at + len];

	/* checkpoint-7b and ckpt-1.5 are no steps. */
	if (isalpha((unsigned char)next) ||
	    (next == '.' && isdigit((unsigned char)name[at + len + 1])))
		return false;
	if (at > 0 && strchr("_-=", name[at - 1]))
		at--;
	for (size_t i = 0; i < COUNT(step_words); i++)
		if (step_name_word_ends(name, at, step_words[i]))
			return true;
	return false;
}

/* The piece that begins at name[at]. */
static struct piece piece_at(const char *name, size_t at)
{
	struct piece p = { LITERAL, name + at, 1 };
	size_t n = digits_at(name + at);

	if (n > 0) {
		p.len = n;
		if (is_step(name, at, n)) {
			p.role = STEP;
			return p;
		}
	}
	if (at > 0 && name[at - 1] == '=' && (n = measured_at(name + at)) > 0)
		return (struct piece){ MEASURED, name + at, n };
	if (is_last(name + at))
		return (struct piece){ LAST, name + at, 5 };
	return p;
}

static bool has_step(const char *name)
{
	for (size_t at = 0; name[at];) {
		struct piece p = piece_at(name, at);

		if (p.role == STEP)
			return true;
		at += p.len;
	}
	return false;
}

/* Where the number at the end of the name begins, if it may be a step. */
static const char *end_number(const char *name)
{
	size_t len = strlen(name), at = len;

	while (at > 0 && isdigit((unsigned char)name[at - 1]))
		at--;
	return at < len && (at == 0 || strchr("-_", name[at - 1])) ? name + at
								   : NULL;
}

bool step_name_is_staging(const char *name)
{
	for (size_t i = 0; i < COUNT(staging_words); i++)
		if (has_word(name, staging_words[i]))
			return true;
	return false;
}

bool step_name_is_aside(const char *name)
{
	if (name[0] == '.' || step_name_is_staging(name))
		return true;
	for (size_t i = 0; i < COUNT(aside_words); i++)
		if (has_word(name, aside_words[i]))
			return true;
	for (size_t i = 0; i < COUNT(aside_ends); i++)
		if (step_name_word_ends(name, strlen(name), aside_ends[i]))
			return true;
	return false;
}

bool step_name_is_of_tensors(const char *name)
{
	for (size_t i = 0; i < COUNT(file_suffixes); i++)
		if (text_ends_in(name, file_suffixes[i]))
			return !step_name_is_staging(name);
	return false;
}

/* last.ckpt, and last-v1.ckpt where there was one. */
static bool is_last_file(const char *name)
{
	if (strncmp(name, "last", 4) != 0)
		return false;
	name += 4;
	if (strncmp(name, "-v", 2) == 0 && digits_at(name + 2) > 0)
		name += 2 + digits_at(name + 2);
	return strcmp(name, ".ckpt") == 0;
}

bool step_name_is_file(const char *name)
{
	return step_name_is_of_tensors(name) &&
	       (step_name_of(name) == STEP_NAME_SURE || is_last_file(name));
}

enum step_name step_name_of(const char *name)
{
	if (step_name_is_staging(name))
		return STEP_NAME_NONE;
	if (has_step(name))
		return STEP_NAME_SURE;
	for (size_t i = 0; i < COUNT(part_words); i++)
		if (strstr(name, part_words[i]))
			return STEP_NAME_NONE;
	return end_number(name) ? STEP_NAME_PERHAPS : STEP_NAME_NONE;
}

/* The next piece that says something, and what comes behind it. */
static struct piece next_piece(const char *name, size_t *at,
			       enum step_name kind)
{
	struct piece p = piece_at(name, *at);

	if (p.role == LAST)
		p = piece_at(name, *at += p.len);
	if (kind == STEP_NAME_PERHAPS && p.at == end_number(name))
		p.role = STEP;
	*at += *p.at ? p.len : 0;
	return p;
}

bool step_name_same_series(const char *a, const char *b)
{
	enum step_name kind = step_name_of(a);
	size_t at_a = 0, at_b = 0;

	if (kind == STEP_NAME_NONE || step_name_of(b) != kind)
		return false;
	for (;;) {
		struct piece x = next_piece(a, &at_a, kind);
		struct piece y = next_piece(b, &at_b, kind);

		if (x.role != y.role ||
		    (x.role == LITERAL &&
		     (x.len != y.len || memcmp(x.at, y.at, x.len) != 0)))
			return false;
		if (!*x.at)
			return true;
	}
}

const char *step_name_number(const char *p, size_t *ret_len)
{
	while (*p && !isdigit((unsigned char)*p))
		p++;
	while (*p == '0' && isdigit((unsigned char)p[1]))
		p++;
	*ret_len = digits_at(p);
	return p;
}

/* The next number that counts steps, without leading zeros; len 0: none. */
static const char *next_step(const char *name, size_t *at, enum step_name kind,
			     size_t *ret_len)
{
	while (name[*at]) {
		struct piece p = next_piece(name, at, kind);

		if (p.role == STEP)
			return step_name_number(p.at, ret_len);
	}
	*ret_len = 0;
	return name;
}

int step_name_compare(const char *a, const char *b)
{
	enum step_name kind = step_name_of(a);
	size_t at_a = 0, at_b = 0;

	for (;;) {
		size_t n, m;
		const char *x = next_step(a, &at_a, kind, &n);
		const char *y = next_step(b, &at_b, kind, &m);
		int c;

		if (n == 0 || m == 0)
			return (n > 0) - (m > 0);
		c = n != m ? (n > m) - (n < m) : memcmp(x, y, n);
		if (c)
			return c;
	}
}

/* UINT64_MAX: it is too long. */
static uint64_t value_of(const char *name)
{
	size_t at = 0, len;
	const char *digits = next_step(name, &at, step_name_of(name), &len);

	return len > 0 && len <= ROW_DIGITS_MAX ? strtoull(digits, NULL, 10)
						: UINT64_MAX;
}

bool step_name_even(const char *a, const char *b, const char *c)
{
	uint64_t x = value_of(a), y = value_of(b), z = value_of(c);

	return x < y && y < z && y - x == z - y && y - x > 1;
}

bool step_name_has(const char *name, const char *digits, size_t len)
{
	size_t n;

	for (const char *at = step_name_number(name, &n); n > 0;
	     at = step_name_number(at + n, &n))
		if (n == len && memcmp(at, digits, n) == 0)
			return true;
	return false;
}
