/*
 * check_names.c - the part of the check that looks at names: A, E, L, O, U, W
 * and X. After it every inode's record, its names in directories, its link
 * counts and the tree are known to agree, or were reported.
 */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "store/base/scope.h"
#include "store/base/vec.h"
#include "store/check/check_work.h"

#define ADVICE_TREE "mount it, copy the files to a new store"

/* The name at the end of a key. False: it cannot be the name of anything. */
static bool name_take(const struct check_record *r, size_t at,
		      char ret[STORE_NAME_MAX + 1])
{
	size_t len;

	if (r->key_len <= at || r->key_len - at > STORE_NAME_MAX)
		return false;
	len = r->key_len - at;
	memcpy(ret, r->key + at, len);
	ret[len] = 0;
	return strlen(ret) == len && !strchr(ret, '/') &&
	       strcmp(ret, ".") != 0 && strcmp(ret, "..") != 0;
}

static bool is_type(uint32_t mode)
{
	return S_ISREG(mode) || S_ISDIR(mode) || S_ISLNK(mode) ||
	       S_ISFIFO(mode) || S_ISSOCK(mode) || S_ISCHR(mode) ||
	       S_ISBLK(mode);
}

static const char *type_word(uint32_t mode)
{
	if (S_ISREG(mode))
		return "a file";
	if (S_ISDIR(mode))
		return "a directory";
	return S_ISLNK(mode) ? "a symbolic link" : "a special file";
}

/* A: fills the table of inodes. */
static int check_attr(struct check *c, const struct check_record *r)
{
	struct attr a;
	int rc;

	if (r->key_len != 9 || get_be64(r->key + 1) == 0)
		return check_report_record(c, r);
	rc = attr_decode(r->value, r->value_len, &a);
	if (rc == -ENOMEM)
		return rc;
	if (rc < 0)
		return check_report_record(c, r);
	rc = vec_grow(&c->inodes, c->inode_count, &c->inode_capacity,
		      sizeof(*c->inodes));
	if (rc == 0)
		c->inodes[c->inode_count++] = (struct check_inode){
			.ino = get_be64(r->key + 1),
			.parent = a.parent,
			.name_hash = name_hash(a.name),
			.mode = a.mode,
			.nlink = a.nlink,
		};
	if (!check_number(c, a.mtime_gen))
		check_report(c, "number", check_path(c, get_be64(r->key + 1)),
			     "its time was set with the number %llu, which no "
			     "store gives, so that it is that of all that is "
			     "saved there; set it again",
			     (unsigned long long)a.mtime_gen);
	if (!is_type(a.mode) || S_ISLNK(a.mode) != (a.target != NULL))
		check_report_record(c, r);
	attr_release(&a);
	return rc;
}

/* O and U say no more of an inode than that they are there. */
static int check_flag(struct check *c, const struct check_record *r)
{
	struct check_inode *i;

	if (r->key_len != 9)
		return check_report_record(c, r);
	i = check_inode_of(c, r, false);
	if (i)
		i->flags |= r->key[0] == 'O' ? INODE_UNLINKED : INODE_FRESH;
	return 0;
}

static int check_xattr(struct check *c, const struct check_record *r)
{
	if (r->key_len < 10 || r->key_len - 9 > STORE_NAME_MAX ||
	    memchr(r->key + 9, 0, r->key_len - 9))
		return check_report_record(c, r);
	(void)check_inode_of(c, r, false);
	return 0;
}

static int check_writer(struct check *c, const struct check_record *r)
{
	struct check_inode *i;
	struct writer w;

	if (r->key_len != 9 || writer_decode(r->value, r->value_len, &w) < 0)
		return check_report_record(c, r);
	i = check_inode_of(c, r, false);
	if (i && !S_ISREG(i->mode)) /* only files are written */
		check_report_record(c, r);
	return 0;
}

/* A further name must be in L too. */
static int check_further(struct check *c, uint64_t ino, uint64_t parent,
			 const char *name)
{
	int rc = record_find(c->kv, key_link(ino, parent, name));

	if (rc == -ENOENT) {
		check_report(c, "link", check_path(c, parent),
			     "the name '%s' leads to inode %llu, which does "
			     "not know of this name; " ADVICE_TREE,
			     name, (unsigned long long)ino);
		return 0;
	}
	return rc < 0 ? check_database_failed(c, rc) : 0;
}

