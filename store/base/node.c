/* node.c - the policy of a thread's memory, by system call. See node.h. */
#include "store/base/node.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WORD_BITS (8 * sizeof(unsigned long))

/* The kernel takes the number of bits and one more. */
static bool set(int mode, const unsigned long *nodes)
{
	return syscall(SYS_set_mempolicy, mode, nodes, NODES_MAX + 1) == 0;
}

struct node_policy node_prefer(int node)
{
	struct node_policy before = { 0 };
	unsigned long nodes[NODES_MAX / WORD_BITS] = { 0 };

	if (node < 0 || node >= NODES_MAX ||
	    syscall(SYS_get_mempolicy, &before.mode, before.nodes,
		    NODES_MAX + 1, NULL, 0) != 0)
		return before;
	nodes[(unsigned)node / WORD_BITS] = 1UL << (unsigned)node % WORD_BITS;
	before.changed = set(MPOL_PREFERRED, nodes);
	return before;
}

void node_put_back(struct node_policy *before)
{
	if (before->changed)
		(void)set(before->mode, before->mode == MPOL_DEFAULT
						? NULL
						: before->nodes);
}
