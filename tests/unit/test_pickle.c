/* What the pickle reader builds, and at which byte it refuses the rest. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "store/base/scope.h"
#include "store/formats/pickle.h"

#define MEMORY (size_t)(1 << 20)

enum id { ID_POINT, ID_SIZE, ID_COLOR, ID_GETATTR, ID_FLOAT };

static const struct pickle_class classes[] = {
	{ "m", "Point", PICKLE_OBJECT, ID_POINT },
	{ "m", "Size", PICKLE_CALL, ID_SIZE },
	{ "m", "Color", PICKLE_ENUM, ID_COLOR },
	{ "builtins", "getattr", PICKLE_GETATTR, ID_GETATTR },
	{ "m", "float", PICKLE_CONSTANT, ID_FLOAT },
};

static int load(const void *data, size_t len, size_t memory, struct pickle *p,
		struct pickle_error *e)
{
	return pickle_load(data, len, classes,
			   sizeof(classes) / sizeof(*classes), memory, p, e);
}

/* The bytes of a string literal, without its NUL. */
#define BYTES(literal) (literal), sizeof(literal) - 1

static struct pickle loaded(const void *data, size_t len)
{
	struct pickle_error e = { 0, "" };
	struct pickle p;
	int rc = load(data, len, MEMORY, &p, &e);

	if (rc < 0)
		fail_msg("%d at %zu: %s", rc, e.offset, e.what);
	return p;
}

static void assert_error(int rc, const void *data, size_t len, size_t offset,
			 const char *what)
{
	struct pickle_error e = { 0, "" };
	struct pickle p;

	assert_int_equal(load(data, len, MEMORY, &p, &e), rc);
	if (!strstr(e.what, what))
		fail_msg("'%s' is not in '%s'", what, e.what);
	assert_int_equal(e.offset, offset);
}

static void assert_refused(const void *data, size_t len, size_t offset,
			   const char *what)
{
	assert_error(-EBADMSG, data, len, offset, what);
}

/* A class that the caller did not name: nothing need be wrong with it. */
static void assert_unknown(const void *data, size_t len, size_t offset,
			   const char *what)
{
	assert_error(-EOPNOTSUPP, data, len, offset, what);
}

static int64_t int_of(const struct pickle *p, pickle_value v)
{
	int64_t i = 0;

	assert_true(pickle_int(p, v, &i));
	return i;
}

static void assert_text(const struct pickle *p, pickle_value v,
			const char *want)
{
	size_t len = 0;
	const char *text = pickle_text(p, v, &len);

	assert_non_null(text);
	assert_int_equal(len, strlen(want));
	assert_memory_equal(text, want, len);
}

struct number {
	const char *bytes;
	size_t len;
	int64_t want;
};

