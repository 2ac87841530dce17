/* SPDX-License-Identifier: BSD-3-Clause */
#include "transport/vfio_user_wire.h"

#include <sys/socket.h>

#include "base/base.h"

/* What goes with a message or comes with it. */
struct control {
	struct cmsghdr header;
	int fds[VFIO_USER_MAX_FDS];
};

int vfio_user_send(int socket, const struct vfio_user_header *header, const void *payload,
		   const int *fds, unsigned nr_fds, int flags)
{
	struct control control = { { CMSG_LEN(sizeof(int) * nr_fds), SOL_SOCKET, SCM_RIGHTS } };
	struct iovec iov[2] = {
		{ (void *)(uintptr_t)header, sizeof(*header) },
		{ (void *)(uintptr_t)payload, header->msg_size - sizeof(*header) },
	};
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2 };
	ssize_t n;

	if (nr_fds) {
		memcpy(control.fds, fds, sizeof(int) * nr_fds);
		msg.msg_control = &control;
		msg.msg_controllen = control.header.cmsg_len;
	}
	n = sendmsg(socket, &msg, flags | MSG_NOSIGNAL);
	if (n < 0)
		return -errno;
	/* A message fits into the socket's buffer, which takes all of it or nothing. */
	return n == (ssize_t)header->msg_size ? 0 : -EPIPE;
}

/* BYTES that are there, and descriptors: the kernel closes those that a message may not carry. */
static void take(int socket, struct vfio_user_inbox *in, size_t bytes)
{
	struct control control = { .header = { 0 } };
	struct iovec iov = { in->bytes + in->received, bytes };
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = CMSG_LEN(sizeof(int) * (VFIO_USER_MAX_FDS - in->nr_fds)),
	};
	ssize_t n = recvmsg(socket, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	if (control.header.cmsg_type == SCM_RIGHTS) {
		size_t fds_bytes = control.header.cmsg_len - sizeof(control.header);

		memcpy(in->fds + in->nr_fds, control.fds, fds_bytes);
		in->nr_fds += fds_bytes / sizeof(int);
	}
	if (n > 0)
		in->received += (size_t)n;
}

/* 1: the first RECEIVED bytes hold a message, 0: not yet all of it, -EMSGSIZE: it is none. */
static int is_complete(const struct vfio_user_inbox *in, size_t received)
{
	if (received < sizeof(in->header))
		return 0;
	if (in->header.msg_size < sizeof(in->header) || in->header.msg_size > sizeof(in->bytes))
		return -EMSGSIZE;
	return received >= in->header.msg_size;
}

int vfio_user_receive(int socket, struct vfio_user_inbox *in)
{
	int complete = is_complete(in, in->received);
	ssize_t n;

	if (complete)
		return complete;
	n = recv(socket, in->bytes + in->received, sizeof(in->bytes) - in->received,
		 MSG_PEEK | MSG_DONTWAIT);
	if (n < 0)
		return errno == EAGAIN ? 0 : -errno;
	if (n == 0)
		return -EPIPE;
	complete = is_complete(in, in->received + (size_t)n);
	if (complete < 0)
		return complete;
	/* Who is killed while it takes a whole message took all of it or nothing. */
	in->taking = in->received || !complete;
	take(socket, in, complete ? in->header.msg_size - in->received : (size_t)n);
	in->taking = false;
	return complete;
}

void vfio_user_drop_fds(struct vfio_user_inbox *in)
{
	while (in->nr_fds)
		close(in->fds[--in->nr_fds]);
}
