/*
 * Who wrote a file: what an environment and what a name says of it, and that
 * nothing else says anything. Environments lie in memory of exactly their size,
 * so that a sanitizer sees a read beyond.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "store/db/writer.h"
#include "tests/unit/test_seed.h"

#define NONE (-1)

struct said {
	struct writer w;
	bool scheduler;
};

static struct said environment_of(const char *block, size_t len)
{
	char *copy = malloc(len ? len : 1);
	struct said s;

	assert_non_null(copy);
	memcpy(copy, block, len);
	writer_of_environment(copy, len, &s.w, &s.scheduler);
	free(copy);
	return s;
}

/* A literal with NULs between: its last one ends the last string. */
#define ENVIRONMENT(text) environment_of(text, sizeof(text))

static void assert_rank(const struct writer *w, int64_t rank, uint32_t world)
{
	if (rank == NONE) {
		assert_int_equal(w->source, WRITER_NOWHERE);
		assert_int_equal(w->rank, 0);
	} else {
		assert_int_not_equal(w->source, WRITER_NOWHERE);
		assert_int_equal(w->rank, rank);
	}
	assert_int_equal(w->world_size, world);
}

static void a_name_says_its_writers_rank(void **state)
{
	static const struct {
		const char *name;
		int64_t rank;
		enum writer_kind kind;
		uint32_t world;
	} rows[] = {
		{ "__0_0.distcp", 0, WRITER_GLOBAL, 0 },
		{ "__17_3.distcp", 17, WRITER_GLOBAL, 0 },
		{ "hint__17_0.distcp", 17, WRITER_GLOBAL, 0 },
		{ "a__b___4_1.distcp", 4, WRITER_GLOBAL, 0 },
		{ "__3_0.distcp.tmp", 3, WRITER_GLOBAL, 0 },
		{ ".__3_0.distcp.t2", 3, WRITER_GLOBAL, 0 },
		{ "__2147483647_0.distcp", INT32_MAX, WRITER_GLOBAL, 0 },
		{ "rank_3.pt", 3, WRITER_GLOBAL, 0 },
		{ "rank3", 3, WRITER_GLOBAL, 0 },
		{ "rank_0012_model.pt", 12, WRITER_GLOBAL, 0 },
		{ "rng_state_5.pth", 5, WRITER_GLOBAL, 0 },
		{ "model_world_size_8_rank_6.pt", 6, WRITER_GLOBAL, 8 },
		{ "mp_rank_03_model_states.pt", 3, WRITER_MODEL_PARALLEL, 0 },
		{ "mp_rank_00", 0, WRITER_MODEL_PARALLEL, 0 },
		{ "zero_pp_rank_5_mp_rank_02_optim_states.pt", 5,
		  WRITER_DATA_PARALLEL, 0 },
		{ "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", 1,
		  WRITER_DATA_PARALLEL, 0 },
		{ "fp16_zero_pp_rank_1_mp_rank_00_optim_states.pt", 1,
		  WRITER_DATA_PARALLEL, 0 },
		{ "", NONE, WRITER_GLOBAL, 0 },
		{ ".metadata", NONE, WRITER_GLOBAL, 0 },
		{ "__", NONE, WRITER_GLOBAL, 0 },
		{ "__3.distcp", NONE, WRITER_GLOBAL, 0 },
		{ "__3_0.distcpx", NONE, WRITER_GLOBAL, 0 },
		{ "__3_0_0.distcp", NONE, WRITER_GLOBAL, 0 },
		{ "_3_0.distcp", NONE, WRITER_GLOBAL, 0 },
		{ "__-3_0.distcp", NONE, WRITER_GLOBAL, 0 },
		{ "__ 3_0.distcp", NONE, WRITER_GLOBAL, 0 },
		{ "__0x3_0.distcp", NONE, WRITER_GLOBAL, 0 },
		{ "__2147483648_0.distcp", NONE, WRITER_GLOBAL, 0 },
		{ "__99999999999_0.distcp", NONE, WRITER_GLOBAL, 0 },
		{ "__00000000003_0.distcp", NONE, WRITER_GLOBAL, 0 },
		{ "rank_", NONE, WRITER_GLOBAL, 0 },
		{ "rank_3of8.pt", NONE, WRITER_GLOBAL, 0 },
		{ "ranking_3.pt", NONE, WRITER_GLOBAL, 0 },
		{ "xrank_3.pt", NONE, WRITER_GLOBAL, 0 },
		{ "pp_rank_3.pt", NONE, WRITER_GLOBAL, 0 },
		{ "expp_rank_3_mp_rank_00.pt", NONE, WRITER_GLOBAL, 0 },
		{ "rng_state.pth", NONE, WRITER_GLOBAL, 0 },
		{ "rng_state_5.pth.bak", NONE, WRITER_GLOBAL, 0 },
		{ "model_world_size_8_rank_8.pt", NONE, WRITER_GLOBAL, 0 },
		{ "model_world_size_0_rank_0.pt", NONE, WRITER_GLOBAL, 0 },
		{ "zero_pp_rank_5", NONE, WRITER_GLOBAL, 0 },
		{ "layer_03-model_states.pt", NONE, WRITER_GLOBAL, 0 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		struct writer w;

		writer_of_name(rows[i].name, &w);
		if ((w.source != WRITER_NOWHERE) != (rows[i].rank != NONE) ||
		    (rows[i].rank != NONE && w.rank != rows[i].rank) ||
		    w.kind != rows[i].kind || w.world_size != rows[i].world)
			fail_msg("%s: rank %u of %u, source %d, kind %d",
				 rows[i].name, w.rank, w.world_size, w.source,
				 w.kind);
	}
}

static void each_launcher_is_known(void **state)
{
	struct said s;

	(void)state;
	s = ENVIRONMENT("HOME=/\0RANK=3\0LOCAL_RANK=1\0WORLD_SIZE=8\0"
			"TORCHELASTIC_RUN_ID=job-7");
	assert_rank(&s.w, 3, 8);
	assert_int_equal(s.w.kind, WRITER_GLOBAL);
	assert_string_equal(s.w.job, "job-7");
	assert_string_equal(s.w.host, "");
	assert_false(s.scheduler);
	s = ENVIRONMENT("OMPI_COMM_WORLD_SIZE=4\0OMPI_COMM_WORLD_RANK=2");
	assert_rank(&s.w, 2, 4);
	assert_true(s.scheduler);
	s = ENVIRONMENT("PMI_RANK=1\0PMI_SIZE=2\0SLURM_PROCID=0\0"
			"SLURM_NTASKS=1\0SLURM_JOB_ID=99");
	assert_rank(&s.w, 1, 2);
	assert_string_equal(s.w.job, "99");
	s = ENVIRONMENT("SLURM_PROCID=5\0SLURM_NTASKS=16\0RANK=x");
	assert_rank(&s.w, 5, 16);
	s = ENVIRONMENT("RANK=0");
	assert_rank(&s.w, 0, 0);
	s = ENVIRONMENT("TORCHELASTIC_RUN_ID=none\0SLURM_JOB_ID=12");
	assert_rank(&s.w, NONE, 0);
	assert_string_equal(s.w.job, "12");
	s = ENVIRONMENT("LOCAL_RANK=3\0WORLD_SIZE=8");
	assert_rank(&s.w, NONE, 0);
}

static void who_is_told_to_be_alone_is_rank_0(void **state)
{
	struct said s, cp = ENVIRONMENT("HOME=/");
	struct writer w;

	(void)state;
	s = ENVIRONMENT("WORLD_SIZE=1\0SLURM_JOB_ID=7");
	assert_rank(&s.w, 0, 1);
	assert_int_equal(s.w.source, WRITER_ENVIRONMENT);
	assert_string_equal(s.w.job, "7");
	/* The name may know better. */
	w = s.w;
	writer_add_name(&w, s.scheduler, "__3_0.distcp");
	assert_rank(&w, 3, 0);
	w = s.w;
	writer_add_name(&w, s.scheduler, "model.pt");
	assert_rank(&w, 0, 1);
	/* Any rank that is said counts, or what is said contradicts itself. */
	s = ENVIRONMENT("WORLD_SIZE=1\0RANK=0");
	assert_rank(&s.w, 0, 1);
	assert_false(s.scheduler);
	s = ENVIRONMENT("WORLD_SIZE=1\0OMPI_COMM_WORLD_RANK=3");
	assert_rank(&s.w, 3, 0);
	s = ENVIRONMENT("WORLD_SIZE=1\0RANK=1");
	assert_rank(&s.w, NONE, 0);
	s = ENVIRONMENT("WORLD_SIZE=1\0RANK=");
	assert_rank(&s.w, NONE, 0);
	/* No rank is invented: for cp, for one of many, for a scheduler's. */
	assert_rank(&cp.w, NONE, 0);
	s = ENVIRONMENT("WORLD_SIZE=2");
	assert_rank(&s.w, NONE, 0);
	s = ENVIRONMENT("WORLD_SIZE=01x");
	assert_rank(&s.w, NONE, 0);
	s = ENVIRONMENT("SLURM_NTASKS=1");
	assert_rank(&s.w, NONE, 0);
}

static void what_is_not_a_number_is_no_rank(void **state)
{
	static const char *const values[] = {
		"", " 3", "3 ", "+3", "-1", "0x3", "3.0", "3,4", "three",
		"2147483648", "99999999999999999999", "00000000003", "\xff",
		"3\n", "$(reboot)",
	};
	char block[128];

	(void)state;
	for (size_t i = 0; i < sizeof(values) / sizeof(*values); i++) {
		int n = snprintf(block, sizeof(block), "RANK=%s", values[i]);
		struct said s = environment_of(block, (size_t)n + 1);

		assert_rank(&s.w, NONE, 0);
	}
}

static void what_contradicts_itself_is_no_rank(void **state)
{
	struct said s;

	(void)state;
	s = ENVIRONMENT("RANK=8\0WORLD_SIZE=8");
	assert_rank(&s.w, NONE, 0);
	s = ENVIRONMENT("RANK=0\0WORLD_SIZE=0");
	assert_rank(&s.w, NONE, 0);
	s = ENVIRONMENT("RANK=9\0WORLD_SIZE=8\0PMI_RANK=2\0PMI_SIZE=4");
	assert_rank(&s.w, 2, 4);
	s = ENVIRONMENT("RANK=9\0WORLD_SIZE=many");
	assert_rank(&s.w, 9, 0);
}

static void only_whole_strings_count(void **state)
{
	struct said s;

	(void)state;
	s = environment_of("RANK=12", 6); /* the kernel gave less */
	assert_rank(&s.w, NONE, 0);
	s = ENVIRONMENT("MY_RANK=3\0RANK\0RANKS=4\0\0=5\0rank=6");
	assert_rank(&s.w, NONE, 0);
	s = ENVIRONMENT("X=\0\0\0RANK=1\0RANK=2"); /* as getenv() */
	assert_rank(&s.w, 1, 0);
	s = environment_of("", 0);
	assert_rank(&s.w, NONE, 0);
	s = environment_of("\0\0\0", 3);
	assert_rank(&s.w, NONE, 0);
}

static void a_text_is_short_and_printable_or_absent(void **state)
{
	static const char *const bad[] = { "a b", "a\nb", "a\x1b[0m", "\xc3\xa4",
					   "" };
	char block[512] = "SLURM_JOB_ID=";
	size_t key = strlen(block);
	struct said s;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		strcpy(block + key, bad[i]);
		s = environment_of(block, strlen(block) + 1);
		assert_string_equal(s.w.job, "");
	}
	memset(block + key, 'j', WRITER_JOB_MAX + 1);
	block[key + WRITER_JOB_MAX + 1] = 0;
	s = environment_of(block, strlen(block) + 1);
	assert_string_equal(s.w.job, "");
	block[key + WRITER_JOB_MAX] = 0;
	s = environment_of(block, strlen(block) + 1);
	assert_int_equal(strlen(s.w.job), WRITER_JOB_MAX);
}

