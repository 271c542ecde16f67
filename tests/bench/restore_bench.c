/*
 * restore_bench.c - what ranks do with a checkpoint, each in a process of its
 * own that has RANK and WORLD_SIZE in its environment: they write their files,
 * and read them back.
 *
 *     restore_bench write OWN SHARED every|one|kept STEP PATH...
 *     restore_bench read CALL PATH...
 *     restore_bench plan POLICY CALL OWN SHARED PATH...
 *
 * A rank's file is safetensors: OWN bytes that no other rank and no other STEP
 * has, in equal tensors, and between them tensors of different sizes, SHARED
 * bytes in sum. Those are the same for all ranks and steps, and `every` file
 * has all of them, or each is in `one` file only, in turn; or a rank has kept
 * its own of the step before. Headers differ in length, so that nothing common
 * begins at the same place of a page.
 *
 * `read` has rank i read all of the i-th PATH. `plan` has the ranks read what
 * was written with `one` as libckpt_plan says: own tensors by their own rank,
 * the others by one rank of all. Files that are read are opened once by each
 * rank, its own first, and read forwards with calls of CALL bytes.
 *
 * Prints the nanoseconds from the common start until the last rank has closed
 * its last file; processes, and memory to read into, are made before. `plan`
 * goes on in the same line: how often a rank opened another one's file, how
 * many bytes it read of them, and how often and how much in all.
 */
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <sys/wait.h>

#include "store/base/scope.h"
#include "store/step/plan.h"
#include "tests/bench/bench.h"

#define RANKS_MAX 16u
#define PAIRS 16u /* tensors of its own in a file, and shared ones in all */
#define PAIRS_SUM (PAIRS * (PAIRS + 1) / 2)
#define FILE_BYTES_MAX (UINT64_C(1) << 40)
#define CALL_BYTES_MAX (UINT64_C(64) << 20)
#define WRITE_BYTES (UINT64_C(1) << 20)
#define ALIGNMENT 4096u
#define HEADER_BYTES_MAX 8192u
/* A reader gets three words for each piece: the first is the command's. */
#define WORDS_MAX (3 * 2 * PAIRS * RANKS_MAX + 8)

static void misused(const char *what) __attribute__((noreturn));
static void misused(const char *what)
{
	fprintf(stderr, "restore_bench: %s\n", what);
	exit(2);
}

/* --- what a file holds ------------------------------------------------- */

struct tensor {
	uint32_t number; /* the pair's */
	bool shared;
	uint64_t bytes;
	uint64_t offset; /* in the file */
};

struct file {
	struct tensor tensors[2 * PAIRS];
	uint32_t count;
	char header[HEADER_BYTES_MAX];
	size_t header_bytes;
};

enum share {
	SHARE_ONE, /* file has a shared tensor */
	SHARE_EVERY,
	SHARE_KEPT, /* a rank's own, of every step */
	SHARE_COUNT,
};

struct job {
	uint32_t rank_count;
	uint64_t own_bytes, shared_bytes, step;
	enum share share;
};

static uint64_t shared_size(const struct job *j, uint32_t i)
{
	uint64_t weight = 1 + i * 7 % PAIRS; /* each of 1..PAIRS once */

	return j->shared_bytes * weight / PAIRS_SUM / ALIGNMENT * ALIGNMENT;
}

static bool file_has(const struct job *j, uint32_t rank, uint32_t i)
{
	return shared_size(j, i) > 0 &&
	       (j->share != SHARE_ONE || i % j->rank_count == rank);
}

static void file_add(struct file *f, uint32_t i, bool shared, uint64_t bytes,
		     uint64_t *at)
{
	size_t n = f->header_bytes;

	f->tensors[f->count++] = (struct tensor){ i, shared, bytes, *at };
	n += (size_t)snprintf(
		f->header + n, HEADER_BYTES_MAX - n,
		",\"%s.%u\":{\"dtype\":\"U8\",\"shape\":[%llu],"
		"\"data_offsets\":[%llu,%llu]}",
		shared ? "shared" : "own", i, (unsigned long long)bytes,
		(unsigned long long)*at, (unsigned long long)(*at + bytes));
	CHECK(n < HEADER_BYTES_MAX);
	f->header_bytes = n;
	*at += bytes;
}

