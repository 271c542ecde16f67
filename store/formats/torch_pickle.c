/*
 * torch_pickle.c - the tensors in the data.pkl of a torch.save archive.
 *
 * What is known: dicts (also ordered ones), lists and tuples, and what torch
 * calls to rebuild a tensor or a parameter from a storage, which is a
 * persistent id ('storage', type, key, device, count). Everything else is an
 * object that nothing is known of. A tensor's name is the way to it: keys and
 * indexes with dots between them. The graph may have cycles and may share
 * parts, so the way's length and the number of steps are bounded.
 */
#include "store/formats/torch_pickle.h"

#include <inttypes.h>

#include "store/base/scope.h"
#include "store/base/utf8.h"
#include "store/formats/dcp.h"
#include "store/formats/pickle.h"

#define DEPTH_MAX 64
#define MEMORY_BYTES_MAX (size_t)(UINT64_C(2) << 30)
/* Steps on the way through it, for each byte of the pickle. */
#define STEPS_PER_BYTE 4

enum class_id {
	CLASS_OTHER,
	CLASS_DICT,
	CLASS_SIZE,
	CLASS_STORAGE_ID,
	CLASS_TENSOR, /* storage, offset, size, stride, ... */
	CLASS_TENSOR_V3, /* the same; dtype is the seventh */
	CLASS_PARAMETER, /* tensor, ... */
	CLASS_SUBCLASS, /* function, type, arguments, state */
	CLASS_BYTES_STORAGE,
	CLASS_RERUN_STATE, /* number; 0: nothing is to be run again */
	CLASS_GETATTR, /* class, name: how Python 3.11 has an enum's value */
	CLASS_DTYPE, /* and those that follow: dtypes, then their storages */
};

static const struct pickle_class known[] = {
	{ NULL, NULL, PICKLE_OTHER, CLASS_OTHER },
	{ NULL, NULL, PICKLE_PERSISTENT, CLASS_STORAGE_ID },
	{ "collections", "OrderedDict", PICKLE_MAKES_DICT, CLASS_DICT },
	{ "collections", "defaultdict", PICKLE_MAKES_DICT, CLASS_DICT },
	{ "torch", "Size", PICKLE_CALL, CLASS_SIZE },
	{ "torch._utils", "_rebuild_tensor", PICKLE_CALL, CLASS_TENSOR },
	{ "torch._utils", "_rebuild_tensor_v2", PICKLE_CALL, CLASS_TENSOR },
	{ "torch._utils", "_rebuild_qtensor", PICKLE_CALL, CLASS_TENSOR },
	{ "torch._utils", "_rebuild_tensor_v3", PICKLE_CALL, CLASS_TENSOR_V3 },
	{ "torch._utils", "_rebuild_parameter", PICKLE_CALL, CLASS_PARAMETER },
	{ "torch._utils", "_rebuild_parameter_with_state", PICKLE_CALL,
	  CLASS_PARAMETER },
	{ "torch._tensor", "_rebuild_from_type_v2", PICKLE_CALL,
	  CLASS_SUBCLASS },
	{ "torch.storage", "UntypedStorage", PICKLE_CONSTANT,
	  CLASS_BYTES_STORAGE },
	{ "torch", "UntypedStorage", PICKLE_CONSTANT, CLASS_BYTES_STORAGE },
	{ "megatron.core.rerun_state_machine", "RerunState", PICKLE_CALL,
	  CLASS_RERUN_STATE },
	{ "builtins", "getattr", PICKLE_CALL, CLASS_GETATTR },
	{ "__builtin__", "getattr", PICKLE_CALL, CLASS_GETATTR },
};
#define KNOWN (sizeof(known) / sizeof(*known))

static const struct {
	const char *storage, *dtype;
} storages_of[] = {
	{ "DoubleStorage", "float64" },
	{ "FloatStorage", "float32" },
	{ "HalfStorage", "float16" },
	{ "BFloat16Storage", "bfloat16" },
	{ "LongStorage", "int64" },
	{ "IntStorage", "int32" },
	{ "ShortStorage", "int16" },
	{ "CharStorage", "int8" },
	{ "ByteStorage", "uint8" },
	{ "BoolStorage", "bool" },
	{ "ComplexFloatStorage", "complex64" },
	{ "ComplexDoubleStorage", "complex128" },
	{ "QInt8Storage", "qint8" },
	{ "QUInt8Storage", "quint8" },
	{ "QInt32Storage", "qint32" },
	{ "QUInt4x2Storage", "quint4x2" },
	{ "QUInt2x4Storage", "quint2x4" },
};
#define STORAGES (sizeof(storages_of) / sizeof(*storages_of))

