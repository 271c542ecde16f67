/*
 * A file that outgrows the memory for stages goes on on the disk. The daemon is
 * killed in the middle of that, just after something was written there.
 */
#include "store/drain/drain.h"
#include "tests/unit/live_child.h"
#include "tests/unit/live_store.h"
#include "tests/unit/own_mounts.h"
#include "tests/unit/small_disk.h"

#define DATA_BYTES (1 * MIB)
#define MORE_BYTES (8 * MIB)

static struct handle writer;

void __real_drain_moved(struct drain *d, struct inode *in);
void __wrap_drain_moved(struct drain *d, struct inode *in);

/* Whoever has it open may write to the new stage by now, and be answered. */
void __wrap_drain_moved(struct drain *d, struct inode *in)
{
	(void)d;
	(void)in;
	handle_write(&writer, "answered", 8, 0);
	_exit(0);
}

static void child_outgrows(struct live *l, const char *closed)
{
	uint8_t *data = filled(MORE_BYTES, 1);

	l->options.stage_bytes = 64 * MIB;
	l->options.hold_drain = true;
	child_open(l, "1");
	writer = handle_open(l, "f", O_RDWR | O_CREAT);
	handle_write(&writer, data, DATA_BYTES, 0);
	if (writer.in->file->stage->kind != STAGE_MEMORY)
		_exit(1);
	if (closed[0] == '1' &&
	    file_flush(&l->st->files, writer.in, O_RDWR) < 0)
		_exit(2);
	disk_fill(l->stage, 0);
	handle_write(&writer, data, MORE_BYTES, DATA_BYTES);
	_exit(3); /* it was not moved */
}

/* What was not answered may be there, in part, behind that. */
static void assert_begins(struct live *l, const uint8_t *data)
{
	uint8_t *got = malloc(DATA_BYTES);
	struct handle h = handle_open(l, "f", O_RDONLY);

	assert_non_null(got);
	assert_int_equal(handle_read(&h, got, DATA_BYTES, 0), DATA_BYTES);
	assert_memory_equal(got, data, DATA_BYTES);
	handle_close(&h);
	free(got);
}

static void what_is_written_while_a_file_moves_is_there(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);

	(void)state;
	memcpy(data, "answered", 8);
	for (int closed = 0; closed < 2; closed++) {
		struct live l = live_closed(NULL);

		if (!may_mount || mount("stage", l.stage, "tmpfs", 0,
					"size=96m,mode=700") < 0) {
			live_remove(&l);
			skip();
		}
		live_open(&l);
		live_close(&l);
		live_child_kind(&l, "outgrows", (unsigned)closed);
		disk_relieve(l.stage);
		live_open(&l);
		assert_begins(&l, data);
		live_reopen(&l);
		assert_begins(&l, data);
		live_close(&l);
		live_check(&l);
		assert_int_equal(umount2(l.stage, MNT_DETACH), 0);
		live_remove(&l);
	}
	free(data);
}

int main(int argc, char **argv)
{
	static const struct live_child_entry children[] = {
		{ "outgrows", child_outgrows },
	};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_written_while_a_file_moves_is_there),
	};

	if (argc > 1)
		return live_child_main(argc, argv, children,
				       sizeof(children) / sizeof(*children));
	enter_namespace();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