/* The file of a rank: its header, and where its tensors are. */
static void file_lay_out(const struct job *j, uint32_t rank, struct file *f)
{
	uint64_t own = j->own_bytes / PAIRS / ALIGNMENT * ALIGNMENT;
	uint64_t at = 0, len;
	int n;

	f->count = 0;
	n = snprintf(f->header, HEADER_BYTES_MAX,
		     "        {\"__metadata__\":{\"rank\":\"%0*u\"}",
		     (int)(1 + 72 * rank), rank);
	f->header_bytes = (size_t)n;
	for (uint32_t i = 0; i < PAIRS; i++) {
		file_add(f, i, false, own, &at);
		if (file_has(j, rank, i))
			file_add(f, i, true, shared_size(j, i), &at);
	}
	f->header[f->header_bytes++] = '}';
	while (f->header_bytes % 8 != 0)
		f->header[f->header_bytes++] = ' ';
	CHECK(f->header_bytes <= HEADER_BYTES_MAX);
	len = f->header_bytes - sizeof(len);
	memcpy(f->header, &len, sizeof(len)); /* little-endian machines */
	for (uint32_t i = 0; i < f->count; i++)
		f->tensors[i].offset += f->header_bytes;
}

/* --- the processes ----------------------------------------------------- */

static void write_all(int fd, const void *buf, size_t len, const char *path)
{
	const uint8_t *p = buf;

	while (len > 0) {
		ssize_t n = write(fd, p, len);

		if (n < 0)
			die("write %s", path);
		p += n;
		len -= (size_t)n;
	}
}

/*
 * A process tells on its standard output that it is ready, works when its
 * standard input ends, and tells when it was done.
 */
static void wait_for_start(void)
{
	char byte = 0;

	write_all(STDOUT_FILENO, &byte, 1, "the pipe");
	if (read(STDIN_FILENO, &byte, 1) < 0)
		die("read the pipe");
}

static void tell_end(void)
{
	uint64_t end_ns = now_ns();

	write_all(STDOUT_FILENO, &end_ns, sizeof(end_ns), "the pipe");
}

/* No two blocks of all tensors are the same, but for what is shared. */
static void write_tensor(int fd, const struct tensor *t, const struct job *j,
			 uint32_t rank, uint8_t *block, const char *path)
{
	uint64_t whose = rank;

	if (t->shared && j->share != SHARE_KEPT)
		whose = RANKS_MAX;
	for (uint64_t off = 0; off < t->bytes; off += WRITE_BYTES) {
		uint64_t left = t->bytes - off;
		uint64_t stamp[] = { whose, t->number,
				     t->shared ? UINT64_MAX : j->step, off };

		memcpy(block, stamp, sizeof(stamp));
		write_all(fd, block,
			  (size_t)(left < WRITE_BYTES ? left : WRITE_BYTES),
			  path);
	}
}

static enum share share_of(const char *word)
{
	static const char *const words[SHARE_COUNT] = {
		[SHARE_ONE] = "one",
		[SHARE_EVERY] = "every",
		[SHARE_KEPT] = "kept",
	};

	for (enum share i = 0; i < SHARE_COUNT; i++)
		if (strcmp(word, words[i]) == 0)
			return i;
	misused("shared tensors are in one file, in every, or kept");
}