struct reading {
	struct pickle p;
	struct tensors *list;
	const struct tensor_storages *storages;
	const char *file;
	uint64_t steps_left;
	size_t name_len;
	char name[TENSOR_NAME_BYTES_MAX + 1];
};

static size_t classes_fill(struct pickle_class ret[PICKLE_CLASSES_MAX])
{
	size_t n = KNOWN;

	memcpy(ret, known, sizeof(known));
	n += dcp_dtype_classes(ret + n, CLASS_DTYPE);
	CHECK(n + STORAGES <= PICKLE_CLASSES_MAX);
	for (size_t i = 0; i < STORAGES; i++) {
		const struct pickle_class *dtype = &ret[KNOWN];

		while (strcmp(dtype->name, storages_of[i].dtype) != 0) {
			dtype++;
			CHECK(dtype < ret + n);
		}
		ret[n] = *dtype;
		ret[n++].name = storages_of[i].storage;
	}
	return n;
}

/* What is wrong with the tensor that is being read. Yields -EBADMSG. */
#define BAD(r, format, ...)                                            \
	tensors_refuse((r)->list, "tensor '%.200s'" format, (r)->name, \
		       ##__VA_ARGS__)
/* It may be in order, and is not what is known here. Yields -EOPNOTSUPP. */
#define NOT_KNOWN(...) ((void)tensors_refuse(__VA_ARGS__), -EOPNOTSUPP)
#define ODD(r, what) NOT_KNOWN((r)->list, "tensor '%.200s'" what, (r)->name)

/* --- A tensor ------------------------------------------------------------- */

static bool is_call(const struct reading *r, pickle_value v, uint32_t id)
{
	const struct pickle_class *c = pickle_class(&r->p, v);

	return c && pickle_kind(v) == PICKLE_CALLED && c->id == id;
}

/* The first `count` of a tuple; false: it has fewer. */
static bool take(const struct reading *r, pickle_value tuple, size_t count,
		 pickle_value *ret)
{
	struct pickle_walk w = pickle_walk(&r->p, tuple);

	if (pickle_kind(tuple) != PICKLE_TUPLE || w.count < count)
		return false;
	for (size_t i = 0; i < count; i++)
		(void)pickle_next(&w, &ret[i]);
	return true;
}

static bool numbers(const struct reading *r, pickle_value v,
		    uint64_t ret[TENSOR_RANK_MAX], unsigned *ret_count)
{
	return pickle_naturals(&r->p, v, CLASS_SIZE, ret, TENSOR_RANK_MAX,
			       ret_count);
}

/* Elements from its first to behind its last; false: too many. */
static bool span(const struct tensor *t, const uint64_t *strides, bool *ret_c,
		 uint64_t *ret)
{
	uint64_t dense = 1, last = 0, step;

	*ret_c = true;
	*ret = 0;
	for (unsigned i = 0; i < t->rank; i++)
		if (t->shape[i] == 0)
			return true;
	for (unsigned i = t->rank; i-- > 0;) {
		if (t->shape[i] > 1 && strides[i] != dense)
			*ret_c = false;
		if (__builtin_mul_overflow(t->shape[i] - 1, strides[i],
					   &step) ||
		    __builtin_add_overflow(last, step, &last) ||
		    __builtin_mul_overflow(dense, t->shape[i], &dense))
			return false;
	}
	return !__builtin_add_overflow(last, UINT64_C(1), ret);
}

/* ('storage', type, key, device, count) */
static int storage(struct reading *r, pickle_value id,
		   const struct dcp_dtype **dtype, uint64_t *ret_at,
		   uint64_t *ret_bytes)
{
	pickle_value a[5];
	const char *key;
	size_t key_len;

	if (!is_call(r, id, CLASS_STORAGE_ID) ||
	    !take(r, pickle_arguments(id), 1, a) || !take(r, a[0], 5, a))
		return ODD(r, ": its storage is not understood");
	key = pickle_text(&r->p, a[2], &key_len);
	if (!pickle_is_text(&r->p, a[0], "storage") || !key)
		return ODD(r, ": its storage is not understood");
	if (!*dtype)
		*dtype = dcp_dtype_of(&r->p, a[1], CLASS_DTYPE);
	if (!*dtype)
		return ODD(r, ": its dtype is not understood");
	if (r->storages->find(r->storages->self, key, key_len, ret_at,
			      ret_bytes) < 0)
		return BAD(r, ": its storage '%.*s' is not in the archive",
			   key_len < 40 ? (int)key_len : 40,
			   utf8_is(key, key_len) ? key : "?");
	return 0;
}

static int add_tensor(struct reading *r, pickle_value args, bool is_v3)
{
	uint64_t shape[TENSOR_RANK_MAX], strides[TENSOR_RANK_MAX];
	struct tensor t = { .name = r->name, .file = r->file, .shape = shape };
	const struct dcp_dtype *dtype = NULL;
	uint64_t at, bytes, first, begin, length, element;
	pickle_value a[7] = { 0 };
	unsigned stride_count = 0;
	bool dense;
	int rc;

	if (!take(r, args, is_v3 ? 7 : 4, a) ||
	    !pickle_natural(&r->p, a[1], &first) ||
	    !numbers(r, a[2], shape, &t.rank) ||
	    !numbers(r, a[3], strides, &stride_count) ||
	    stride_count != t.rank || !span(&t, strides, &dense, &length))
		return ODD(r, " is not understood");
	if (is_v3)
		dtype = dcp_dtype_of(&r->p, a[6], CLASS_DTYPE);
	rc = storage(r, a[0], &dtype, &at, &bytes);
	if (rc < 0)
		return rc;
	element = dtype->bits ? dtype->bits / 8 : 1;
	if (__builtin_mul_overflow(first, element, &begin) ||
	    __builtin_mul_overflow(length, element, &length) ||
	    (length > 0 && (begin > bytes || length > bytes - begin)))
		return BAD(r, " goes beyond its storage of %" PRIu64 " bytes",
			   bytes);
	t.dtype = dtype->name;
	t.strides = dense ? NULL : strides;
	t.offset = at + (length > 0 ? begin : 0);
	t.bytes = length;
	return tensors_add(r->list, &t);
}

/* 1: it is a tensor, and added; 0: it is none; or -errno. */
static int tensor(struct reading *r, pickle_value v)
{
	for (unsigned depth = 0; depth < DEPTH_MAX; depth++) {
		const struct pickle_class *c = pickle_class(&r->p, v);
		pickle_value args = pickle_arguments(v), a[3];
		int rc;

		if (!c || pickle_kind(v) != PICKLE_CALLED)
			return 0;
		if (c->id == CLASS_SUBCLASS) {
			if (!take(r, args, 3, a))
				return 0;
			c = pickle_class(&r->p, a[0]);
			args = a[2];
			if (!c || pickle_kind(a[0]) != PICKLE_IS_CLASS)
				return 0;
		}
		if (c->id == CLASS_TENSOR || c->id == CLASS_TENSOR_V3) {
			rc = add_tensor(r, args, c->id == CLASS_TENSOR_V3);
			return rc < 0 ? rc : 1;
		}
		if (c->id != CLASS_PARAMETER || !take(r, args, 1, &v))
			return 0;
	}
	return 0;
}

/* --- The way there -------------------------------------------------------- */

static int name_push(struct reading *r, const char *text, size_t len)
{
	size_t dot = r->name_len > 0;

	if (len > TENSOR_NAME_BYTES_MAX - r->name_len - dot ||
	    r->name_len + dot > TENSOR_NAME_BYTES_MAX)
		return NOT_KNOWN(r->list,
				 "a name of more than %u bytes after '%.100s'",
				 TENSOR_NAME_BYTES_MAX, r->name);
	if (dot)
		r->name[r->name_len++] = '.';
	memcpy(r->name + r->name_len, text, len);
	r->name_len += len;
	r->name[r->name_len] = 0;
	return 0;
}

/* A key that is a number, or a text that can be shown; others count from 0. */
static int name_push_key(struct reading *r, pickle_value key, uint64_t index)
{
	char number[32];
	const char *text;
	size_t len = 0;
	int64_t i;

	text = pickle_text(&r->p, key, &len);
	if (text && pickle_kind(key) == PICKLE_TEXT && utf8_is(text, len) &&
	    !memchr(text, 0, len))
		return name_push(r, text, len);
	if (pickle_int(&r->p, key, &i))
		(void)snprintf(number, sizeof(number), "%" PRId64, i);
	else
		(void)snprintf(number, sizeof(number), "%" PRIu64, index);
	return name_push(r, number, strlen(number));
}

/*
 * What Megatron-LM's validate_state_dict() goes by. An item of a .metadata is
 * a list of one.
 */
static bool is_rerun(const struct reading *r, pickle_value v)
{
	const char *name = strncmp(r->name, "0.", 2) ? r->name : r->name + 2;
	pickle_value a[2], args = pickle_arguments(v);
	const struct pickle_class *c;
	int64_t state;

	if (strcmp(name, "rerun_state_machine.state") != 0)
		return false;
	if (is_call(r, v, CLASS_RERUN_STATE))
		return take(r, args, 1, a) && pickle_int(&r->p, a[0], &state) &&
		       state != 0;
	if (!is_call(r, v, CLASS_GETATTR) || !take(r, args, 2, a))
		return false;
	c = pickle_class(&r->p, a[0]);
	return c && c->id == CLASS_RERUN_STATE &&
	       pickle_kind(a[1]) == PICKLE_TEXT &&
	       !pickle_is_text(&r->p, a[1], "NOT_RUNNING_YET");
}

struct level {
	pickle_value of;
	struct pickle_walk walk;
	bool dict;
	uint64_t index;
	size_t name_len;
};

static bool is_container(pickle_value v)
{
	enum pickle_kind k = pickle_kind(v);

	return k == PICKLE_DICT || k == PICKLE_LIST || k == PICKLE_TUPLE;
}

static struct level level_of(const struct reading *r, pickle_value v)
{
	return (struct level){ .of = v,
			       .walk = pickle_walk(&r->p, v),
			       .dict = pickle_kind(v) == PICKLE_DICT,
			       .name_len = r->name_len };
}

/* The way is in it already. */
static bool is_in(const struct level *levels, unsigned depth, pickle_value v)
{
	for (unsigned i = 0; i < depth; i++)
		if (levels[i].of == v)
			return true;
	return false;
}

static int search(struct reading *r, pickle_value root)
{
	struct level levels[DEPTH_MAX];
	unsigned depth = 0;
	int rc = tensor(r, root);

	if (rc != 0 || !is_container(root))
		return rc < 0 ? rc : 0;
	levels[depth++] = level_of(r, root);
	while (depth > 0) {
		struct level *l = &levels[depth - 1];
		pickle_value key = 0, v;

		r->name_len = l->name_len;
		r->name[r->name_len] = 0;
		if ((l->dict && !pickle_next(&l->walk, &key)) ||
		    !pickle_next(&l->walk, &v)) {
			depth--;
			continue;
		}
		if (r->steps_left-- == 0)
			return NOT_KNOWN(r->list,
					 "has more in it than its length "
					 "allows: the same things again and "
					 "again");
		rc = 0;
		if (is_container(v) || pickle_kind(v) == PICKLE_CALLED) {
			rc = name_push_key(r, key, l->index);
			if (rc == 0 && is_rerun(r, v))
				r->list->reruns = true;
			if (rc == 0)
				rc = tensor(r, v);
		}
		l->index++;
		if (rc < 0)
			return rc;
		if (rc > 0 || !is_container(v) || is_in(levels, depth, v))
			continue;
		if (depth == DEPTH_MAX)
			return NOT_KNOWN(
				r->list,
				"nested more than %d deep, at '%.200s'",
				DEPTH_MAX, r->name);
		levels[depth++] = level_of(r, v);
	}
	return 0;
}

int torch_pickle_read(struct tensors *l, const void *data, size_t len,
		      const struct tensor_storages *storages, const char *file)
{
	SCOPED(scope_free) struct reading *r = calloc(1, sizeof(*r));
	struct pickle_class classes[PICKLE_CLASSES_MAX];
	struct pickle_error error = { 0, "" };
	size_t count = classes_fill(classes), may = memory_left(l->budget);
	int rc;

	if (!r)
		return -ENOMEM;
	r->list = l;
	r->storages = storages;
	r->file = file;
	r->steps_left = STEPS_PER_BYTE * (uint64_t)len + 16;
	if (may > (l->bytes_max ? l->bytes_max : MEMORY_BYTES_MAX))
		may = l->bytes_max ? l->bytes_max : MEMORY_BYTES_MAX;
	rc = pickle_load(data, len, classes, count, may, &r->p, &error);
	if (rc == -EBADMSG || rc == -EFBIG || rc == -EOPNOTSUPP)
		(void)tensors_refuse(l, "data.pkl, offset %zu: %s",
				     error.offset, error.what);
	if (rc < 0)
		return rc;
	rc = search(r, r->p.root);
	pickle_release(&r->p);
	return rc;
}
