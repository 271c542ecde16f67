/*
 * compare_kind.c - what a tensor is saved for, by the words in its name and in
 * that of its file. What says nothing is of the model: to take something for
 * less than that lets its loss pass.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "store/step/compare.h"
#include "store/step/step_name.h"

#define COUNT(a) (sizeof(a) / sizeof(*(a)))

static const char *const model_words[] = { "model", "models", "module" };
static const char *const optimizer_words[] = { "optim", "optims", "optimizer",
					       "optimizers", "opt_state" };
/* Of an optimizer wherever it stands: model.layer.weight.exp_avg. */
static const char *const moment_words[] = { "exp_avg", "momentum_buffer" };
static const char *const beside_words[] = {
	"rng",         "scheduler", "schedulers", "dataloader",
	"dataloaders", "loader",    "sampler",    "callbacks",
};
static const char *const adapter_words[] = { "lora", "adapter", "adapters" };

/* Where one of the words ends first in text[0, len); len + 1: nowhere. */
static size_t find(const char *text, size_t len, const char *const words[],
		   size_t count)
{
	for (size_t end = 1; end <= len; end++) {
		if (end < len && isalpha((unsigned char)text[end]))
			continue;
		for (size_t i = 0; i < count; i++)
			if (step_name_word_ends(text, end, words[i]))
				return end;
	}
	return len + 1;
}

/* What the text is called after, by the word that comes first. */
static enum compare_kind called_after(const char *text, size_t len,
				      bool *ret_says)
{
	size_t model = find(text, len, model_words, COUNT(model_words));
	size_t optim = find(text, len, optimizer_words, COUNT(optimizer_words));
	size_t beside = find(text, len, beside_words, COUNT(beside_words));

	*ret_says = model <= len || optim <= len || beside <= len;
	if (model < optim && model < beside)
		return COMPARE_MODEL;
	return optim < beside  ? COMPARE_OPTIMIZER
	       : beside <= len ? COMPARE_BESIDE
			       : COMPARE_MODEL;
}

/*
 * What a file is called after: its own name, else the nearest folder that says
 * something. model_optim_rng.pt has all of it, and begins with the model.
 */
static enum compare_kind file_kind(const char *file)
{
	size_t end = strlen(file);

	for (;;) {
		size_t at = end;
		enum compare_kind kind;
		bool says;

		while (at > 0 && file[at - 1] != '/')
			at--;
		kind = called_after(file + at, end - at, &says);
		if (says || at == 0)
			return kind;
		end = at - 1;
	}
}

enum compare_kind compare_kind(const struct tensor *t)
{
	const char *file = t->file ? t->file : "";
	size_t len = strlen(t->name), file_len = strlen(file);
	enum compare_kind kind = file_kind(file);
	bool says;

	if (kind != COMPARE_MODEL)
		return kind;
	if (find(t->name, len, moment_words, COUNT(moment_words)) <= len)
		return COMPARE_OPTIMIZER;
	kind = called_after(t->name, len, &says);
	if (kind != COMPARE_MODEL)
		return kind;
	return find(t->name, len, adapter_words, COUNT(adapter_words)) <= len ||
			       find(file, file_len, adapter_words,
				    COUNT(adapter_words)) <= file_len
		       ? COMPARE_ADAPTER
		       : COMPARE_MODEL;
}
