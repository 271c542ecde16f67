/*
 * node.h - on which NUMA node the memory lies that this thread makes the kernel
 * give.
 *
 * A wish: where the node has no memory left, does not exist, or is not allowed
 * here, others are taken, and nobody is told.
 */
#ifndef STORE_BASE_NODE_H
#define STORE_BASE_NODE_H

#include <stdbool.h>

#define NODES_MAX 1024 /* the kernel's CONFIG_NODES_SHIFT allows no more */

struct node_policy { /* of the thread, before */
	bool changed;
	int mode;
	unsigned long nodes[NODES_MAX / (8 * sizeof(unsigned long))];
};

/*
 * Until the end of the block; node < 0: as it is.
 *     SCOPED(node_put_back) struct node_policy before = node_prefer(node);
 */
struct node_policy node_prefer(int node);
void node_put_back(struct node_policy *before);

#endif