/* writer OWN SHARED every|one|kept STEP RANK RANKS PATH */
static void do_writer(char **argv)
{
	struct job j = { .rank_count = (uint32_t)number(argv[5], RANKS_MAX),
			 .own_bytes = number(argv[0], FILE_BYTES_MAX),
			 .shared_bytes = number(argv[1], FILE_BYTES_MAX),
			 .share = share_of(argv[2]),
			 .step = number(argv[3], UINT32_MAX) };
	uint32_t rank = (uint32_t)number(argv[4], RANKS_MAX);
	uint8_t *block = block_new(ALIGNMENT, WRITE_BYTES);
	const char *path = argv[6];
	struct file f;
	int fd;

	file_lay_out(&j, rank, &f);
	wait_for_start();
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0)
		die("open %s", path);
	write_all(fd, f.header, f.header_bytes, path);
	for (uint32_t i = 0; i < f.count; i++)
		write_tensor(fd, &f.tensors[i], &j, rank, block, path);
	if (close(fd) < 0)
		die("close %s", path);
	tell_end();
	free(block);
}

/* As far as the file goes when len is 0. */
static void read_piece(int fd, uint8_t *block, size_t call_bytes, uint64_t off,
		       uint64_t len, const char *path)
{
	uint64_t done = 0;
	ssize_t n;

	do {
		uint64_t want = len == 0 || len - done > call_bytes
					? call_bytes
					: len - done;

		n = pread(fd, block, (size_t)want, (off_t)(off + done));
		if (n < 0)
			die("read %s", path);
		done += (uint64_t)n;
	} while (n > 0 && (len == 0 || done < len));
	if (done < len || done == 0) {
		errno = ENODATA;
		die("read %s", path);
	}
}

/* reader CALL [PATH OFFSET LENGTH]...; what is of one file comes together */
static void do_reader(char **argv)
{
	size_t call_bytes = (size_t)number(argv[0], CALL_BYTES_MAX);
	uint8_t *block = block_new(ALIGNMENT, call_bytes);
	const char *path = "";
	int fd = -1;

	wait_for_start();
	for (argv++; argv[0]; argv += 3) {
		if (strcmp(path, argv[0]) != 0) {
			path = argv[0];
			if (fd >= 0)
				(void)close(fd);
			fd = open(path, O_RDONLY | O_CLOEXEC);
			if (fd < 0)
				die("open %s", path);
		}
		read_piece(fd, block, call_bytes,
			   number(argv[1], FILE_BYTES_MAX),
			   number(argv[2], FILE_BYTES_MAX), path);
	}
	if (fd >= 0)
		(void)close(fd);
	tell_end();
	free(block);
}

struct words {
	char *word[WORDS_MAX + 1]; /* the last is NULL */
	size_t count;
};

