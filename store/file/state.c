/*
 * state.c - the table of a file's transitions, and what is decided by them: see
 * state.h.
 *
 * A row of the table is an event: from which bytes it leads where (what is not
 * named is refused), in which modes it can be, what it needs besides, and how
 * it counts. Only what becomes of `left` and `name` is written out below.
 */
#include "store/file/state.h"

#include "store/base/scope.h"

#define TO(bytes) ((bytes) + 1) /* 0: refused */
#define SAME(bytes) [bytes] = TO(bytes)
#define EACH_STAGE_TO(bytes)                                    \
	[BYTES_DIRTY] = TO(bytes), [BYTES_CLEAN] = TO(bytes),   \
	[BYTES_FROZEN] = TO(bytes), [BYTES_SEALED] = TO(bytes), \
	[BYTES_SEALED_CLEAN] = TO(bytes), [BYTES_SEALED_WANTED] = TO(bytes)
#define SAME_STAGE                                                \
	SAME(BYTES_DIRTY), SAME(BYTES_CLEAN), SAME(BYTES_FROZEN), \
		SAME(BYTES_SEALED), SAME(BYTES_SEALED_CLEAN),     \
		SAME(BYTES_SEALED_WANTED)
#define ALIVE SAME(BYTES_COMMITTED), SAME_STAGE

#define IN(mode) (1u << (mode))
#define ANY_MODE (IN(IO_CLOSED) | IN(IO_BACKED) | IN(IO_DAEMON))
#define IS_OPEN (IN(IO_BACKED) | IN(IO_DAEMON))

enum {
	NO_HANDLE = 1,
	NO_WRITER = 2,
	NO_STEP = 4,
	NO_READER_LEFT = 8,
	NO_WRITER_LEFT = 16,
	HAS_STEP = 32,
	HAS_READER = 64,
	HAS_WRITER = 128,
	UNUSED = NO_HANDLE | NO_STEP | NO_READER_LEFT,
	UNCHANGED = NO_WRITER | NO_STEP | NO_WRITER_LEFT,
};

struct rule {
	unsigned char to[FILE_BYTES_COUNT];
	unsigned char modes; /* in which it can be */
	unsigned char needs;
	unsigned char to_mode; /* TO(mode); 0: the same */
	signed char opens, writers, changing; /* how they change */
};

