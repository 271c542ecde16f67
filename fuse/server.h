/*
 * server.h - the mount's socket, where clients get segments
 * (store/base/segment_wire.h).
 */
#ifndef FUSE_SERVER_H
#define FUSE_SERVER_H

#include "store/base/ckptfs_ioctl.h"
#include "store/store.h"

struct server;

/* Fewer where the process may have few descriptors; a quarter for one user. */
#define SERVER_CLIENTS_MAX 1024
/* Descriptors that a client takes. */
#define SERVER_CLIENT_FDS 3

/*
 * Listen in /run/ckptfs, or, where that cannot be written, at an abstract
 * address. What daemons that were killed have left there is removed. Starts a
 * thread, and one for each client.
 */
int server_start(struct store *st, struct server **ret_server);
/* Disconnects everybody. s may be NULL. */
void server_stop(struct server *s);
/* How to reach it. */
void server_address(const struct server *s, struct ckptfs_segments *ret);

#endif