static struct writer with_name(struct said s, const char *name)
{
	writer_add_name(&s.w, s.scheduler, name);
	return s.w;
}

static void the_environment_comes_before_the_name(void **state)
{
	struct said torchrun = ENVIRONMENT("RANK=1\0WORLD_SIZE=4");
	struct said slurm = ENVIRONMENT("SLURM_PROCID=0\0SLURM_NTASKS=2\0"
					"SLURM_JOB_ID=7");
	struct said nothing = ENVIRONMENT("HOME=/");
	struct writer w;

	(void)state;
	w = with_name(torchrun, "__3_0.distcp");
	assert_rank(&w, 1, 4);
	assert_int_equal(w.source, WRITER_ENVIRONMENT);
	w = with_name(nothing, "__3_0.distcp");
	assert_rank(&w, 3, 0);
	assert_int_equal(w.source, WRITER_NAME);
	w = with_name(nothing, "optimizer.pt");
	assert_rank(&w, NONE, 0);
	/* One task of Slurm that starts four ranks itself. */
	w = with_name(slurm, "__3_0.distcp");
	assert_rank(&w, 3, 0);
	assert_int_equal(w.source, WRITER_NAME);
	assert_string_equal(w.job, "7");
	w = with_name(slurm, "__0_0.distcp");
	assert_rank(&w, 0, 2);
	assert_int_equal(w.source, WRITER_ENVIRONMENT);
	w = with_name(slurm, "optimizer.pt");
	assert_rank(&w, 0, 2);
	/* This one does not count the same thing. */
	w = with_name(slurm, "zero_pp_rank_5_mp_rank_00_optim_states.pt");
	assert_rank(&w, 0, 2);
	assert_true(writer_is_global(&w));
	w = with_name(nothing, "zero_pp_rank_5_mp_rank_00_optim_states.pt");
	assert_rank(&w, 5, 0);
	assert_false(writer_is_global(&w));
}

