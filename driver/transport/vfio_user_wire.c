/* SPDX-License-Identifier: BSD-3-Clause */
#include "transport/vfio_user_wire.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/size.h"

int vfio_user_send(int socket, const struct vfio_user_header *header, const void *payload,
		   const int *fds, unsigned nr_fds, int flags)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int) * VFIO_USER_MAX_FDS)] = { 0 };
	struct iovec iov[2] = {
		{ (void *)(uintptr_t)header, sizeof(*header) },
		{ (void *)(uintptr_t)payload, header->msg_size - sizeof(*header) },
	};
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2 };
	ssize_t n;

	if (nr_fds) {
		struct cmsghdr *c = (struct cmsghdr *)control;

		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int) * nr_fds);
		memcpy(CMSG_DATA(c), fds, sizeof(int) * nr_fds);
		msg.msg_control = control;
		msg.msg_controllen = c->cmsg_len;
	}
	n = sendmsg(socket, &msg, flags | MSG_NOSIGNAL);
	if (n < 0)
		return -errno;
	/* A message fits into the socket's buffer, which takes all of it or nothing. */
	return n == (ssize_t)header->msg_size ? 0 : -EPIPE;
}

ssize_t vfio_user_peek(int socket, void *buffer, size_t size)
{
	ssize_t n = recv(socket, buffer, size, MSG_PEEK | MSG_DONTWAIT);

	if (n < 0)
		return errno == EAGAIN ? 0 : -errno;
	return n ? n : -EPIPE;
}

/* BYTES that are there, and descriptors: the kernel closes those that a message may not carry. */
static void take(int socket, struct vfio_user_inbox *in, size_t bytes)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(in->fds))];
	struct iovec iov = { in->bytes + in->received, bytes };
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = CMSG_LEN(sizeof(int) * (VFIO_USER_MAX_FDS - in->nr_fds)),
	};
	ssize_t n = recvmsg(socket, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	const struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&msg) : NULL;

	if (c && c->cmsg_type == SCM_RIGHTS) {
		memcpy(in->fds + in->nr_fds, CMSG_DATA(c), c->cmsg_len - CMSG_LEN(0));
		in->nr_fds += (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
	}
	in->received += (size_t)VROOM_MAX(n, 0);
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
	int complete;

	while (!(complete = is_complete(in, in->received))) {
		size_t room = sizeof(in->bytes) - in->received, want;
		ssize_t n = vfio_user_peek(socket, in->bytes + in->received, room);

		if (n <= 0)
			return (int)n;
		want = (size_t)n;
		complete = is_complete(in, in->received + want);
		if (complete < 0)
			return complete;
		if (complete)
			want = in->header.msg_size - in->received;
		/* Who is killed while it takes a whole message took all of it or nothing. */
		in->taking = in->received || !complete;
		take(socket, in, want);
		in->taking = false;
	}
	return complete;
}

void vfio_user_drop_fds(struct vfio_user_inbox *in)
{
	while (in->nr_fds)
		close(in->fds[--in->nr_fds]);
}