static const struct rule rules[FILE_EVENTS] = {
	[FILE_STAGED] = { .to = { [BYTES_COMMITTED] = TO(BYTES_DIRTY),
				  EACH_STAGE_TO(BYTES_DIRTY) },
			  .modes = IN(IO_CLOSED) | IN(IO_DAEMON) },
	[FILE_LENT] = { .to = { [BYTES_COMMITTED] = TO(BYTES_SEALED),
				EACH_STAGE_TO(BYTES_SEALED) },
			.modes = IN(IO_CLOSED),
			.needs = NO_HANDLE | NO_READER_LEFT },
	[FILE_FOUND] = { .to = { [BYTES_COMMITTED] = TO(BYTES_CLEAN) },
			 .modes = IN(IO_CLOSED),
			 .needs = UNUSED },
	[FILE_TAKEN] = { .to = { [BYTES_COMMITTED] = TO(BYTES_DIRTY) },
			 .modes = IN(IO_CLOSED) | IN(IO_BACKED),
			 .needs = HAS_STEP },
	[FILE_WRITTEN] = { .to = { SAME(BYTES_DIRTY), [BYTES_CLEAN] =
							      TO(BYTES_DIRTY) },
			   .modes = ANY_MODE },
	[FILE_FROZEN] = { .to = { [BYTES_DIRTY] = TO(BYTES_FROZEN),
				  [BYTES_CLEAN] = TO(BYTES_FROZEN),
				  SAME(BYTES_FROZEN) },
			  .modes = ANY_MODE,
			  .needs = UNCHANGED },
	[FILE_THAWED] = { .to = { [BYTES_FROZEN] = TO(BYTES_DIRTY) },
			  .modes = ANY_MODE },
	[FILE_DURABLE] = { .to = { [BYTES_DIRTY] = TO(BYTES_CLEAN),
				   SAME(BYTES_CLEAN),
				   [BYTES_SEALED] = TO(BYTES_SEALED_CLEAN),
				   SAME(BYTES_SEALED_CLEAN),
				   SAME(BYTES_SEALED_WANTED) },
			   .modes = ANY_MODE,
			   .needs = UNCHANGED },
	/* Who reads an image goes on reading it. */
	[FILE_BECAME_IMAGE] = { .to = { [BYTES_FROZEN] = TO(BYTES_COMMITTED) },
				.modes = ANY_MODE },
	[FILE_WANTED] = { .to = { [BYTES_SEALED_CLEAN] =
					  TO(BYTES_SEALED_WANTED),
				  SAME(BYTES_SEALED_WANTED) },
			  .modes = ANY_MODE },
	/* Who reads through us reads what is committed from then on. */
	[FILE_GIVEN_UP] = { .to = { [BYTES_CLEAN] = TO(BYTES_COMMITTED),
				    [BYTES_SEALED_CLEAN] = TO(BYTES_COMMITTED),
				    [BYTES_SEALED_WANTED] =
					    TO(BYTES_COMMITTED) },
			    .modes = IN(IO_CLOSED) | IN(IO_DAEMON),
			    .needs = NO_WRITER | NO_STEP | NO_READER_LEFT },
	[FILE_DELETED] = { .to = { [BYTES_COMMITTED] = TO(BYTES_GONE),
				   EACH_STAGE_TO(BYTES_GONE) },
			   .modes = ANY_MODE,
			   .needs = NO_HANDLE | NO_STEP },
	[FILE_BACKED] = { .to = { ALIVE },
			  .modes = IN(IO_CLOSED),
			  .needs = HAS_STEP,
			  .to_mode = TO(IO_BACKED) },
	[FILE_SERVED] = { .to = { ALIVE },
			  .modes = IN(IO_CLOSED),
			  .needs = HAS_STEP,
			  .to_mode = TO(IO_DAEMON) },
	[FILE_OPENED] = { .to = { ALIVE },
			  .modes = IS_OPEN,
			  .needs = HAS_STEP,
			  .opens = 1 },
	[FILE_OPENED_WRITER] = { .to = { SAME(BYTES_COMMITTED),
					 SAME(BYTES_DIRTY),
					 [BYTES_CLEAN] = TO(BYTES_DIRTY) },
				 .modes = IS_OPEN,
				 .needs = HAS_STEP,
				 .opens = 1,
				 .writers = 1 },
	[FILE_RELEASED] = { .to = { ALIVE },
			    .modes = IS_OPEN,
			    .needs = HAS_READER,
			    .opens = -1 },
	[FILE_RELEASED_WRITER] = { .to = { SAME(BYTES_COMMITTED),
					   SAME(BYTES_DIRTY) },
				   .modes = IS_OPEN,
				   .needs = HAS_WRITER,
				   .opens = -1,
				   .writers = -1 },
	[FILE_CLOSED] = { .to = { ALIVE, SAME(BYTES_GONE) },
			  .modes = ANY_MODE,
			  .needs = NO_HANDLE | NO_STEP,
			  .to_mode = TO(IO_CLOSED) },
	[FILE_BEGUN] = { .to = { ALIVE }, .modes = ANY_MODE, .changing = 1 },
	[FILE_ENDED] = { .to = { ALIVE },
			 .modes = ANY_MODE,
			 .needs = HAS_STEP,
			 .changing = -1 },
	[FILE_MAPPABLE] = { .to = { ALIVE },
			    .modes = IN(IO_BACKED),
			    .needs = HAS_READER },
	[FILE_MAPPABLE_WRITER] = { .to = { SAME(BYTES_DIRTY) },
				   .modes = IN(IO_BACKED),
				   .needs = HAS_WRITER },
	[FILE_NO_WRITER_LEFT] = { .to = { ALIVE, SAME(BYTES_GONE) },
				  .modes = ANY_MODE,
				  .needs = NO_WRITER },
	[FILE_NOBODY_LEFT] = { .to = { ALIVE, SAME(BYTES_GONE) },
			       .modes = ANY_MODE,
			       .needs = NO_HANDLE },
	[FILE_ABANDONED] = { .to = { ALIVE, SAME(BYTES_GONE) },
			     .modes = ANY_MODE,
			     .needs = NO_STEP },
	[FILE_NAME_MOVED] = { .to = { ALIVE }, .modes = ANY_MODE },
	[FILE_WRITER_CAME] = { .to = { ALIVE, SAME(BYTES_GONE) },
			       .modes = ANY_MODE },
};

static bool has_what_is_needed(const struct file_state *s, unsigned needs)
{
	return !((needs & NO_HANDLE && s->opens > 0) ||
		 (needs & NO_WRITER && s->writers > 0) ||
		 (needs & NO_STEP && s->changing > 0) ||
		 (needs & NO_READER_LEFT && s->left != LEFT_NOBODY) ||
		 (needs & NO_WRITER_LEFT && s->left == LEFT_WRITERS) ||
		 (needs & HAS_STEP && s->changing == 0) ||
		 (needs & HAS_READER && s->opens == s->writers) ||
		 (needs & HAS_WRITER && s->writers == 0));
}

bool file_may_move(const struct file_state *s, enum file_event e)
{
	const struct rule *r = &rules[e];

	return r->to[s->bytes] != 0 && (r->modes & IN(s->mode)) &&
	       has_what_is_needed(s, r->needs);
}

static void abandon(struct file_state *s)
{
	if (s->mode == IO_BACKED && s->writers > 0)
		s->left = LEFT_WRITERS;
	s->opens = 0;
	s->writers = 0;
}

