/*
 * step_print.c - a step's tensors and findings, for people and as JSON. The
 * JSON is printed piece by piece: a tree of a million tensors is not made.
 */
#include <stdio.h>

#include "fuse/ctl/ctl.h"
#include "fuse/ctl/step.h"
#include "store/base/scope.h"

/* More tensors are counted, but not printed, for people. */
#define TENSORS_SHOWN 64
/* Of those that one tensor shares its bytes with. */
#define SHARED_SHOWN 16

void step_print_name(const struct tensor *t)
{
	SCOPED(scope_free) char *line = NULL;

	CHECK(asprintf(&line, "%s%s%s", t->file ? t->file : "",
		       t->file ? ": " : "", t->name) >= 0); /* out of memory */
	ctl_print_line(line);
}

void step_print_shape(const uint64_t *shape, size_t rank, int width)
{
	int printed = shape ? ctl_print_numbers("", shape, rank) : printf("-");

	(void)printf("%*s", printed < width ? width - printed : 0, "");
}

void step_print_findings(const struct closure *found, const char *indent)
{
	for (size_t i = 0; i < found->count; i++) {
		const struct closure_finding *f = &found->findings[i];

		SCOPED(scope_free) char *line = NULL;

		CHECK(asprintf(&line, "%s%s: %s%s%s: %s", indent,
			       closure_kind_name(f->kind),
			       f->file ? f->file : "",
			       f->file && f->item ? ", " : "",
			       f->item ? f->item : "",
			       f->what) >= 0); /* out of memory */
		ctl_print_line(line);
	}
}

static void print_digest(const struct step_extra *x)
{
	for (size_t i = 0; i < STEP_DIGEST_BYTES; i++)
		(void)printf("%02x", x->digest[i]);
}

void step_print(const struct step *s, bool all)
{
	(void)printf("  %-16s%s\n", "format", s->in.format);
	if (s->note)
		(void)printf("  %-16s%s\n", "note", s->note);
	if (s->in.tensors.count > 0)
		(void)printf("  %-16s%s\n  %-16s%s\n    %-14s %-20s %14s "
			     "%14s  %s%s\n",
			     "structure", s->in.signature, "tensors",
			     ctl_count(s->in.tensors.count), "dtype", "shape",
			     "offset", "bytes",
			     s->extra ? "digest                            "
				      : "",
			     "name");
	for (size_t i = 0; i < s->in.tensors.count; i++) {
		const struct tensor *t = &s->in.tensors.all[i];

		if (i == TENSORS_SHOWN && !all) {
			(void)printf("    ... and %s more (all with --all)\n",
				     ctl_count(s->in.tensors.count - i));
			break;
		}
		(void)printf("    %-14s", t->dtype ? ctl_shown(t->dtype) : "-");
		(void)putchar(' ');
		step_print_shape(t->dtype ? t->shape : NULL, t->rank, 20);
		(void)printf(" %14llu %14llu  ", (unsigned long long)t->offset,
			     (unsigned long long)t->bytes);
		if (s->extra && s->extra[i].digested) {
			print_digest(&s->extra[i]);
			(void)printf("%c ", s->extra[i].next != i ? '*' : ' ');
		}
		step_print_name(t);
	}
	step_print_findings(&s->in.closure, "  ");
}

static void print_shared(const struct step *s, uint32_t index)
{
	unsigned count = 0;

	(void)printf(", \"shared_with\": [");
	for (uint32_t i = s->extra[index].next;
	     i != index && count < SHARED_SHOWN; i = s->extra[i].next) {
		(void)printf("%s{\"name\": ", count++ > 0 ? ", " : "");
		ctl_print_string("", s->in.tensors.all[i].name);
		if (s->in.tensors.all[i].file) {
			ctl_print_string(", \"file\": ",
					 s->in.tensors.all[i].file);
		}
		(void)printf("}");
	}
	(void)printf("]");
}

/* Of which type it is: of bytes that are no tensor there is none. */
static void print_type(const struct tensor *t)
{
	(void)printf("\"dtype\": ");
	if (!t->dtype) {
		(void)printf("null, \"shape\": null");
		return;
	}
	ctl_print_string("", t->dtype);
	ctl_print_numbers(", \"shape\": ", t->shape, t->rank);
}

static void print_place(const struct step *s, const struct tensor *t)
{
	(void)printf(", \"offset\": %llu, \"bytes\": %llu, \"file\": ",
		     (unsigned long long)t->offset,
		     (unsigned long long)t->bytes);
	ctl_print_string("", t->file ? t->file : s->path);
}

void step_print_side(const struct step *s, const struct tensor *t)
{
	(void)printf("{");
	print_type(t);
	if (!s->is_logical)
		print_place(s, t);
	(void)printf("}");
}

static void print_tensor_json(const struct step *s, uint32_t index)
{
	const struct tensor *t = &s->in.tensors.all[index];

	ctl_print_string("\n\t\t{\"name\": ", t->name);
	(void)printf(", ");
	print_type(t);
	if (t->strides) {
		ctl_print_numbers(", \"strides\": ", t->strides, t->rank);
	}
	if (t->place && t->dtype) {
		ctl_print_numbers(", \"place\": ", t->place, t->rank);
	}
	if (t->whole) {
		ctl_print_numbers(", \"whole_shape\": ", t->whole, t->rank);
	}
	print_place(s, t);
	if (s->extra && s->extra[index].digested) {
		(void)printf(", \"digest\": \"");
		print_digest(&s->extra[index]);
		(void)putchar('"');
		print_shared(s, index);
	}
	(void)printf("}");
}

void step_print_findings_json(const struct closure *found)
{
	(void)printf(",\n\t\"findings\":\t[");
	for (size_t i = 0; i < found->count; i++) {
		const struct closure_finding *f = &found->findings[i];

		(void)printf("%s\n\t\t{\"kind\": \"%s\", \"item\": ",
			     i > 0 ? "," : "", closure_kind_name(f->kind));
		ctl_print_string("", f->item ? f->item : "");
		ctl_print_string(", \"file\": ", f->file ? f->file : "");
		ctl_print_string(", \"what\": ", f->what);
		(void)printf("}");
	}
	(void)printf("]");
}

void step_print_json(const struct step *s, cJSON *head)
{
	const cJSON *backend = ctl_member(s->megatron, "sharded_backend");
	const cJSON *version =
		ctl_member(s->megatron, "sharded_backend_version");
	cJSON *errors = cJSON_CreateArray();

	for (size_t i = 0; i < s->in.error_count; i++) {
		cJSON *one = cJSON_CreateObject();

		ctl_add_text(one, "file", s->in.errors[i].file);
		ctl_add_text(one, "what", s->in.errors[i].what);
		(void)cJSON_AddItemToArray(errors, one);
	}
	ctl_add_text(head, "format", s->in.format);
	if (s->note)
		ctl_add_text(head, "note", s->note);
	ctl_add_text(head, "structure", s->in.signature);
	if (cJSON_IsString(backend))
		ctl_add_text(head, "sharded_backend", backend->valuestring);
	if (cJSON_IsNumber(version))
		(void)cJSON_AddNumberToObject(head, "sharded_backend_version",
					      version->valuedouble);
	(void)cJSON_AddItemToObject(head, "errors", errors);
	ctl_print_open(head);
	if (s->is_folder)
		step_print_findings_json(&s->in.closure);
	(void)printf(",\n\t\"tensors\":\t[");
	for (size_t i = 0; i < s->in.tensors.count; i++) {
		(void)printf("%s", i > 0 ? "," : "");
		print_tensor_json(s, (uint32_t)i);
	}
	(void)printf("]\n}\n");
}