static void numbers_have_their_signs(void **state)
{
	static const struct number numbers[] = {
		{ BYTES("\x80\2K\xff."), 255 },
		{ BYTES("\x80\2M\xff\xff."), 65535 },
		{ BYTES("\x80\2J\xfe\xff\xff\xff."), -2 },
		{ BYTES("\x80\2\x8a\0."), 0 },
		{ BYTES("\x80\2\x8a\1\xff."), -1 },
		{ BYTES("\x80\2\x8a\2\xff\0."), 255 },
		{ BYTES("\x80\2\x8a\5\0\0\0\0\2."), INT64_C(1) << 33 },
		{ BYTES("\x80\2\x8a\x8\xff\xff\xff\xff\xff\xff\xff\x7f."),
		  INT64_MAX },
		{ BYTES("\x80\2\x8a\x8\0\0\0\0\0\0\0\x80."), INT64_MIN },
		{ BYTES("\x80\2\x8b\1\0\0\0\x05."), 5 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
		struct pickle p = loaded(numbers[i].bytes, numbers[i].len);

		assert_true(int_of(&p, p.root) == numbers[i].want);
		assert_int_equal(p.end, numbers[i].len);
		pickle_release(&p);
	}
}

static void lists_and_dicts_keep_their_order(void **state)
{
	/* [1, 2], then 3 and (4,); the dict has a list put in between. */
	struct pickle p = loaded(BYTES("\x80\4](K\1K\2eK\3aK\4\x85"
				       "a."));
	struct pickle_walk w = pickle_walk(&p, p.root);
	pickle_value v;

	(void)state;
	assert_int_equal(pickle_kind(p.root), PICKLE_LIST);
	assert_int_equal(w.count, 4);
	for (int i = 1; i <= 3; i++) {
		assert_true(pickle_next(&w, &v));
		assert_int_equal(int_of(&p, v), i);
	}
	assert_true(pickle_next(&w, &v));
	assert_int_equal(pickle_kind(v), PICKLE_TUPLE);
	assert_false(pickle_next(&w, &v));
	pickle_release(&p);

	p = loaded(BYTES("\x80\4}\x8c\1a]K\1as\x8c\1b]K\2as."));
	w = pickle_walk(&p, p.root);
	assert_int_equal(pickle_kind(p.root), PICKLE_DICT);
	assert_int_equal(w.count, 4);
	assert_true(pickle_next(&w, &v));
	assert_text(&p, v, "a");
	assert_true(pickle_next(&w, &v));
	assert_true(pickle_next(&w, &v));
	assert_text(&p, v, "b");
	pickle_release(&p);
}

static void texts_of_every_length_are_found(void **state)
{
	static const struct {
		const char *bytes;
		size_t len;
	} texts[] = {
		{ BYTES("\x80\4\x8c\3abc.") },
		{ BYTES("\x80\4X\3\0\0\0abc.") },
		{ BYTES("\x80\4\x8d\3\0\0\0\0\0\0\0abc.") },
		{ BYTES("\x80\4\x43\3abc.") },
		{ BYTES("\x80\4"
			"B\3\0\0\0abc.") },
		{ BYTES("\x80\4\x8e\3\0\0\0\0\0\0\0abc.") },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
		struct pickle p = loaded(texts[i].bytes, texts[i].len);

		assert_text(&p, p.root, "abc");
		pickle_release(&p);
	}
}

static void objects_calls_and_members_are_noted(void **state)
{
	struct pickle p = loaded(BYTES("\x80\2"
				       "cm\nPoint\n)\x81}X\1\0\0\0xK\7sb."));
	struct pickle_walk w;
	pickle_value v;

	(void)state;
	assert_int_equal(pickle_kind(p.root), PICKLE_IS_OBJECT);
	assert_int_equal(pickle_class(&p, p.root)->id, ID_POINT);
	w = pickle_walk(&p, pickle_state(&p, p.root));
	assert_true(pickle_next(&w, &v));
	assert_text(&p, v, "x");
	pickle_release(&p);

	p = loaded(BYTES("\x80\4\x8c\1m\x8c\4Size\x93K\1K\2\x86\x85R."));
	assert_int_equal(pickle_kind(p.root), PICKLE_CALLED);
	assert_int_equal(pickle_class(&p, p.root)->id, ID_SIZE);
	w = pickle_walk(&p, pickle_arguments(p.root));
	assert_int_equal(w.count, 1);
	pickle_release(&p);

	p = loaded(BYTES("\x80\2"
			 "cbuiltins\ngetattr\ncm\nColor\nX\3\0\0\0RED\x86R."));
	assert_int_equal(pickle_class(&p, p.root)->id, ID_GETATTR);
	pickle_release(&p);
	p = loaded(BYTES("\x80\2"
			 "cm\nColor\nK\1\x85R."));
	assert_int_equal(pickle_class(&p, p.root)->id, ID_COLOR);
	pickle_release(&p);
	p = loaded(BYTES("\x80\2"
			 "cm\nfloat\n."));
	assert_int_equal(pickle_kind(p.root), PICKLE_IS_CLASS);
	pickle_release(&p);
}

static void the_memo_gives_back_what_was_put(void **state)
{
	/* [] and 5 are put, and popped; (5, []) comes from the memo. */
	struct pickle p =
		loaded(BYTES("\x80\4]\x94\x30K\5\x94\x30h\1h\0\x86."));
	struct pickle_walk w = pickle_walk(&p, p.root);
	pickle_value five, list;

	(void)state;
	assert_true(pickle_next(&w, &five));
	assert_true(pickle_next(&w, &list));
	assert_int_equal(int_of(&p, five), 5);
	assert_int_equal(pickle_kind(list), PICKLE_LIST);
	pickle_release(&p);
}

static void what_holds_itself_is_no_trouble(void **state)
{
	struct pickle p = loaded(BYTES("\x80\4]\x94h\0a."));
	struct pickle_walk w = pickle_walk(&p, p.root);
	pickle_value v;

	(void)state;
	assert_true(pickle_next(&w, &v));
	assert_true(v == p.root);
	assert_false(pickle_next(&w, &v));
	pickle_release(&p);
}

static void nothing_else_is_called(void **state)
{
	(void)state;
	assert_unknown(BYTES("\x80\2"
			     "cposix\nsystem\nX\2\0\0\0id\x85R."),
		       2, "GLOBAL: 'posix.system'");
	assert_unknown(BYTES("\x80\4\x8c\2os\x8c\6system\x93."), 14,
		       "STACK_GLOBAL: 'os.system'");
	assert_refused(BYTES("\x80\2"
			     "cbuiltins\ngetattr\ncm\nPoint\nX\1\0\0\0x\x86R."),
		       36, "REDUCE: 'builtins.getattr'");
	assert_refused(BYTES("\x80\2"
			     "cm\nPoint\n)R."),
		       12, "REDUCE: 'm.Point'");
	assert_refused(BYTES("\x80\2"
			     "cm\nPoint\nK\1\x85\x81."),
		       14, "NEWOBJ: 'm.Point'");
	assert_refused(BYTES("\x80\2"
			     "cm\nSize\n)\x81."),
		       11, "NEWOBJ: 'm.Size'");
	assert_refused(BYTES("\x80\2"
			     "cm\nfloat\n)R."),
		       12, "REDUCE: 'm.float'");
	assert_refused(BYTES("\x80\2"
			     "cm\nColor\nX\1\0\0\0x\x85R."),
		       18, "REDUCE: 'm.Color'");
	assert_refused(BYTES("\x80\2K\1)R."), 5, "no class");
	assert_unknown(BYTES("\x80\2"
			     "c\x1b[31m\n\xff\n."),
		       2, "'?[31m.?'");
}

static void opcodes_that_are_not_needed_are_refused_by_name(void **state)
{
	static const struct {
		const char *bytes;
		size_t len;
		const char *name;
	} others[] = {
		{ BYTES("\x80\2Pid\n."), "PERSID" },
		{ BYTES("\x80\2Q."), "BINPERSID" },
		{ BYTES("\x80\2\x82\1."), "EXT1" },
		{ BYTES("\x80\2im\nPoint\n."), "INST" },
		{ BYTES("\x80\2S'a'\n."), "STRING" },
		{ BYTES("\x80\2\x8f."), "EMPTY_SET" },
		{ BYTES("\x80\2\x92."), "NEWOBJ_EX" },
		{ BYTES("\x80\2\x96\1\0\0\0\0\0\0\0x."), "BYTEARRAY8" },
		{ BYTES("\x80\2\x97."), "NEXT_BUFFER" },
		{ BYTES("\x80\2\xff."), "0xff is no opcode" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++)
		assert_refused(others[i].bytes, others[i].len, 2,
			       others[i].name);
}

static void the_stack_is_never_left(void **state)
{
	(void)state;
	assert_refused(BYTES("\x80\2."), 2, "0 values");
	assert_refused(BYTES("\x80\2NN."), 4, "2 values");
	assert_refused(BYTES("\x80\2(N."), 4, "left");
	assert_refused(BYTES("\x80\2"
			     "0."),
		       2, "no mark");
	assert_refused(BYTES("\x80\2t."), 2, "no mark");
	assert_refused(BYTES("\x80\2N\x86."), 3, "not there");
	assert_refused(BYTES("\x80\2N(\x85."), 4, "not there");
	assert_refused(BYTES("\x80\2](a."), 4, "not there");
	assert_refused(BYTES("\x80\2Na."), 3, "not there");
	assert_refused(BYTES("\x80\2NNa."), 4, "no list");
	assert_refused(BYTES("\x80\2](NNu."), 6, "no dict");
	assert_refused(BYTES("\x80\2}(Nu."), 5, "without a value");
	assert_refused(BYTES("\x80\2NNb."), 4, "no object");
	assert_refused(BYTES("\x80\2"
			     "cm\nPoint\n)\x81}b}b."),
		       16, "second state");
	assert_refused(BYTES("\x80\2h\0."), 2, "memo of 0");
	assert_refused(BYTES("\x80\2Nr\xff\xff\xff\x7f."), 3, "memo of 0");
}

static void nothing_is_read_behind_the_end(void **state)
{
	static const char whole[] = "\x80\4\x95\x19\0\0\0\0\0\0\0"
				    "}\x94(\x8c\1a\x8a\3\0\0\1"
				    "X\1\0\0\0bG\1\2\3\4\5\6\7\x8u.";
	size_t len = sizeof(whole) - 1;
	struct pickle_error e;
	struct pickle p;

	(void)state;
	/* Exact copies, so that a sanitizer sees the first byte too far. */
	for (size_t cut = 0; cut < len; cut++) {
		uint8_t *copy = malloc(cut > 0 ? cut : 1);

		assert_non_null(copy);
		memcpy(copy, whole, cut);
		assert_int_equal(load(copy, cut, MEMORY, &p, &e), -EBADMSG);
		free(copy);
	}
}

static void frames_are_kept(void **state)
{
	struct pickle p = loaded(
		BYTES("\x80\4\x95\1\0\0\0\0\0\0\0N0\x95\2\0\0\0\0\0\0\0N."));

	(void)state;
	pickle_release(&p);
	assert_refused(BYTES("\x80\4\x95\3\0\0\0\0\0\0\0N."), 2, "a frame of");
	assert_refused(BYTES("\x80\4\x95\2\0\0\0\0\0\0\0X\1\0\0\0a."), 11,
		       "past its frame");
	assert_refused(BYTES("\x80\4\x95\x10\0\0\0\0\0\0\0\x95\2\0\0\0\0\0\0\0"
			     "N.      "),
		       11, "a frame in a frame");
	assert_refused(BYTES("\x80\6N."), 0, "protocol 6");
	assert_refused(BYTES("\x80\1N."), 0, "protocol 1");
	assert_refused(BYTES("N."), 0, "protocol 2");
	assert_refused(BYTES(""), 0, "ends before");
}

static void limits_are_kept(void **state)
{
	SCOPED(scope_free) uint8_t *many = malloc(200003);
	struct pickle_error e;
	struct pickle p;

	(void)state;
	assert_non_null(many);
	memcpy(many, "\x80\4", 2);
	memset(many + 2, '(', 2000);
	assert_refused(many, 2002, 2 + PICKLE_MARKS_MAX, "deep");
	memset(many + 2, ']', 200000);
	assert_int_equal(load(many, 200002, MEMORY, &p, &e), -EFBIG);
	assert_refused(BYTES("\x80\4\x8b\x9\0\0\0\1\1\1\1\1\1\1\1\1."), 2,
		       "64 bits");
	assert_refused(BYTES("\x80\4\x8d\0\0\0\0\0\0\0\x80."), 2, "at most");
}

static const struct pickle_class open_classes[] = {
	{ NULL, NULL, PICKLE_OTHER, 1 },
	{ NULL, NULL, PICKLE_PERSISTENT, 2 },
	{ "collections", "OrderedDict", PICKLE_MAKES_DICT, 3 },
};

static struct pickle loaded_open(const void *data, size_t len)
{
	struct pickle_error e = { 0, "" };
	struct pickle p;
	int rc = pickle_load(data, len, open_classes, 3, MEMORY, &p, &e);

	if (rc < 0)
		fail_msg("%d at %zu: %s", rc, e.offset, e.what);
	return p;
}

/* What is not known is an object, whatever is done to it. */
static void an_open_reader_passes_over_what_it_does_not_know(void **state)
{
	static const struct number others[] = {
		{ BYTES("\x80\x02" "cos\nsystem\n(X\1\0\0\0xtR."), 0 },
		{ BYTES("\x80\x02" "ca\nB\n)\x81}b."), 0 },
		{ BYTES("\x80\x02" "ca\nB\n)R(K\1K\2e(K\1K\2uK\1a}b."), 0 },
		{ BYTES("\x80\x02" "ca\nB\n)R)R."), 0 },
		{ BYTES("\x80\x04\x8f(K\1\x90."), 0 },
		{ BYTES("\x80\x04(K\1\x91."), 0 },
		{ BYTES("\x80\x04" "ca\nB\n)}\x92."), 0 },
		{ BYTES("\x80\x02\x8a\x09" "123456789."), 0 },
	};
	struct pickle p;

	(void)state;
	for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++) {
		p = loaded_open(others[i].bytes, others[i].len);
		assert_int_equal(pickle_kind(p.root), PICKLE_IS_OBJECT);
		assert_int_equal(pickle_class(&p, p.root)->id, 1);
		pickle_release(&p);
	}
	p = loaded_open(BYTES("\x80\x02K\x07Q."));
	assert_int_equal(pickle_kind(p.root), PICKLE_CALLED);
	assert_int_equal(pickle_class(&p, p.root)->id, 2);
	pickle_release(&p);
	p = loaded_open(BYTES("\x80\x02" "ccollections\nOrderedDict\n)R"
			      "K\1K\2s}b."));
	assert_int_equal(pickle_kind(p.root), PICKLE_DICT);
	assert_int_equal(pickle_walk(&p, p.root).count, 2);
	pickle_release(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(numbers_have_their_signs),
		cmocka_unit_test(lists_and_dicts_keep_their_order),
		cmocka_unit_test(texts_of_every_length_are_found),
		cmocka_unit_test(objects_calls_and_members_are_noted),
		cmocka_unit_test(the_memo_gives_back_what_was_put),
		cmocka_unit_test(what_holds_itself_is_no_trouble),
		cmocka_unit_test(nothing_else_is_called),
		cmocka_unit_test(
			opcodes_that_are_not_needed_are_refused_by_name),
		cmocka_unit_test(the_stack_is_never_left),
		cmocka_unit_test(nothing_is_read_behind_the_end),
		cmocka_unit_test(frames_are_kept),
		cmocka_unit_test(limits_are_kept),
		cmocka_unit_test(
			an_open_reader_passes_over_what_it_does_not_know),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