void file_move(struct file_state *s, enum file_event e)
{
	const struct rule *r = &rules[e];

	CHECK(file_may_move(s, e));
	s->bytes = r->to[s->bytes] - 1;
	if (r->to_mode)
		s->mode = r->to_mode - 1;
	s->opens += (unsigned)r->opens;
	s->writers += (unsigned)r->writers;
	s->changing += (unsigned)r->changing;
	if (e == FILE_MAPPABLE_WRITER)
		s->left = LEFT_WRITERS;
	else if (e == FILE_MAPPABLE && s->left == LEFT_NOBODY)
		s->left = LEFT_READERS;
	else if (e == FILE_NO_WRITER_LEFT && s->left == LEFT_WRITERS)
		s->left = LEFT_READERS;
	else if (e == FILE_NOBODY_LEFT)
		s->left = LEFT_NOBODY;
	else if (e == FILE_ABANDONED)
		abandon(s);
	else if (e == FILE_NAME_MOVED)
		s->name = NAME_MOVED;
	else if (e == FILE_WRITER_CAME && s->name == NAME_AWAITED)
		s->name = NAME_OWN;
}

bool file_is_reached(const struct file_state *s)
{
	return s->mode == IO_BACKED || s->changing > 0 ||
	       s->left != LEFT_NOBODY;
}

/* --- may the stage be rewritten? ------------------------------------------ */

bool file_is_read(const struct file_state *s)
{
	return s->opens > 0 ? s->writers == 0 : s->left != LEFT_NOBODY;
}

/* Nobody has it, but perhaps he who asks, with a step. */
static bool is_closed(const struct file_state *s)
{
	return s->opens == 0 && s->mode == IO_CLOSED && s->left == LEFT_NOBODY;
}

/* What is in the way of a write to what is there now. */
static enum file_step write_step(const struct file_state *s, bool has_image)
{
	switch (s->bytes) {
	case BYTES_GONE:
		return STEP_STALE;
	case BYTES_FROZEN:
		return STEP_WAIT;
	case BYTES_SEALED:
		return STEP_SYNC;
	case BYTES_SEALED_CLEAN:
	case BYTES_SEALED_WANTED:
		return s->mode == IO_BACKED || s->left != LEFT_NOBODY
			       ? STEP_RENUMBER
			       : STEP_GIVE_UP;
	case BYTES_COMMITTED: /* readers must see it, and have the image */
		return s->mode == IO_BACKED ||
				       (s->mode == IO_CLOSED && has_image &&
					s->left != LEFT_NOBODY)
			       ? STEP_TAKE_IMAGE
			       : STEP_OK;
	case BYTES_DIRTY:
	case BYTES_CLEAN:
	case FILE_BYTES_COUNT:
		break;
	}
	return STEP_OK;
}

enum file_step file_step(const struct file_state *s, enum file_wish wish,
			 unsigned facts)
{
	enum file_step step = write_step(s, facts & WISH_HAS_IMAGE);
	bool joins = s->mode == IO_DAEMON && s->name == NAME_AWAITED;

	if (step == STEP_STALE ||
	    (s->name == NAME_MOVED && !(facts & WISH_HAS_HANDLE)))
		return STEP_STALE;
	if (wish != WISH_WRITE && is_closed(s))
		return STEP_FRESH;
	if (wish == WISH_REPLACE)
		return STEP_RENUMBER;
	/* A fresh stage needs no wait: what is drained keeps its place. */
	if (wish == WISH_WRITE || !file_is_read(s) || joins ||
	    (step != STEP_OK && step != STEP_WAIT && step != STEP_TAKE_IMAGE))
		return step;
	/* O_TRUNC under readers: they keep what they have, if it is large. */
	if (!(facts & WISH_KEEPS_INODE))
		return STEP_RENUMBER;
	/* Who reads through us sees the new stage, from its start. */
	return s->mode != IO_BACKED ? STEP_FRESH : step;
}

/* --- does the stage go? --------------------------------------------------- */

static bool is_cache(const struct file_state *s)
{
	return s->bytes == BYTES_CLEAN || s->bytes == BYTES_SEALED_CLEAN ||
	       s->bytes == BYTES_SEALED_WANTED;
}

bool file_is_poor_cache(const struct stages *stages, const struct file *f)
{
	return f->stage && f->content &&
	       (f->content->c.kind == CONTENT_SMALL ||
		f->stage->kind == STAGE_DISK || f->stage->sealed ||
		stages->no_cache);
}

enum file_fate file_end(struct file_state *s, enum file_end why, bool poor)
{
	bool goes = poor || why == END_EVICTED ||
		    (why == END_FORGOTTEN && s->bytes == BYTES_SEALED_WANTED);

	if (why == END_DURABLE && s->bytes == BYTES_FROZEN) {
		file_move(s, FILE_BECAME_IMAGE);
		return FATE_GOES;
	}
	if (why == END_DURABLE && file_may_move(s, FILE_DURABLE))
		file_move(s, FILE_DURABLE);
	if (!is_cache(s))
		return FATE_STAYS;
	/* Who has it mapped must see what is written later, and keeps it. */
	if (!goes || !file_may_move(s, FILE_GIVEN_UP))
		return FATE_CACHED;
	file_move(s, FILE_GIVEN_UP);
	return FATE_GOES;
}
