/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The client's side of a vfio-user connection: one message and its reply at a time.
 *
 * Forked processes share socket and inbox. One that dies in an exchange leaves a reply behind, or
 * a part of one: the next takes the rest, and skips replies that are not its own. Only a death
 * inside the system call that takes a part of a message ends the connection.
 */
#ifndef VROOM_VFIO_USER_CLIENT_H
#define VROOM_VFIO_USER_CLIENT_H

#include <pthread.h>

#include "transport/vfio_user_wire.h"

/* In memory that the processes share. */
struct vfio_user_client {
	const char *name; /* for messages: the address as written */
	int socket;
	unsigned timeout_ms;
	bool may_be_busy; /* an end now means that the controller has another client */
	pthread_mutex_t lock;
	uint16_t msg_id;
	struct vfio_user_inbox in;
};

/* A message to send, and what must come back. */
struct vfio_user_message {
	uint16_t command;
	const void *payload;
	size_t bytes;
	void *reply;
	size_t least;	     /* bytes that the reply must have */
	size_t room;	     /* bytes that it may have, of which the rest is zeroed; 0: LEAST */
	const int *fd;	     /* sent along; NULL: none */
	int *reply_fd;	     /* gets a descriptor, the caller's to close, or -1; NULL: not wanted */
	unsigned timeout_ms; /* 0: the client's */
};

/* Sends M and fills in its reply. From any process. */
int vfio_user_exchange(struct vfio_user_client *c, const struct vfio_user_message *m);

/* 0 while the server is there. */
int vfio_user_client_alive(const struct vfio_user_client *c);

#endif
