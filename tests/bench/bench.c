/*
 * bench.c - the timed halves of run.sh: one measurement for each run.
 *
 * Each command prints the nanoseconds that its work took, one number in a
 * line, and nothing else; what must not count (buffers, threads, opening
 * directories) is done before the clock starts. The same command works on
 * either side of a comparison: it knows paths, not file systems.
 *
 * Content is made so that no two calls of a run write the same bytes, and no
 * two chunks, however they are cut, are the same: one random block, stamped
 * with (seed, offset) four times in the shortest chunk. The same seed gives the
 * same file, so run.sh chooses what is new and what is shared.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bench/bench.h"

#define CALL_BYTES_MAX (UINT64_C(64) << 20)
#define WRITERS_MAX 64
#define FILES_MAX 10000000
#define FILES_IN_DIRECTORY 1000
#define SMALL_FILE_BYTES 4096
/* Parts of a mixed file that come from one seed or the other in turn. */
#define MIX_BYTES (UINT64_C(16) << 20)
#define ALIGNMENT 4096
#define STAMP_EACH_BYTES (UINT32_C(16) << 10)

static const char usage_text[] =
	"usage: ckpt_bench COMMAND ARGUMENT...\n"
	"\n"
	"  write CALL BYTES SEED PATH...  write each PATH, all at once; SEED is\n"
	"                                 N, or N:M for parts of N and M in "
	"turn\n"
	"  update CALL BYTES SEED PATH... the same with O_RDWR and ftruncate\n"
	"  direct CALL BYTES SEED PATH    the same with O_DIRECT, then "
	"fdatasync\n"
	"  read CALL PATH...              read each PATH, all at once\n"
	"  create COUNT DIR               COUNT files of 4 KiB, 1000 in a "
	"directory\n"
	"  stat COUNT DIR                 stat of each of them\n"
	"  unlink COUNT DIR               and unlink\n"
	"  tensors FIRST COUNT STEP PATH  a safetensors file of COUNT pairs of\n"
	"                                 tensors (16 KiB, 8 bytes), with the\n"
	"                                 contents FIRST, FIRST + STEP, ...\n"
	"  run COMMAND [ARGUMENT...]      how long a command takes\n"
	"\n"
	"Prints nanoseconds. Exit code: 0 fine, 1 a call failed, 2 wrong usage.\n";

static void misused(const char *what) __attribute__((noreturn));
static void misused(const char *what)
{
	fprintf(stderr, "ckpt_bench: %s\n%s", what, usage_text);
	exit(2);
}

/* --- content ----------------------------------------------------------- */

struct stamp {
	uint64_t seed, offset;
};

static void put_stamp(uint8_t *block, uint64_t seed, uint64_t offset)
{
	struct stamp s = { .seed = seed, .offset = offset };

	memcpy(block, &s, sizeof(s));
}

/* --- large files: write, direct, read ---------------------------------- */

struct transfer {
	const char *path;
	size_t call_bytes;
	uint64_t bytes, seed, other_seed;
	bool direct;
	bool update; /* opened to read and to write */
	pthread_barrier_t *start;
	pthread_t thread;
	uint8_t *block;
	uint64_t begin_ns, end_ns;
};

static void write_all(int fd, const uint8_t *p, size_t len, const char *path)
{
	while (len > 0) {
		ssize_t n = write(fd, p, len);

		if (n < 0)
			die("write %s", path);
		p += n;
		len -= (size_t)n;
	}
}

