/* SPDX-License-Identifier: BSD-3-Clause */
#include "transport/vfio_user_client.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/lock.h"
#include "base/size.h"

struct vfio_user_shared {
	pthread_mutex_t lock;
	uint16_t msg_id;
	bool broken; /* nobody knows any more where the next message begins */
	struct vfio_user_inbox in;
};

static const char *command_name(uint16_t command)
{
	static const char *const names[] = {
		[VFIO_USER_VERSION] = "VERSION",
		[VFIO_USER_DMA_MAP] = "DMA_MAP",
		[VFIO_USER_DMA_UNMAP] = "DMA_UNMAP",
		[VFIO_USER_DEVICE_GET_INFO] = "DEVICE_GET_INFO",
		[VFIO_USER_DEVICE_GET_REGION_INFO] = "DEVICE_GET_REGION_INFO",
		[VFIO_USER_DEVICE_GET_REGION_IO_FDS] = "DEVICE_GET_REGION_IO_FDS",
		[VFIO_USER_DEVICE_GET_IRQ_INFO] = "DEVICE_GET_IRQ_INFO",
		[VFIO_USER_DEVICE_SET_IRQS] = "DEVICE_SET_IRQS",
		[VFIO_USER_REGION_READ] = "REGION_READ",
		[VFIO_USER_REGION_WRITE] = "REGION_WRITE",
		[VFIO_USER_DEVICE_RESET] = "DEVICE_RESET",
	};

	return command < VROOM_LENGTH(names) && names[command] ? names[command] : "message";
}

static int gone(const struct vfio_user_client *c)
{
	if (c->may_be_busy)
		return vroom_fail(EBUSY, "%s: the controller has another client", c->name);
	return vroom_fail(ENODEV,
			  "%s: the controller's process closed the connection; start it "
			  "again and repeat the run",
			  c->name);
}

/* Waits for EVENTS on the socket, until DEADLINE at most. */
static int wait_for(const struct vfio_user_client *c, short events, uint64_t deadline)
{
	struct pollfd p = { .fd = c->socket, .events = events };
	uint64_t now = vroom_now_ms();
	int ret;

	if (now >= deadline)
		return -ETIMEDOUT;
	ret = poll(&p, 1, (int)VROOM_MIN(deadline - now, 1000));
	return ret < 0 && errno != EINTR ? -errno : 0;
}

/* A server that reads nothing fills the socket: then the reply's deadline counts as well. */
static int send_message(struct vfio_user_client *c, uint16_t id, const struct vfio_user_message *m,
			uint64_t deadline)
{
	struct vfio_user_header header = {
		.msg_id = id,
		.command = m->command,
		.msg_size = (uint32_t)(sizeof(header) + m->bytes),
	};
	int ret;

	for (;;) {
		ret = vfio_user_send(c->socket, &header, m->payload, m->fds, m->nr_fds,
				     MSG_DONTWAIT);
		if (ret != -EAGAIN)
			return ret;
		ret = wait_for(c, POLLOUT, deadline);
		if (ret)
			return ret;
	}
}

/* The message at hand has been looked at, or is nobody's. */
static void next_message(struct vfio_user_inbox *in)
{
	vfio_user_drop_fds(in);
	in->received = 0;
}

/*
 * Waits for the reply to message ID. What else arrives is read and dropped: replies that a
 * dead process did not fetch, and commands of the server, which a client without guest
 * memory of its own has nothing to say to.
 */
static int receive_reply(struct vfio_user_client *c, uint16_t id, uint64_t deadline)
{
	struct vfio_user_inbox *in = &c->shared->in;

	for (;;) {
		int ret = vfio_user_receive(c->socket, in);

		if (ret < 0)
			return ret;
		if (ret && (in->header.flags & VFIO_USER_FLAG_TYPE_MASK) == VFIO_USER_FLAG_REPLY &&
		    in->header.msg_id == id)
			return 0;
		if (ret)
			next_message(in);
		/* A look at the clock after each message: they may come for ever. */
		ret = ret && vroom_now_ms() < deadline ? 0 : wait_for(c, POLLIN, deadline);
		if (ret)
			return ret;
	}
}

