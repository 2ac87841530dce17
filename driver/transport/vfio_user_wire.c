/* SPDX-License-Identifier: BSD-3-Clause */
#include "transport/vfio_user_wire.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int vfio_user_send(int socket, const struct vfio_user_header *header, const void *payload,
		   const int *fds, unsigned nr_fds, int flags)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int) * VFIO_USER_MAX_FDS)] = { 0 };
	size_t bytes = header->msg_size - sizeof(*header);
	struct iovec iov[2] = {
		{ .iov_base = (void *)(uintptr_t)header, .iov_len = sizeof(*header) },
		{ .iov_base = (void *)(uintptr_t)payload, .iov_len = bytes },
	};
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = bytes ? 2 : 1 };
	ssize_t n;

	if (nr_fds) {
		struct cmsghdr *cmsg;

		msg.msg_control = control;
		msg.msg_controllen = CMSG_SPACE(sizeof(int) * nr_fds);
		cmsg = CMSG_FIRSTHDR(&msg);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(sizeof(int) * nr_fds);
		memcpy(CMSG_DATA(cmsg), fds, sizeof(int) * nr_fds);
	}
	do {
		n = sendmsg(socket, &msg, flags | MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	/* A message fits into the socket's buffer, which takes all of it or nothing. */
	return n == (ssize_t)header->msg_size ? 0 : -EPIPE;
}

/* Descriptors beyond what a message may carry are closed. */
static void collect_fds(struct vfio_user_inbox *in, struct msghdr *msg)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		const int *fds = (const int *)(void *)CMSG_DATA(c);
		size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < count; i++) {
			if (in->nr_fds < VFIO_USER_MAX_FDS)
				in->fds[in->nr_fds++] = fds[i];
			else
				close(fds[i]);
		}
	}
}

/* One recvmsg(). Positive: bytes, 0: nothing there, negative: the connection is lost. */
static ssize_t take(int socket, struct vfio_user_inbox *in, size_t bytes)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int) * VFIO_USER_MAX_FDS)];
	struct iovec iov = { .iov_base = in->bytes + in->received, .iov_len = bytes };
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = control,
			      .msg_controllen = sizeof(control) };
	ssize_t n = recvmsg(socket, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	if (n > 0) {
		collect_fds(in, &msg);
		in->received += (size_t)n;
		return n;
	}
	if (n == 0)
		return -EPIPE;
	return errno == EAGAIN || errno == EINTR ? 0 : -errno;
}

/* 1: the message is complete, 0: not yet, -EMSGSIZE: it is none. */
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
	ssize_t n;
	int done;

	if (!in->received) {
		/* Taken in one call if that can be, so that who is killed took all or nothing.
		 * Descriptors in the middle of a message end a call early, and a look as well. */
		n = recv(socket, in->bytes, sizeof(in->bytes), MSG_PEEK | MSG_DONTWAIT);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return 0;
		if (n > 0 && is_complete(in, (size_t)n) == 1) {
			n = take(socket, in, in->header.msg_size);
			return n > 0 ? 1 : (int)n;
		}
	}
	while ((done = is_complete(in, in->received)) == 0) {
		size_t want = in->received < sizeof(in->header) ? sizeof(in->header)
								: in->header.msg_size;

		in->taking = true;
		n = take(socket, in, want - in->received);
		in->taking = false;
		if (n <= 0)
			return (int)n;
	}
	return done;
}

void vfio_user_drop_fds(struct vfio_user_inbox *in)
{
	while (in->nr_fds)
		close(in->fds[--in->nr_fds]);
}
