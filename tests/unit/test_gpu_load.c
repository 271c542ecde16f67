/*
 * Tensors of a safetensors file are read into host memory by ckpt_file_read().
 */
#include <sys/wait.h>

#include "tests/unit/tensors_fixture.h"

/* Read what is wanted; then the file is closed. */
static void assert_reads_all(struct ckpt_file *f, struct reads *r)
{
	assert_int_equal(ckpt_file_read(f, r->targets, r->count), 0);
	assert_have_all(r);
	reads_release(r);
	ckpt_file_close(f);
}

static void every_byte_is_read(void **state)
{
	static struct reads r;
	struct ckpt_file *f;
	uint64_t sum = 0;

	(void)state;
	for (size_t i = 0; i < SOME; i++)
		sum += some_sizes[i];
	put_tensors(some_sizes, SOME);
	for (unsigned threads = 1; threads < 6; threads++) {
		struct ckpt_options o = { .flags = CKPT_NO_GPU,
					  .copy_threads = threads };
		struct ckpt_counters counted;
		struct ckpt *c;

		assert_int_equal(ckpt_open(&o, &c), 0);
		f = open_good(c);
		want_all(&r, f);
		assert_reads_all(f, &r);
		ckpt_get_counters(c, &counted);
		assert_int_equal(counted.host_bytes, sum);
		assert_int_equal(counted.h2d_bytes, 0);
		ckpt_close(c);
	}
}

static void small_tensors_are_read_together(void **state)
{
	static struct reads r;
	uint64_t sizes[TENSORS_MAX];
	struct ckpt_file *f;

	(void)state;
	for (size_t i = 0; i < TENSORS_MAX; i++)
		sizes[i] = i % 97 * (i % 13 ? 1 : 512);
	put_tensors(sizes, TENSORS_MAX);
	f = open_good(host);
	want_all(&r, f);
	assert_reads_all(f, &r);
}

static void any_choice_of_tensors_can_be_read(void **state)
{
	static const unsigned chosen[] = { 5, 8, 5, 2, 1 };
	static struct reads r;
	struct ckpt_file *f;

	(void)state;
	put_tensors(some_sizes, SOME);
	f = open_good(host);
	assert_int_equal(ckpt_file_read(f, NULL, 0), 0);
	r.count = sizeof(chosen) / sizeof(*chosen);
	for (size_t i = 0; i < r.count; i++) {
		r.targets[i].entry = ckpt_file_entry(f, chosen[i]);
		r.targets[i].data = malloc(r.targets[i].entry->bytes + 1);
		r.targets[i].device = CKPT_DEVICE_HOST;
	}
	assert_reads_all(f, &r);
}

static void an_open_file_keeps_its_version(void **state)
{
	static struct reads r;
	struct ckpt_file *f;

	(void)state;
	put_tensors(some_sizes, SOME);
	f = open_good(host);
	assert_int_equal(unlink(path), 0);
	put_json("{}", 0);
	want_all(&r, f);
	assert_reads_all(f, &r);
}

static void a_file_that_shrinks_is_an_error(void **state)
{
	static struct reads r;
	struct ckpt_file *f;

	(void)state;
	put_tensors(some_sizes, SOME);
	f = open_good(host);
	want_all(&r, f);
	assert_int_equal(truncate(path, 10 * MIB), 0);
	assert_int_equal(ckpt_file_read(f, r.targets, r.count), -ESTALE);
	assert_says(path);
	assert_says("it is shorter now than when it was opened");
	reads_release(&r);
	ckpt_file_close(f);
}

static void wrong_targets_are_refused(void **state)
{
	struct ckpt_entry foreign = { .name = "x" };
	struct ckpt_target t = { .device = CKPT_DEVICE_HOST };
	struct ckpt_file *f;
	struct ckpt_file *other;
	uint8_t byte = 7;

	(void)state;
	put_json("{\"w\":" TENSOR("U8", "[1]", 0, 1) "}", 1);
	f = open_good(host);
	other = open_good(host);
	assert_int_equal(ckpt_file_read(f, &t, 1), -EINVAL);
	assert_says("a target's entry is not one of this file");
	t.entry = &foreign;
	assert_int_equal(ckpt_file_read(f, &t, 1), -EINVAL);
	t.entry = ckpt_file_entry(other, 0);
	assert_int_equal(ckpt_file_read(f, &t, 1), -EINVAL);
	t.entry = ckpt_file_entry(f, 0);
	assert_int_equal(ckpt_file_read(f, &t, 1), -EINVAL);
	assert_says("tensor 'w': NULL was given for its 1 bytes");
	t.data = &byte;
	t.device = 0;
	assert_int_equal(ckpt_file_read(f, &t, 1), -EINVAL);
	assert_says("tensor 'w': there is no device 0: not looked for");
	t.device = CKPT_DEVICE_ANY;
	assert_int_equal(ckpt_file_read(f, &t, 1), -EINVAL);
	assert_says("there is no device -2");
	assert_int_equal(byte, 7);
	t.device = CKPT_DEVICE_HOST;
	assert_int_equal(ckpt_file_read(f, &t, 1), 0);
	assert_bytes(&byte, t.entry);
	ckpt_file_close(other);
	ckpt_file_close(f);
}

static void a_child_opens_its_own(void **state)
{
	int status = 0;
	const struct ckpt_range prefix = { .bytes = sizeof(uint64_t),
					   .data = &(uint64_t){ 0 },
					   .device = CKPT_DEVICE_HOST };
	const struct ckpt_range on_device = { .bytes = 1, .data = &status };
	struct ckpt_file *f;
	pid_t child;

	(void)state;
	put_json("{}", 0);
	f = open_good(host);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		/* And has what its parent had open, but no device of it. */
		status = ckpt_file_read_ranges(f, &prefix, 1) != 0;
		status |= ckpt_file_read_ranges(f, &on_device, 1) != -ECHILD;
		ckpt_file_close(f);
		status |= ckpt_file_open(host, path, &f) != -ECHILD;
		_exit(status);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	ckpt_file_close(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_byte_is_read),
		cmocka_unit_test(small_tensors_are_read_together),
		cmocka_unit_test(any_choice_of_tensors_can_be_read),
		cmocka_unit_test(an_open_file_keeps_its_version),
		cmocka_unit_test(a_file_that_shrinks_is_an_error),
		cmocka_unit_test(wrong_targets_are_refused),
		cmocka_unit_test(a_child_opens_its_own),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