/* Both ends of a name exist: count it. */
static int count_name(struct check *c, struct check_inode *parent,
		      struct check_inode *i, const char *name)
{
	i->names++;
	if (S_ISDIR(i->mode)) {
		parent->subdirs++;
		i->up = parent->ino;
	}
	if (i->parent == parent->ino && i->name_hash == name_hash(name)) {
		i->flags |= INODE_FIRST;
		return 0;
	}
	if (!S_ISDIR(i->mode))
		return check_further(c, i->ino, parent->ino, name);
	check_report(c, "second-name", check_path(c, parent->ino),
		     "the name '%s' leads to the directory with inode %llu, "
		     "whose own name is another one; " ADVICE_TREE,
		     name, (unsigned long long)i->ino);
	return 0;
}

static int check_dirent(struct check *c, const struct check_record *r)
{
	struct check_inode *parent, *i;
	struct dirent_rec d;
	char name[STORE_NAME_MAX + 1];

	if (!name_take(r, 17, name) ||
	    get_be64(r->key + 9) != name_hash(name) ||
	    dirent_decode(r->value, r->value_len, &d) < 0)
		return check_report_record(c, r);
	parent = check_find_inode(c, get_be64(r->key + 1));
	if (!parent || !S_ISDIR(parent->mode) || parent->nlink == 0) {
		check_report(c, "no-directory",
			     check_path(c, get_be64(r->key + 1)),
			     "holds the name '%s', but is not a directory "
			     "that exists; what the name led to is lost",
			     name);
		return 0;
	}
	i = check_find_inode(c, d.ino);
	if (!i) {
		check_report(c, "dangling", check_path(c, parent->ino),
			     "the name '%s' leads to inode %llu, which does "
			     "not exist; restore the file from another copy",
			     name, (unsigned long long)d.ino);
		return 0;
	}
	if ((i->mode & S_IFMT) != d.type)
		check_report(c, "type", check_path(c, parent->ino),
			     "the name '%s' says that it is %s, but the inode "
			     "%llu is %s; " ADVICE_TREE,
			     name, type_word(d.type), (unsigned long long)d.ino,
			     type_word(i->mode));
	return count_name(c, parent, i, name);
}

static int check_link(struct check *c, const struct check_record *r)
{
	SCOPED(scope_free) void *value = NULL;
	struct dirent_rec d = { 0 };
	struct check_inode *i;
	uint64_t parent;
	char name[STORE_NAME_MAX + 1];
	size_t len;
	int rc;

	if (!name_take(r, 17, name) || r->value_len != 0)
		return check_report_record(c, r);
	i = check_inode_of(c, r, false);
	if (!i)
		return 0;
	parent = get_be64(r->key + 9);
	rc = record_load(c->kv, key_dirent(parent, name_hash(name), name),
			 &value, &len);
	if (rc < 0 && rc != -ENOENT)
		return check_database_failed(c, rc);
	/* A name that cannot be decoded was reported with E. */
	if (rc == 0 && dirent_decode(value, len, &d) < 0)
		return 0;
	if (d.ino == i->ino &&
	    (i->parent != parent || i->name_hash != name_hash(name)))
		return 0;
	check_report(c, "link", check_path(c, i->ino),
		     "'%s' in inode %llu is recorded as a further name, but "
		     "is not; " ADVICE_TREE,
		     name, (unsigned long long)parent);
	return 0;
}

/* What must hold of each inode once all names were counted. */
static void check_named(struct check *c, const struct check_inode *i)
{
	bool is_dir = S_ISDIR(i->mode);
	uint32_t expected = is_dir ? 2 + i->subdirs : i->names;

	if (i->nlink != expected)
		check_report(c, "nlink", check_path(c, i->ino),
			     "has %u links, but says %u; " ADVICE_TREE,
			     expected, i->nlink);
	if (i->ino == ROOT_INO)
		return;
	if (!(i->flags & INODE_FIRST)) {
		const char *path = check_path(c, i->ino);

		check_report_text(c, "first-name", path,
				  "inode %llu: its own first name, %s, does "
				  "not lead to it; " ADVICE_TREE,
				  (unsigned long long)i->ino, path);
	}
	if (is_dir && i->names > 1)
		check_report(c, "second-name", check_path(c, i->ino),
			     "this directory has %u names; " ADVICE_TREE,
			     i->names);
	if (i->flags & INODE_UNLINKED)
		check_report(c, "unlinked", check_path(c, i->ino),
			     "has a name, but is recorded to be deleted at "
			     "the next mount; make a copy of the store before "
			     "that");
}