/* From the inbox to M. */
static int take_reply(struct vfio_user_client *c, struct vfio_user_message *m)
{
	struct vfio_user_inbox *in = &c->shared->in;
	size_t bytes = in->header.msg_size - sizeof(in->header);

	if (in->header.flags & VFIO_USER_FLAG_ERROR) {
		uint32_t error_no = in->header.error_no;
		int err = error_no && error_no < 4096 ? (int)error_no : EINVAL;

		return vroom_fail(err, "%s: the controller refused %s: %s", c->name,
				  command_name(m->command), strerror(err));
	}
	if (bytes < m->least)
		return vroom_fail(EPROTO, "%s: %s was answered with %zu bytes, not %zu", c->name,
				  command_name(m->command), bytes, m->least);
	m->reply_bytes = VROOM_MIN(bytes, m->capacity);
	if (m->reply_bytes)
		memcpy(m->reply, in->bytes + sizeof(in->header), m->reply_bytes);
	if (m->reply_fd && in->nr_fds) {
		*m->reply_fd = in->fds[0];
		in->fds[0] = in->fds[--in->nr_fds];
	}
	return 0;
}

/* What went wrong between sending M and having its reply. */
static int explain(const struct vfio_user_client *c, const struct vfio_user_message *m, int ret)
{
	switch (ret) {
	case -ETIMEDOUT:
		return vroom_fail(ETIMEDOUT,
				  "%s: no answer to %s within %u ms; is the controller's process "
				  "stuck%s?",
				  c->name, command_name(m->command),
				  m->timeout_ms ? m->timeout_ms : c->timeout_ms,
				  c->may_be_busy ? ", or serving another client" : "");
	case -EMSGSIZE:
		return vroom_fail(EPROTO, "%s: does not speak vfio-user (a message of %u bytes)",
				  c->name, c->shared->in.header.msg_size);
	default: return gone(c);
	}
}

/* Takes over what a process that died under the lock left behind. */
static void repair(struct vfio_user_shared *s)
{
	s->in.nr_fds = 0; /* they were that process' */
	s->broken |= s->in.taking;
}

int vfio_user_exchange(struct vfio_user_client *c, struct vfio_user_message *m)
{
	struct vfio_user_shared *s = c->shared;
	uint64_t deadline;
	uint16_t id;
	int ret;

	if (m->reply_fd)
		*m->reply_fd = -1;
	if (vroom_lock(&s->lock))
		repair(s);
	if (s->broken) {
		ret = vroom_fail(ENODEV,
				 "%s: the connection is lost: a process that shared it was killed "
				 "while it read an answer; repeat the run",
				 c->name);
		goto out_unlock;
	}
	deadline = vroom_now_ms() + (m->timeout_ms ? m->timeout_ms : c->timeout_ms);
	id = s->msg_id++;
	ret = send_message(c, id, m, deadline);
	if (!ret)
		ret = receive_reply(c, id, deadline);
	if (ret) {
		ret = explain(c, m, ret);
		vfio_user_drop_fds(&s->in); /* but not the part of a message: the rest may come */
	} else {
		ret = take_reply(c, m);
		next_message(&s->in);
	}
out_unlock:
	vroom_unlock(&s->lock);
	return ret;
}

int vfio_user_client_alive(const struct vfio_user_client *c)
{
	char byte;
	ssize_t n = recv(c->socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

	return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR) ? gone(c) : 0;
}

int vfio_user_client_init(struct vfio_user_client *c)
{
	c->socket = -1;
	c->shared = mmap(NULL, sizeof(*c->shared), PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (c->shared == MAP_FAILED) {
		c->shared = NULL;
		return vroom_fail(ENOMEM, "%s: out of memory", c->name);
	}
	return vroom_lock_init(&c->shared->lock);
}

void vfio_user_client_close(struct vfio_user_client *c)
{
	if (c->socket >= 0)
		close(c->socket);
	if (c->shared)
		munmap(c->shared, sizeof(*c->shared));
}
