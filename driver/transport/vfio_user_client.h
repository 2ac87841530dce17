/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The client's side of a vfio-user connection: one message and its reply at a time.
 *
 * Forked processes share the socket: a message and its reply are exchanged under a lock in
 * shared memory. A process that dies in between leaves a reply behind, or a part of one in the
 * shared inbox; the next one takes the rest and skips replies that are not its own. Only a death
 * inside the system call that takes a part of a message leaves nobody who knows where the next
 * one begins, and the connection is given up.
 */
#ifndef VROOM_VFIO_USER_CLIENT_H
#define VROOM_VFIO_USER_CLIENT_H

#include "transport/vfio_user_wire.h"

struct vfio_user_client {
	const char *name; /* for messages: the address as written */
	int socket;	  /* -1: none yet */
	unsigned timeout_ms;
	bool may_be_busy; /* an end now means that the controller has another client */
	struct vfio_user_shared *shared; /* among forked processes */
};

/* One message to send, and where its reply goes. */
struct vfio_user_message {
	uint16_t command;
	const void *payload;
	size_t bytes;
	const int *fds;
	unsigned nr_fds;
	unsigned timeout_ms; /* for the whole exchange; 0: the client's */
	void *reply;	     /* payload of the reply */
	size_t capacity;     /* of it */
	size_t least;	     /* bytes that the reply must have */
	size_t reply_bytes;  /* result */
	int *reply_fd; /* result: the first descriptor, the caller's to close, or -1; NULL: none
			* is wanted */
};

/* Socket and name are set by the caller, before or after. 0 or a negative errno. */
int vfio_user_client_init(struct vfio_user_client *c);

/* Closes the socket. */
void vfio_user_client_close(struct vfio_user_client *c);

/* Sends M and fills in its reply, within the timeout. From any process. */
int vfio_user_exchange(struct vfio_user_client *c, struct vfio_user_message *m);

/* 0 while the server is there. */
int vfio_user_client_alive(const struct vfio_user_client *c);

#endif