static void *write_run(void *arg)
{
	struct transfer *t = arg;
	int flags = (t->update ? O_RDWR : O_WRONLY) | O_CREAT | O_CLOEXEC |
		    (t->direct ? O_DIRECT : 0);
	int fd;

	(void)pthread_barrier_wait(t->start);
	t->begin_ns = now_ns();
	fd = open(t->path, flags, 0644);
	if (fd < 0)
		die("open %s", t->path);
	/* As safetensors does, which says before how large it will be. */
	if (t->update && ftruncate(fd, (off_t)t->bytes) < 0)
		die("ftruncate %s", t->path);
	for (uint64_t off = 0; off < t->bytes; off += t->call_bytes) {
		bool other = (off / MIX_BYTES) % 2 == 1;
		uint64_t left = t->bytes - off;

		for (size_t at = 0; at < t->call_bytes; at += STAMP_EACH_BYTES)
			put_stamp(t->block + at,
				  other ? t->other_seed : t->seed, off + at);
		write_all(fd, t->block,
			  left < t->call_bytes ? (size_t)left : t->call_bytes,
			  t->path);
	}
	if (t->direct && fdatasync(fd) < 0)
		die("fdatasync %s", t->path);
	if (close(fd) < 0)
		die("close %s", t->path);
	t->end_ns = now_ns();
	return NULL;
}

