/*
 * server.h - the mount's socket, where clients get segments
 * (store/base/segment_wire.h).
 */
#ifndef FUSE_SERVER_H
#define FUSE_SERVER_H

#include "store/base/ckptfs_ioctl.h"
#include "store/store.h"

struct server;

#define SERVER_CLIENTS_MAX 1024
#define SERVER_CLIENTS_OF_UID_MAX 256

/*
 * Listen in /run/ckptfs, or, where that cannot be written, at an abstract
 * address. Starts a thread, and one for each client.
 */
int server_start(struct store *st, struct server **ret_server);
/* Disconnects everybody. s may be NULL. */
void server_stop(struct server *s);
/* How to reach it. */
void server_address(const struct server *s, struct ckptfs_segments *ret);

#endif