static void say(struct words *w, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
static void say(struct words *w, const char *format, ...)
{
	va_list ap;

	CHECK(w->count < WORDS_MAX);
	va_start(ap, format);
	if (vasprintf(&w->word[w->count++], format, ap) < 0)
		die("memory");
	va_end(ap);
}

static void say_piece(struct words *w, const char *path, uint64_t off,
		      uint64_t len)
{
	say(w, "%s", path);
	say(w, "%llu", (unsigned long long)off);
	say(w, "%llu", (unsigned long long)len);
}

struct process {
	pid_t pid;
	int start, news; /* our ends of its pipes */
};

static struct process start_process(char **words, uint32_t rank, uint32_t count)
{
	struct process p;
	int in[2], out[2];
	char text[16];

	if (pipe2(in, O_CLOEXEC) < 0 || pipe2(out, O_CLOEXEC) < 0)
		die("pipe");
	p.pid = fork();
	if (p.pid < 0)
		die("fork");
	if (p.pid == 0) {
		(void)snprintf(text, sizeof(text), "%u", rank);
		if (setenv("RANK", text, 1) < 0 ||
		    snprintf(text, sizeof(text), "%u", count) < 0 ||
		    setenv("WORLD_SIZE", text, 1) < 0 ||
		    dup2(in[0], STDIN_FILENO) < 0 ||
		    dup2(out[1], STDOUT_FILENO) < 0)
			die("prepare a process");
		/* What it is started with is what the mount can see of it. */
		(void)execv("/proc/self/exe", words);
		die("start a process");
	}
	(void)close(in[0]);
	(void)close(out[1]);
	p.start = in[1];
	p.news = out[0];
	return p;
}

static void must_say(int fd, void *buf, size_t len)
{
	errno = ECHILD; /* it has said why */
	if (read(fd, buf, len) != (ssize_t)len)
		die("a process failed");
}

/* One for each rank, all at once; from the start to the end of the last. */
static uint64_t run_processes(const struct words *w, uint32_t count)
{
	struct process p[RANKS_MAX];
	uint64_t begin_ns, end_ns = 0, ns;
	int status;
	char byte;

	for (uint32_t i = 0; i < count; i++) {
		char **words = calloc(w[i].count + 1, sizeof(*words));

		CHECK(words); /* out of memory */
		memcpy(words, w[i].word, w[i].count * sizeof(*words));
		p[i] = start_process(words, i, count);
		free(words);
	}
	for (uint32_t i = 0; i < count; i++)
		must_say(p[i].news, &byte, 1);
	begin_ns = now_ns();
	for (uint32_t i = 0; i < count; i++)
		(void)close(p[i].start);
	for (uint32_t i = 0; i < count; i++) {
		must_say(p[i].news, &ns, sizeof(ns));
		end_ns = ns > end_ns ? ns : end_ns;
		(void)close(p[i].news);
		if (waitpid(p[i].pid, &status, 0) < 0 || status != 0)
			die("a process failed");
	}
	return end_ns - begin_ns;
}

static struct words *words_new(void)
{
	struct words *w = calloc(RANKS_MAX, sizeof(*w));

	CHECK(w); /* out of memory */
	return w;
}

static void words_free(struct words *w)
{
	for (uint32_t r = 0; r < RANKS_MAX; r++)
		for (size_t i = 0; i < w[r].count; i++)
			free(w[r].word[i]);
	free(w);
}

/* --- the commands ------------------------------------------------------ */

static uint32_t rank_count(int paths)
{
	if (paths < 1 || paths > (int)RANKS_MAX)
		misused("give one PATH for each rank, 16 at most");
	return (uint32_t)paths;
}

static const char *call_size(const char *text)
{
	if (number(text, CALL_BYTES_MAX) == 0)
		misused("CALL is at least 1");
	return text;
}

static void do_write(int argc, char **argv)
{
	uint32_t count = rank_count(argc - 4);
	struct words *w = words_new();

	(void)share_of(argv[2]);
	for (uint32_t i = 0; i < count; i++) {
		say(&w[i], "restore_bench");
		say(&w[i], "writer");
		for (int n = 0; n < 4; n++)
			say(&w[i], "%s", argv[n]);
		say(&w[i], "%u", i);
		say(&w[i], "%u", count);
		say(&w[i], "%s", argv[4 + i]);
	}
	printf("%llu\n", (unsigned long long)run_processes(w, count));
	words_free(w);
}

static void begin_reader(struct words *w, const char *call)
{
	say(w, "restore_bench");
	say(w, "reader");
	say(w, "%s", call);
}

static void do_read(int argc, char **argv)
{
	uint32_t count = rank_count(argc - 1);
	struct words *w = words_new();

	for (uint32_t i = 0; i < count; i++) {
		begin_reader(&w[i], call_size(argv[0]));
		say_piece(&w[i], argv[1 + i], 0, 0);
	}
	printf("%llu\n", (unsigned long long)run_processes(w, count));
	words_free(w);
}

struct plan {
	struct job job;
	struct file files[RANKS_MAX];
	struct ckpt_plan_shard shards[RANKS_MAX * 2 * PAIRS];
	uint32_t own[RANKS_MAX]; /* sets of one rank */
	uint32_t readers[RANKS_MAX * 2 * PAIRS];
	uint64_t loads[RANKS_MAX];
	size_t count;
};

/* Which rank reads what: p->readers, in the order of files and tensors. */
static void plan_make(struct plan *p, enum ckpt_plan_policy policy)
{
	struct ckpt_plan_options o = { .rank_count = p->job.rank_count,
				       .policy = policy };
	static char ids[RANKS_MAX * 2 * PAIRS][32];
	struct ckpt_plan_fault fault;

	for (uint32_t r = 0; r < p->job.rank_count; r++) {
		p->own[r] = r;
		file_lay_out(&p->job, r, &p->files[r]);
		for (uint32_t i = 0; i < p->files[r].count; i++) {
			const struct tensor *t = &p->files[r].tensors[i];
			struct ckpt_plan_shard *s = &p->shards[p->count];

			s->id = ids[p->count];
			s->id_bytes = (size_t)snprintf(
				ids[p->count], sizeof(ids[0]), "%s.%u.%u",
				t->shared ? "shared" : "own", t->number, r);
			s->bytes = t->bytes;
			s->source = r;
			s->ranks = t->shared ? NULL : &p->own[r];
			s->rank_count = 1;
			p->count++;
		}
	}
	if (ckpt_plan_reads(p->shards, p->count, &o, p->readers, p->loads,
			    &fault) < 0)
		misused(fault.what);
}

struct counts {
	uint64_t opens, bytes, foreign_opens, foreign_bytes;
};

/* What rank `reader` reads of the file of rank `source`. */
static void plan_file(const struct plan *p, uint32_t reader, uint32_t source,
		      const char *path, struct words *w, struct counts *c)
{
	uint64_t bytes = 0;
	size_t at = 0;

	for (uint32_t r = 0; r < source; r++)
		at += p->files[r].count;
	for (uint32_t i = 0; i < p->files[source].count; i++) {
		const struct tensor *t = &p->files[source].tensors[i];

		if (p->readers[at + i] != reader)
			continue;
		say_piece(w, path, t->offset, t->bytes);
		bytes += t->bytes;
	}
	if (bytes == 0)
		return;
	c->opens++;
	c->bytes += bytes;
	if (reader != source) {
		c->foreign_opens++;
		c->foreign_bytes += bytes;
	}
}

static void do_plan(int argc, char **argv)
{
	uint32_t count = rank_count(argc - 4);
	struct plan *p = calloc(1, sizeof(*p));
	struct words *w = words_new();
	enum ckpt_plan_policy policy;
	struct counts c = { 0 };

	CHECK(p); /* out of memory */
	if (!ckpt_plan_policy_of(argv[0], &policy))
		misused("POLICY is per_shard, pr3392 or greedy");
	p->job =
		(struct job){ .rank_count = count,
			      .own_bytes = number(argv[2], FILE_BYTES_MAX),
			      .shared_bytes = number(argv[3], FILE_BYTES_MAX) };
	plan_make(p, policy);
	for (uint32_t r = 0; r < count; r++) {
		begin_reader(&w[r], call_size(argv[1]));
		for (uint32_t i = 0; i < count; i++) {
			uint32_t source = (r + i) % count;

			plan_file(p, r, source, argv[4 + source], &w[r], &c);
		}
	}
	printf("%llu %llu %llu %llu %llu\n",
	       (unsigned long long)run_processes(w, count),
	       (unsigned long long)c.foreign_opens,
	       (unsigned long long)c.foreign_bytes, (unsigned long long)c.opens,
	       (unsigned long long)c.bytes);
	words_free(w);
	free(p);
}

int main(int argc, char **argv)
{
	const char *command = argc > 1 ? argv[1] : "";

	argc -= 2;
	argv += 2;
	if (strcmp(command, "write") == 0 && argc > 4)
		do_write(argc, argv);
	else if (strcmp(command, "read") == 0 && argc > 1)
		do_read(argc, argv);
	else if (strcmp(command, "plan") == 0 && argc > 4)
		do_plan(argc, argv);
	else if (strcmp(command, "writer") == 0 && argc == 7)
		do_writer(argv);
	else if (strcmp(command, "reader") == 0 && argc % 3 == 1)
		do_reader(argv);
	else
		misused("give write, read or plan, and what the source says");
	return 0;
}
