/* SPDX-License-Identifier: BSD-3-Clause */
#include "transport/vfio_user_client.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/lock.h"
#include "base/size.h"

static const char *const command_names[] = {
	[VFIO_USER_VERSION] = "VERSION",
	[VFIO_USER_DMA_MAP] = "DMA_MAP",
	[VFIO_USER_DMA_UNMAP] = "DMA_UNMAP",
	[VFIO_USER_DEVICE_GET_INFO] = "DEVICE_GET_INFO",
	[VFIO_USER_DEVICE_GET_REGION_INFO] = "DEVICE_GET_REGION_INFO",
	[VFIO_USER_DEVICE_GET_REGION_IO_FDS] = "DEVICE_GET_REGION_IO_FDS",
	[VFIO_USER_DEVICE_SET_IRQS] = "DEVICE_SET_IRQS",
	[VFIO_USER_REGION_READ] = "REGION_READ",
	[VFIO_USER_REGION_WRITE] = "REGION_WRITE",
	[VFIO_USER_DEVICE_RESET] = "DEVICE_RESET",
};

static int gone(const struct vfio_user_client *c)
{
	if (c->may_be_busy)
		return vroom_fail_on(c->name, EBUSY, "the controller has another client");
	return vroom_fail_on(c->name, ENODEV,
			     "the controller's process closed the connection; start it again and "
			     "repeat the run");
}

/* A server that reads nothing fills the socket: then the reply's deadline counts as well. */
static int send_message(struct vfio_user_client *c, const struct vfio_user_message *m,
			uint64_t deadline)
{
	struct vfio_user_header header = {
		.msg_id = ++c->msg_id,
		.command = m->command,
		.msg_size = (uint32_t)(sizeof(header) + m->bytes),
	};
	int ret;

	do {
		ret = vfio_user_send(c->socket, &header, m->payload, m->fd, m->fd != NULL,
				     MSG_DONTWAIT);
	} while (ret == -EAGAIN && vroom_wait_fd(c->socket, POLLOUT, deadline));
	return ret == -EAGAIN ? -ETIMEDOUT : ret;
}

/*
 * Waits for the reply to the last message. What else arrives is dropped: replies that a dead
 * process did not fetch, and commands of the server, which a client without guest memory of its
 * own has nothing to say to.
 */
static int receive_reply(struct vfio_user_client *c, uint64_t deadline)
{
	struct vfio_user_inbox *in = &c->in;

	do {
		int ret = vfio_user_receive(c->socket, in);

		if (ret < 0)
			return ret;
		if (ret && (in->header.flags & VFIO_USER_FLAG_TYPE_MASK) == VFIO_USER_FLAG_REPLY &&
		    in->header.msg_id == c->msg_id)
			return 0;
		if (ret) {
			vfio_user_drop_fds(in);
			in->received = 0;
		}
	} while (vroom_wait_fd(c->socket, POLLIN, deadline));
	return -ETIMEDOUT;
}

/* From the inbox to M. */
static int take_reply(struct vfio_user_client *c, const struct vfio_user_message *m)
{
	struct vfio_user_inbox *in = &c->in;
	size_t bytes = in->header.msg_size - sizeof(in->header),
	       room = VROOM_MAX(m->room, m->least);
	uint32_t err = in->header.error_no;

	in->received = 0;
	if (in->header.flags & VFIO_USER_FLAG_ERROR) {
		if (!err || err >= 4096)
			err = EINVAL;
		return vroom_fail_on(c->name, (int)err, "the controller refused %s: %s",
				     command_names[m->command], strerror((int)err));
	}
	if (bytes < m->least)
		return vroom_fail_on(c->name, EPROTO, "%s was answered with %zu bytes, not %zu",
				     command_names[m->command], bytes, m->least);
	if (room) {
		memset(m->reply, 0, room);
		memcpy(m->reply, in->bytes + sizeof(in->header), VROOM_MIN(bytes, room));
	}
	if (m->reply_fd && in->nr_fds) {
		*m->reply_fd = in->fds[0];
		in->fds[0] = in->fds[--in->nr_fds];
	}
	return 0;
}

static int exchange_locked(struct vfio_user_client *c, const struct vfio_user_message *m)
{
	unsigned timeout_ms = m->timeout_ms ? m->timeout_ms : c->timeout_ms;
	uint64_t deadline = vroom_now_ms() + timeout_ms;
	int ret;

	if (c->in.taking)
		return vroom_fail_on(c->name, ENODEV,
				     "the connection is lost: a process that shared it was killed "
				     "while it read an answer; repeat the run");
	c->in.nr_fds = 0; /* those of a process that died here have gone with it */
	ret = send_message(c, m, deadline);
	if (!ret)
		ret = receive_reply(c, deadline);
	switch (ret) {
	case 0: return take_reply(c, m);
	case -ETIMEDOUT:
		return vroom_fail_on(c->name, ETIMEDOUT,
				     "no answer to %s within %u ms; is the controller's process "
				     "stuck%s?",
				     command_names[m->command], timeout_ms,
				     c->may_be_busy ? ", or serving another client" : "");
	case -EMSGSIZE:
		return vroom_fail_on(c->name, EPROTO,
				     "does not speak vfio-user (a message of %u bytes)",
				     c->in.header.msg_size);
	default: return gone(c);
	}
}

int vfio_user_exchange(struct vfio_user_client *c, const struct vfio_user_message *m)
{
	int ret;

	if (m->reply_fd)
		*m->reply_fd = -1;
	vroom_lock(&c->lock);
	ret = exchange_locked(c, m);
	vfio_user_drop_fds(&c->in); /* but not the part of a message: the rest may come */
	vroom_unlock(&c->lock);
	return ret;
}

int vfio_user_client_alive(const struct vfio_user_client *c)
{
	char byte;

	return vfio_user_peek(c->socket, &byte, 1) < 0 ? gone(c) : 0;
}