static void hostile_blocks_and_names_are_read_to_their_end_only(void **state)
{
	static const char *const pieces[] = {
		"RANK=", "WORLD_SIZE=", "SLURM_PROCID=", "SLURM_JOB_ID=", "0",
		"7", "99999999999", "=", "__", "_", "rank", "mp_rank_",
		"zero_pp_rank_", ".distcp", "world_size_", "rng_state_", ".pth",
	};
	uint64_t x = test_seed_spread(test_seed());

	(void)state;
	for (unsigned round = 0; round < 200000; round++) {
		char block[128];
		struct said s;
		struct writer w;
		size_t len = 0;

		while (len < sizeof(block) - 16) {
			const char *piece;

			x ^= x << 13;
			x ^= x >> 7;
			x ^= x << 17;
			if (x % 11 == 0)
				break;
			piece = pieces[x / 11 %
				       (sizeof(pieces) / sizeof(*pieces))];
			if (x % 7 == 0)
				block[len++] = (char)(x >> 32);
			memcpy(block + len, piece, strlen(piece));
			len += strlen(piece);
			if (x % 5 == 0)
				block[len++] = 0;
		}
		s = environment_of(block, len);
		assert_true(s.w.rank <= WRITER_RANK_MAX);
		assert_true(s.w.world_size == 0 ||
			    s.w.rank < s.w.world_size);
		block[len] = 0;
		{
			char *name = strdup(block);

			assert_non_null(name);
			writer_of_name(name, &w);
			free(name);
		}
		assert_true(w.rank <= WRITER_RANK_MAX);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_name_says_its_writers_rank),
		cmocka_unit_test(each_launcher_is_known),
		cmocka_unit_test(who_is_told_to_be_alone_is_rank_0),
		cmocka_unit_test(what_is_not_a_number_is_no_rank),
		cmocka_unit_test(what_contradicts_itself_is_no_rank),
		cmocka_unit_test(only_whole_strings_count),
		cmocka_unit_test(a_text_is_short_and_printable_or_absent),
		cmocka_unit_test(the_environment_comes_before_the_name),
		cmocka_unit_test(
			hostile_blocks_and_names_are_read_to_their_end_only),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