static void *read_run(void *arg)
{
	struct transfer *t = arg;
	ssize_t n;
	int fd;

	(void)pthread_barrier_wait(t->start);
	t->begin_ns = now_ns();
	fd = open(t->path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		die("open %s", t->path);
	while ((n = read(fd, t->block, t->call_bytes)) > 0)
		t->bytes += (uint64_t)n;
	if (n < 0)
		die("read %s", t->path);
	(void)close(fd);
	t->end_ns = now_ns();
	if (t->bytes == 0) {
		errno = ENODATA;
		die("read %s", t->path);
	}
	return NULL;
}

/* All transfers at once; from the first open to the last close. */
static uint64_t transfer(struct transfer *list, size_t count,
			 void *(*run)(void *))
{
	uint64_t begin_ns = UINT64_MAX, end_ns = 0;
	pthread_barrier_t start;

	errno = pthread_barrier_init(&start, NULL, (unsigned)count);
	if (errno != 0)
		die("barrier");
	for (size_t i = 0; i < count; i++) {
		list[i].block = block_new(ALIGNMENT, list[i].call_bytes);
		list[i].start = &start;
		errno = pthread_create(&list[i].thread, NULL, run, &list[i]);
		if (errno != 0)
			die("thread");
	}
	for (size_t i = 0; i < count; i++) {
		(void)pthread_join(list[i].thread, NULL);
		free(list[i].block);
		if (list[i].begin_ns < begin_ns)
			begin_ns = list[i].begin_ns;
		if (list[i].end_ns > end_ns)
			end_ns = list[i].end_ns;
	}
	(void)pthread_barrier_destroy(&start);
	return end_ns - begin_ns;
}

static size_t call_bytes(const char *text)
{
	size_t n = (size_t)number(text, CALL_BYTES_MAX);

	if (n == 0 || n % ALIGNMENT != 0)
		misused("CALL is a multiple of 4096");
	return n;
}

static uint64_t do_write(int argc, char **argv, bool direct, bool update)
{
	struct transfer list[WRITERS_MAX] = { 0 };
	size_t count = argc > 3 ? (size_t)argc - 3 : 0;
	char *colon;
	uint64_t seed, other;

	if (count == 0 || count > WRITERS_MAX || (direct && count > 1))
		misused("give CALL BYTES SEED PATH");
	colon = strchr(argv[2], ':');
	if (colon)
		*colon = 0;
	seed = number(argv[2], UINT32_MAX);
	other = colon ? number(colon + 1, UINT32_MAX) : seed;
	for (size_t i = 0; i < count; i++)
		list[i] = (struct transfer){
			.path = argv[3 + i],
			.call_bytes = call_bytes(argv[0]),
			.bytes = number(argv[1], UINT64_MAX / 2),
			/* Each writer's bytes are its own. */
			.seed = seed | (uint64_t)i << 32,
			.other_seed = other | (uint64_t)i << 32,
			.direct = direct,
			.update = update,
		};
	return transfer(list, count, write_run);
}

static uint64_t do_read(int argc, char **argv)
{
	struct transfer list[WRITERS_MAX] = { 0 };
	size_t count = argc > 1 ? (size_t)argc - 1 : 0;

	if (count == 0 || count > WRITERS_MAX)
		misused("give CALL PATH");
	for (size_t i = 0; i < count; i++)
		list[i] = (struct transfer){
			.path = argv[1 + i],
			.call_bytes = call_bytes(argv[0]),
		};
	return transfer(list, count, read_run);
}

/* --- many small files -------------------------------------------------- */

struct name {
	char text[64];
};

static struct name file_name(uint64_t i)
{
	struct name n;

	(void)snprintf(n.text, sizeof(n.text), "d%04llu/f%07llu",
		       (unsigned long long)(i / FILES_IN_DIRECTORY),
		       (unsigned long long)i);
	return n;
}

static int files_directory(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		die("open %s", path);
	return fd;
}

/* The directories are there before the clock starts. */
static void make_directories(int dirfd, uint64_t count)
{
	for (uint64_t i = 0; i < count; i += FILES_IN_DIRECTORY) {
		struct name n = file_name(i);

		*strchr(n.text, '/') = 0;
		if (mkdirat(dirfd, n.text, 0755) < 0 && errno != EEXIST)
			die("mkdir %s", n.text);
	}
}

static void create_one(int dirfd, uint64_t i, uint8_t *block)
{
	struct name n = file_name(i);
	int fd = openat(dirfd, n.text, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
			0644);

	if (fd < 0)
		die("create %s", n.text);
	put_stamp(block, i, 0);
	write_all(fd, block, SMALL_FILE_BYTES, n.text);
	if (close(fd) < 0)
		die("close %s", n.text);
}

static void stat_one(int dirfd, uint64_t i, uint8_t *block)
{
	struct name n = file_name(i);
	struct stat sb;

	(void)block;
	if (fstatat(dirfd, n.text, &sb, AT_SYMLINK_NOFOLLOW) < 0)
		die("stat %s", n.text);
	if (sb.st_size != SMALL_FILE_BYTES) {
		errno = EIO;
		die("size of %s", n.text);
	}
}

static void unlink_one(int dirfd, uint64_t i, uint8_t *block)
{
	struct name n = file_name(i);

	(void)block;
	if (unlinkat(dirfd, n.text, 0) < 0)
		die("unlink %s", n.text);
}

static uint64_t do_files(int argc, char **argv,
			 void (*one)(int dirfd, uint64_t i, uint8_t *block))
{
	uint64_t count, begin_ns, end_ns;
	uint8_t *block;
	int dirfd;

	if (argc != 2)
		misused("give COUNT DIR");
	count = number(argv[0], FILES_MAX);
	block = block_new(ALIGNMENT, SMALL_FILE_BYTES);
	dirfd = files_directory(argv[1]);
	if (one == create_one)
		make_directories(dirfd, count);
	begin_ns = now_ns();
	for (uint64_t i = 0; i < count; i++)
		one(dirfd, i, block);
	end_ns = now_ns();
	(void)close(dirfd);
	free(block);
	return end_ns - begin_ns;
}

/* --- many small chunks ------------------------------------------------- */

#define TENSOR_BYTES (UINT64_C(16) << 10) /* long enough to be a chunk */
#define TENSOR_TAIL_BYTES UINT64_C(8) /* keeps its neighbours apart */
#define PAIR_BYTES (TENSOR_BYTES + TENSOR_TAIL_BYTES)
#define PAIRS_MAX 100000

static uint8_t *tensors_new(uint64_t first, uint64_t count, uint64_t step,
			    size_t *ret_len)
{
	size_t room = (size_t)(count * (256 + PAIR_BYTES) + 64), n = 8;
	uint8_t *buf = malloc(room);
	uint64_t header;

	if (!buf)
		die("%zu bytes of memory", room);
	buf[n++] = '{';
	for (uint64_t i = 0; i < count; i++) {
		unsigned long long at = i * PAIR_BYTES;

		n += (size_t)snprintf(
			(char *)buf + n, room - n,
			"%s\"t%llu\":{\"dtype\":\"U8\",\"shape\":[%llu],"
			"\"data_offsets\":[%llu,%llu]},"
			"\"u%llu\":{\"dtype\":\"U8\",\"shape\":[%llu],"
			"\"data_offsets\":[%llu,%llu]}",
			i ? "," : "", (unsigned long long)i,
			(unsigned long long)TENSOR_BYTES, at,
			at + (unsigned long long)TENSOR_BYTES,
			(unsigned long long)i,
			(unsigned long long)TENSOR_TAIL_BYTES,
			at + (unsigned long long)TENSOR_BYTES,
			at + (unsigned long long)PAIR_BYTES);
	}
	buf[n++] = '}';
	while (n % 8 != 0)
		buf[n++] = ' ';
	header = n - 8;
	memcpy(buf, &header, sizeof(header));
	for (uint64_t i = 0; i < count; i++) {
		uint64_t tail = ~(first + i * step);

		fill_random(buf + n, TENSOR_BYTES);
		put_stamp(buf + n, first + i * step, TENSOR_BYTES);
		n += TENSOR_BYTES;
		memcpy(buf + n, &tail, TENSOR_TAIL_BYTES);
		n += TENSOR_TAIL_BYTES;
	}
	*ret_len = n;
	return buf;
}

static uint64_t do_tensors(int argc, char **argv)
{
	uint64_t count, begin_ns, end_ns;
	uint8_t *buf;
	size_t len;
	int fd;

	if (argc != 4)
		misused("give FIRST COUNT STEP PATH");
	count = number(argv[1], PAIRS_MAX);
	buf = tensors_new(number(argv[0], UINT32_MAX), count,
			  number(argv[2], UINT32_MAX), &len);
	begin_ns = now_ns();
	fd = open(argv[3], O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	if (fd < 0)
		die("open %s", argv[3]);
	write_all(fd, buf, len, argv[3]);
	if (close(fd) < 0)
		die("close %s", argv[3]);
	end_ns = now_ns();
	free(buf);
	return end_ns - begin_ns;
}

/* --- a command --------------------------------------------------------- */

static uint64_t do_run(int argc, char **argv)
{
	uint64_t begin_ns = now_ns();
	int status;
	pid_t pid;

	if (argc < 1)
		misused("give a COMMAND");
	pid = fork();
	if (pid < 0)
		die("fork");
	if (pid == 0) {
		/* Only the time goes to standard output. */
		if (dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
			_exit(1);
		execvp(argv[0], argv);
		fprintf(stderr, "ckpt_bench: %s: %s\n", argv[0],
			strerror(errno));
		_exit(1);
	}
	if (waitpid(pid, &status, 0) < 0)
		die("wait");
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
		fprintf(stderr, "ckpt_bench: %s failed\n", argv[0]);
		exit(1);
	}
	return now_ns() - begin_ns;
}

int main(int argc, char **argv)
{
	const char *command = argc > 1 ? argv[1] : "";
	uint64_t ns;

	if (strcmp(command, "--help") == 0 || strcmp(command, "-h") == 0) {
		printf("%s", usage_text);
		return 0;
	}
	argc -= 2;
	argv += 2;
	if (strcmp(command, "write") == 0)
		ns = do_write(argc, argv, false, false);
	else if (strcmp(command, "update") == 0)
		ns = do_write(argc, argv, false, true);
	else if (strcmp(command, "direct") == 0)
		ns = do_write(argc, argv, true, false);
	else if (strcmp(command, "read") == 0)
		ns = do_read(argc, argv);
	else if (strcmp(command, "create") == 0)
		ns = do_files(argc, argv, create_one);
	else if (strcmp(command, "stat") == 0)
		ns = do_files(argc, argv, stat_one);
	else if (strcmp(command, "unlink") == 0)
		ns = do_files(argc, argv, unlink_one);
	else if (strcmp(command, "tensors") == 0)
		ns = do_tensors(argc, argv);
	else if (strcmp(command, "run") == 0)
		ns = do_run(argc, argv);
	else
		misused("give a command");
	printf("%llu\n", (unsigned long long)ns);
	return 0;
}