static void check_nameless(struct check *c, const struct check_inode *i)
{
	if (i->nlink != 0 && (i->flags & INODE_UNLINKED))
		check_report_text(c, "nlink", check_path(c, i->ino),
				  "inode %llu: is recorded to be deleted, but "
				  "says that it has %u links; " ADVICE_TREE,
				  (unsigned long long)i->ino, i->nlink);
	if (!(i->flags & INODE_UNLINKED))
		check_report_text(c, "lost", check_path(c, i->ino),
				  "inode %llu: this is %s that no directory "
				  "has a name for, so it cannot be reached "
				  "and its space stays in use; restore it "
				  "from another copy",
				  (unsigned long long)i->ino,
				  type_word(i->mode));
}

static void check_inode(struct check *c, const struct check_inode *i)
{
	if (c->next_ino <= i->ino && c->next_ino != 0)
		check_report(c, "next-ino", check_path(c, i->ino),
			     "has inode number %llu, but %llu is to be given "
			     "out next; do not create files in this store, "
			     "copy them to a new one",
			     (unsigned long long)i->ino,
			     (unsigned long long)c->next_ino);
	if ((i->flags & INODE_FRESH) && !S_ISREG(i->mode))
		check_report(c, "fresh", check_path(c, i->ino),
			     "is recorded as a new file, but is "
			     "%s; " ADVICE_TREE,
			     type_word(i->mode));
	if (i->names > 0 || i->ino == ROOT_INO)
		check_named(c, i);
	else
		check_nameless(c, i);
	c->result->inodes++;
	if (S_ISREG(i->mode) && i->names > 0)
		c->result->files++;
	if (S_ISDIR(i->mode))
		c->result->directories++;
}

/*
 * Walk from a directory up to the root, to one that was walked before, or to
 * one that has no name (reported already). Meeting the same walk again: a
 * ring, which is reported once, because its members are marked then.
 */
static void check_way_up(struct check *c, struct check_inode *from,
			 uint32_t walk)
{
	struct check_inode *i = from;

	while (i && i->ino != ROOT_INO && !(i->flags & INODE_WALKED)) {
		i->walk = walk;
		i->flags |= INODE_WALKED;
		i = i->up ? check_find_inode(c, i->up) : NULL;
		if (!i || i->walk != walk)
			continue;
		check_report(c, "ring", check_inode_name(c, i->ino),
			     "this directory lies in itself, so that it and "
			     "what is in it cannot be reached; restore it "
			     "from another copy");
		return;
	}
}

static void check_tree(struct check *c)
{
	struct check_inode *root = check_find_inode(c, ROOT_INO);
	uint32_t walk = 0;

	if (!root || !S_ISDIR(root->mode))
		check_report(c, "root", "/",
			     "the root directory is not there; restore the "
			     "store from another copy");
	if (c->next_ino == 0)
		check_report_text(c, "next-ino", "settings",
				  "the next inode number is not recorded; do "
				  "not create files in this store, copy them "
				  "to a new one");
	for (size_t n = 0; n < c->inode_count; n++) {
		check_inode(c, &c->inodes[n]);
		if (S_ISDIR(c->inodes[n].mode))
			check_way_up(c, &c->inodes[n], ++walk);
	}
}

int check_names(struct check *c)
{
	static const struct {
		char kind;
		int (*fn)(struct check *c, const struct check_record *r);
	} passes[] = {
		{ 'A', check_attr },  { 'O', check_flag },
		{ 'U', check_flag },  { 'W', check_writer },
		{ 'X', check_xattr }, { 'E', check_dirent },
		{ 'L', check_link },
	};
	int rc = 0;

	for (size_t n = 0; rc == 0 && n < sizeof(passes) / sizeof(*passes); n++)
		rc = check_each(c, passes[n].kind, "names", passes[n].fn);
	if (rc == 0)
		check_tree(c);
	return rc;
}
