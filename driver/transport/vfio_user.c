/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Transport vfio-user: a client of the vfio-user protocol, for any NVMe controller that is
 * served on a UNIX socket. When the address is a file, emu-mem or emu-null, the server is
 * our own emulated controller, started here and ended with the last user of the socket.
 *
 * Forked processes share the socket: a message and its reply are exchanged under a lock in
 * shared memory. A process that dies in between leaves a reply behind; the next one skips
 * replies that are not its own, and takes a message off the socket in one system call, so
 * that none is ever left half read.
 */
#include <errno.h>
#include <fcntl.h>
#include <json-c/json.h>
#include <linux/membarrier.h>
#include <linux/pci_regs.h>
#include <linux/vfio.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/lock.h"
#include "base/size.h"
#include "transport/emulated.h"
#include "transport/transport.h"
#include "transport/vfio_user_proto.h"
#include "vroom_nvme.h"

struct vfio_user {
	struct vroom_transport base;
	const char *name; /* for messages: the address as written */
	int socket;
	int wake_fd; /* the doorbells' ioeventfd, or -1 */
	unsigned timeout_ms;
	struct vroom_emulated emulated; /* pid 0: the server is not ours */
	struct {
		pthread_mutex_t lock;
		uint16_t msg_id;
	} * shared;	/* among forked processes */
	char *bar0_map; /* doorbells and what follows, as mapped */
	size_t bar0_map_offset;
	size_t bar0_map_bytes;
	int64_t sleep_word; /* offset into BAR0 that the server announced, or -1 */
};

/* One message to send, and where its reply goes. */
struct message {
	uint16_t command;
	const void *payload;
	size_t bytes;
	const int *fds;
	unsigned nfds;
	unsigned timeout_ms; /* for the reply; 0: the transport's */
	void *reply;	     /* payload of the reply */
	size_t reply_capacity;
	size_t reply_bytes; /* received */
	int reply_fds[VFIO_USER_MAX_FDS];
	unsigned reply_nfds;
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

	return command < sizeof(names) / sizeof(names[0]) && names[command] ? names[command]
									    : "message";
}

static int gone(struct vfio_user *v)
{
	return vroom_fail(ENODEV,
			  "%s: the controller's process closed the connection; start it "
			  "again and repeat the run",
			  v->name);
}

static void close_fds(int *fds, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		close(fds[i]);
}

static int wait_readable(struct vfio_user *v, uint64_t deadline, unsigned timeout_ms,
			 uint16_t command)
{
	for (;;) {
		struct pollfd p = { .fd = v->socket, .events = POLLIN };
		uint64_t now = vroom_now_ms();
		int ret;

		if (now >= deadline)
			return vroom_fail(ETIMEDOUT,
					  "%s: no answer to %s within %u ms; is the "
					  "controller's process stuck?",
					  v->name, command_name(command), timeout_ms);
		ret = poll(&p, 1, (int)VROOM_MIN(deadline - now, 1000));
		if (ret > 0)
			return 0;
		if (ret < 0 && errno != EINTR)
			return vroom_fail(errno, "%s: %s", v->name, strerror(errno));
	}
}

/* Takes exactly one message of SIZE bytes off the socket, in one call, with its descriptors. */
static int take_message(struct vfio_user *v, void *buf, size_t size, struct message *m)
{
	char control[CMSG_SPACE(sizeof(int) * VFIO_USER_MAX_FDS)];
	struct iovec iov = { .iov_base = buf, .iov_len = size };
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = control,
			      .msg_controllen = sizeof(control) };
	ssize_t n = recvmsg(v->socket, &msg, MSG_WAITALL | MSG_CMSG_CLOEXEC);
	struct cmsghdr *cmsg;

	if (n != (ssize_t)size)
		return gone(v);
	for (cmsg = CMSG_FIRSTHDR(&msg); cmsg; cmsg = CMSG_NXTHDR(&msg, cmsg)) {
		unsigned count = (unsigned)((cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		const int *fds = (const int *)(void *)CMSG_DATA(cmsg);

		if (cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_RIGHTS)
			continue;
		for (unsigned i = 0; i < count; i++) {
			if (m->reply_nfds < VFIO_USER_MAX_FDS)
				m->reply_fds[m->reply_nfds++] = fds[i];
			else
				close(fds[i]);
		}
	}
	return 0;
}

/*
 * Waits for the reply to message ID. What else arrives is read and dropped: replies that a
 * dead process did not fetch, and commands of the server, which a client without guest
 * memory of its own has nothing to say to.
 */
static int receive_reply(struct vfio_user *v, uint16_t id, struct message *m)
{
	union {
		struct vfio_user_header header;
		char bytes[VFIO_USER_MAX_MESSAGE];
	} in;
	unsigned timeout_ms = m->timeout_ms ? m->timeout_ms : v->timeout_ms;
	uint64_t deadline = vroom_now_ms() + timeout_ms;

	for (;;) {
		ssize_t n;
		int ret = wait_readable(v, deadline, timeout_ms, m->command);

		if (ret)
			return ret;
		n = recv(v->socket, &in.header, sizeof(in.header), MSG_PEEK | MSG_DONTWAIT);
		if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
			return gone(v);
		if (n < (ssize_t)sizeof(in.header)) {
			usleep(50); /* the rest of the header is on its way */
			continue;
		}
		if (in.header.msg_size < sizeof(in.header) || in.header.msg_size > sizeof(in))
			return vroom_fail(EPROTO,
					  "%s: does not speak vfio-user (a message of %u "
					  "bytes)",
					  v->name, in.header.msg_size);
		ret = take_message(v, &in, in.header.msg_size, m);
		if (ret)
			return ret;
		if ((in.header.flags & VFIO_USER_FLAG_TYPE_MASK) == VFIO_USER_FLAG_REPLY &&
		    in.header.msg_id == id)
			break;
		close_fds(m->reply_fds, m->reply_nfds);
		m->reply_nfds = 0;
	}
	if (in.header.flags & VFIO_USER_FLAG_ERROR) {
		int err = in.header.error_no ? (int)in.header.error_no : EINVAL;

		close_fds(m->reply_fds, m->reply_nfds);
		return vroom_fail(err, "%s: the controller refused %s: %s", v->name,
				  command_name(m->command), strerror(err));
	}
	m->reply_bytes = VROOM_MIN(in.header.msg_size - sizeof(in.header), m->reply_capacity);
	if (m->reply_bytes)
		memcpy(m->reply, in.bytes + sizeof(in.header), m->reply_bytes);
	return 0;
}

static int send_message(struct vfio_user *v, uint16_t id, const struct message *m)
{
	struct vfio_user_header header = {
		.msg_id = id,
		.command = m->command,
		.msg_size = (uint32_t)(sizeof(header) + m->bytes),
	};
	char control[CMSG_SPACE(sizeof(int) * VFIO_USER_MAX_FDS)] = { 0 };
	struct iovec iov[2] = {
		{ .iov_base = &header, .iov_len = sizeof(header) },
		{ .iov_base = (void *)(uintptr_t)m->payload, .iov_len = m->bytes },
	};
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = m->bytes ? 2 : 1 };
	ssize_t n;

	if (m->nfds) {
		struct cmsghdr *cmsg;

		msg.msg_control = control;
		msg.msg_controllen = CMSG_SPACE(sizeof(int) * m->nfds);
		cmsg = CMSG_FIRSTHDR(&msg);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(sizeof(int) * m->nfds);
		memcpy(CMSG_DATA(cmsg), m->fds, sizeof(int) * m->nfds);
	}
	do {
		n = sendmsg(v->socket, &msg, MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	return n == (ssize_t)header.msg_size ? 0 : gone(v);
}

static int exchange(struct vfio_user *v, struct message *m)
{
	uint16_t id;
	int ret;

	vroom_lock(&v->shared->lock);
	id = v->shared->msg_id++;
	ret = send_message(v, id, m);
	if (!ret)
		ret = receive_reply(v, id, m);
	vroom_unlock(&v->shared->lock);
	return ret;
}

/* An exchange whose reply must be at least NEED bytes. */
static int ask(struct vfio_user *v, struct message *m, size_t need)
{
	int ret = exchange(v, m);

	if (!ret && m->reply_bytes < need) {
		close_fds(m->reply_fds, m->reply_nfds);
		m->reply_nfds = 0;
		ret = vroom_fail(EPROTO, "%s: %s was answered with %zu bytes, not %zu", v->name,
				 command_name(m->command), m->reply_bytes, need);
	}
	return ret;
}

static int region_access(struct vfio_user *v, bool write, uint32_t region, uint64_t offset,
			 void *value, unsigned width, unsigned timeout_ms)
{
	union {
		struct vfio_user_region_access access;
		char bytes[sizeof(struct vfio_user_region_access) + 8];
	} out = { .access = { .offset = offset, .region = region, .count = width } }, in;
	struct message m = {
		.command = write ? VFIO_USER_REGION_WRITE : VFIO_USER_REGION_READ,
		.payload = &out,
		.bytes = sizeof(out.access) + (write ? width : 0),
		.timeout_ms = timeout_ms,
		.reply = &in,
		.reply_capacity = sizeof(in),
	};
	int ret;

	if (write)
		memcpy(out.access.data, value, width);
	ret = ask(v, &m, write ? 0 : sizeof(in.access) + width);
	if (!ret && !write)
		memcpy(value, in.access.data, width);
	return ret;
}

static int vfio_user_read(struct vroom_transport *t, uint32_t offset, void *value, unsigned width,
			  unsigned timeout_ms)
{
	return region_access((struct vfio_user *)t, false, VFIO_PCI_BAR0_REGION_INDEX, offset,
			     value, width, timeout_ms);
}

static int vfio_user_write(struct vroom_transport *t, uint32_t offset, const void *value,
			   unsigned width)
{
	return region_access((struct vfio_user *)t, true, VFIO_PCI_BAR0_REGION_INDEX, offset,
			     (void *)(uintptr_t)value, width, 0);
}

static int vfio_user_dma_map(struct vroom_transport *t, struct vroom_dma_map *dma)
{
	struct vfio_user_dma_map map = {
		.argsz = sizeof(map),
		.flags = VFIO_USER_DMA_READABLE | VFIO_USER_DMA_WRITEABLE,
		.offset = dma->fd_offset,
		.addr = dma->iova,
		.size = dma->bytes,
	};
	struct message m = { .command = VFIO_USER_DMA_MAP,
			     .payload = &map,
			     .bytes = sizeof(map),
			     .fds = &dma->fd,
			     .nfds = 1 };

	for (size_t i = 0; i < dma->bytes >> dma->page_shift; i++)
		dma->page_iova[i] = dma->iova + (i << dma->page_shift);
	return exchange((struct vfio_user *)t, &m);
}

static void vfio_user_kick(struct vroom_transport *t)
{
	struct vfio_user *v = (struct vfio_user *)t;

	if (v->wake_fd >= 0)
		eventfd_write(v->wake_fd, 1);
}

static int vfio_user_alive(struct vroom_transport *t)
{
	struct vfio_user *v = (struct vfio_user *)t;
	char byte;
	ssize_t n = recv(v->socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

	return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR) ? gone(v) : 0;
}

/* The capabilities of the server's version reply that matter here. */
static void read_capabilities(struct vfio_user *v, const char *json)
{
	struct json_object *root = json_tokener_parse(json), *caps, *ours, *word;

	if (json_object_object_get_ex(root, "capabilities", &caps) &&
	    json_object_object_get_ex(caps, VFIO_USER_CAP_VROOM, &ours) &&
	    json_object_object_get_ex(ours, VFIO_USER_CAP_SLEEP_WORD, &word))
		v->sleep_word = json_object_get_int64(word);
	json_object_put(root);
}

static int negotiate(struct vfio_user *v)
{
	static const char capabilities[] =
		"{\"capabilities\":{\"max_msg_fds\":8,\"max_data_xfer_size\":4096}}";
	union {
		struct vfio_user_version version;
		char bytes[VFIO_USER_MAX_MESSAGE];
	} out = { .version = { VFIO_USER_MAJOR, VFIO_USER_MINOR } }, in;
	struct message m = {
		.command = VFIO_USER_VERSION,
		.payload = &out,
		.bytes = sizeof(out.version) + sizeof(capabilities),
		.reply = &in,
		.reply_capacity = sizeof(in) - 1,
	};
	int ret;

	memcpy(out.version.json, capabilities, sizeof(capabilities));
	ret = ask(v, &m, sizeof(in.version));
	if (ret)
		return ret;
	if (in.version.major != VFIO_USER_MAJOR)
		return vroom_fail(EPROTO, "%s: speaks vfio-user %u.%u, vroom %u.%u", v->name,
				  in.version.major, in.version.minor, VFIO_USER_MAJOR,
				  VFIO_USER_MINOR);
	in.bytes[m.reply_bytes] = '\0';
	if (m.reply_bytes > sizeof(in.version))
		read_capabilities(v, in.version.json);
	return 0;
}

static int check_device(struct vfio_user *v)
{
	struct vfio_user_device_info info = { .argsz = sizeof(info) };
	struct message m = { .command = VFIO_USER_DEVICE_GET_INFO,
			     .payload = &info,
			     .bytes = sizeof(info),
			     .reply = &info,
			     .reply_capacity = sizeof(info) };
	uint32_t class = 0;
	uint16_t command = 0;
	int ret = ask(v, &m, sizeof(info));

	if (ret)
		return ret;
	if (!(info.flags & VFIO_DEVICE_FLAGS_PCI) ||
	    info.num_regions <= VFIO_PCI_CONFIG_REGION_INDEX)
		return vroom_fail(ENODEV, "%s: serves a device that is not a PCI function",
				  v->name);
	/* Class code 010802h: NVM Express I/O controller (PCIe transport 3.8.1.5). */
	ret = region_access(v, false, VFIO_PCI_CONFIG_REGION_INDEX, 0x08, &class, 4, 0);
	if (!ret && class >> 8 != 0x010802)
		return vroom_fail(ENODEV,
				  "%s: serves a PCI function of class %06xh, not an NVMe "
				  "controller (010802h)",
				  v->name, class >> 8);
	/* Memory space and bus mastering on, INTx off; a server may not care. */
	if (!ret)
		ret = region_access(v, false, VFIO_PCI_CONFIG_REGION_INDEX, PCI_COMMAND, &command,
				    2, 0);
	command |= PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER | PCI_COMMAND_INTX_DISABLE;
	if (!ret)
		ret = region_access(v, true, VFIO_PCI_CONFIG_REGION_INDEX, PCI_COMMAND, &command, 2,
				    0);
	return ret;
}

/* The area of BAR0 that holds the doorbells and may be mapped; false: there is none. */
static bool find_mappable(const char *reply, size_t bytes, uint64_t *offset, uint64_t *size)
{
	const struct vfio_region_info *info = (const void *)reply;
	uint32_t at = info->cap_offset;

	if (!(info->flags & VFIO_REGION_INFO_FLAG_MMAP))
		return false;
	*offset = 0;
	*size = info->size;
	if (!(info->flags & VFIO_REGION_INFO_FLAG_CAPS))
		return *size > NVME_REG_DOORBELLS;
	while (at && at + sizeof(struct vfio_region_info_cap_sparse_mmap) <= bytes) {
		const struct vfio_region_info_cap_sparse_mmap *sparse = (const void *)(reply + at);

		if (sparse->header.id == VFIO_REGION_INFO_CAP_SPARSE_MMAP) {
			for (uint32_t i = 0; i < sparse->nr_areas; i++) {
				if ((const char *)&sparse->areas[i + 1] > reply + bytes)
					return false;
				*offset = sparse->areas[i].offset;
				*size = sparse->areas[i].size;
				if (*offset <= NVME_REG_DOORBELLS &&
				    NVME_REG_DOORBELLS < *offset + *size)
					return true;
			}
			return false;
		}
		if (sparse->header.next <= at)
			break;
		at = sparse->header.next;
	}
	return *size > NVME_REG_DOORBELLS;
}

static int map_bar0(struct vfio_user *v)
{
	union {
		struct vfio_region_info info;
		char bytes[4096];
	} out = { .info = { .argsz = sizeof(out), .index = VFIO_PCI_BAR0_REGION_INDEX } }, in;
	struct message m = { .command = VFIO_USER_DEVICE_GET_REGION_INFO,
			     .payload = &out,
			     .bytes = sizeof(out.info),
			     .reply = &in,
			     .reply_capacity = sizeof(in) };
	uint64_t offset, size;
	int ret = ask(v, &m, sizeof(in.info));

	if (ret)
		return ret;
	if (in.info.size <= NVME_REG_DOORBELLS) {
		ret = vroom_fail(ENODEV, "%s: BAR0 of %llu bytes has no room for doorbells",
				 v->name, (unsigned long long)in.info.size);
	} else if (m.reply_nfds && find_mappable(in.bytes, m.reply_bytes, &offset, &size)) {
		char *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, m.reply_fds[0],
				 (off_t)(in.info.offset + offset));

		if (map != MAP_FAILED) { /* else doorbells are messages */
			v->bar0_map = map;
			v->bar0_map_offset = offset;
			v->bar0_map_bytes = size;
			v->base.doorbells = (void *)(map + (NVME_REG_DOORBELLS - offset));
			v->base.doorbell_bytes = size - (NVME_REG_DOORBELLS - offset);
		}
	}
	close_fds(m.reply_fds, m.reply_nfds);
	return ret;
}

/*
 * With a sleep word the server may sleep although doorbells are plain stores: whoever writes
 * one and sees the word set signals the ioeventfd. The store and the load need no fence
 * between them, since the server issues a membarrier() on its side before it sleeps.
 */
static int setup_wake(struct vfio_user *v)
{
	union {
		struct vfio_user_region_io_fds io;
		char bytes[sizeof(struct vfio_user_region_io_fds) +
			   VFIO_USER_MAX_FDS * sizeof(struct vfio_user_ioeventfd)];
	} out = { .io = { .argsz = sizeof(out), .index = VFIO_PCI_BAR0_REGION_INDEX } }, in;
	struct message m = { .command = VFIO_USER_DEVICE_GET_REGION_IO_FDS,
			     .payload = &out,
			     .bytes = sizeof(out.io),
			     .reply = &in,
			     .reply_capacity = sizeof(in) };
	uint64_t word = (uint64_t)v->sleep_word;
	int ret;

	if (v->sleep_word < 0 || !v->bar0_map || word % 4 || word < v->bar0_map_offset ||
	    word + 4 > v->bar0_map_offset + v->bar0_map_bytes)
		return 0;
	ret = ask(v, &m, sizeof(in.io));
	if (ret)
		return ret;
	if (m.reply_nfds != 1) {
		close_fds(m.reply_fds, m.reply_nfds);
		return 0;
	}
	v->wake_fd = m.reply_fds[0];
	v->base.needs_kick = (void *)(v->bar0_map + (word - v->bar0_map_offset));
	syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0);
	return 0;
}

static int vfio_user_set_irq(struct vroom_transport *t, unsigned vector, int fd)
{
	union {
		struct vfio_irq_set set;
		char bytes[sizeof(struct vfio_irq_set)];
	} out = { .set = { .argsz = sizeof(out),
			   .flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER,
			   .index = VFIO_PCI_MSIX_IRQ_INDEX,
			   .start = vector,
			   .count = 1 } };
	struct message m = { .command = VFIO_USER_DEVICE_SET_IRQS,
			     .payload = &out,
			     .bytes = sizeof(out),
			     .fds = &fd,
			     .nfds = fd >= 0 };

	return ask((struct vfio_user *)t, &m, 0);
}

static int count_vectors(struct vfio_user *v)
{
	struct vfio_irq_info info = { .argsz = sizeof(info), .index = VFIO_PCI_MSIX_IRQ_INDEX };
	struct message m = { .command = VFIO_USER_DEVICE_GET_IRQ_INFO,
			     .payload = &info,
			     .bytes = sizeof(info),
			     .reply = &info,
			     .reply_capacity = sizeof(info) };
	int ret = ask(v, &m, sizeof(info));

	v->base.vectors = info.count;
	return ret;
}

static int vfio_user_reset(struct vroom_transport *t)
{
	struct message m = { .command = VFIO_USER_DEVICE_RESET };

	return ask((struct vfio_user *)t, &m, 0);
}

static int connect_socket(struct vfio_user *v, const char *path)
{
	struct sockaddr_un sun = { .sun_family = AF_UNIX };
	int fd;

	if (strlen(path) >= sizeof(sun.sun_path))
		return vroom_fail(ENAMETOOLONG, "%s: socket paths are limited to %zu characters",
				  path, sizeof(sun.sun_path) - 1);
	memcpy(sun.sun_path, path, strlen(path));
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return vroom_fail(errno, "%s: %s", path, strerror(errno));
	/* Not blocking, or a listener that never accepts would hold us up for ever. */
	if (connect(fd, (const struct sockaddr *)&sun, sizeof(sun)) != 0) {
		int err = errno;

		close(fd);
		if (err == ECONNREFUSED)
			return vroom_fail(err,
					  "%s: nobody listens on this socket; start the "
					  "controller, for instance with vroom emulate --socket",
					  path);
		if (err == EAGAIN)
			return vroom_fail(EBUSY, "%s: the controller has another client", path);
		return vroom_fail(err, "%s: %s", path, strerror(err));
	}
	fcntl(fd, F_SETFL, 0);
	v->socket = fd;
	return 0;
}

static void vfio_user_close(struct vroom_transport *t, bool owner)
{
	struct vfio_user *v = (struct vfio_user *)t;

	if (v->bar0_map)
		munmap(v->bar0_map, v->bar0_map_bytes);
	if (v->wake_fd >= 0)
		close(v->wake_fd);
	if (v->socket >= 0)
		close(v->socket);
	if (owner && v->emulated.pid)
		vroom_emulated_end(&v->emulated);
	if (v->shared)
		munmap(v->shared, sizeof(*v->shared));
	free(v);
}

static int vfio_user_open(const struct vroom_address *addr, const struct vroom_transport_opts *opts,
			  struct vroom_transport **out)
{
	struct vfio_user *v = calloc(1, sizeof(*v));
	int ret;

	if (!v)
		return vroom_fail(ENOMEM, "%s: out of memory", addr->text);
	v->base.ops = &vroom_transport_vfio_user;
	v->name = addr->text;
	v->socket = v->wake_fd = -1;
	v->sleep_word = -1;
	v->timeout_ms = opts->timeout_ms;
	v->shared = mmap(NULL, sizeof(*v->shared), PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (v->shared == MAP_FAILED) {
		v->shared = NULL;
		ret = vroom_fail(ENOMEM, "%s: out of memory", addr->text);
		goto out_close;
	}
	ret = vroom_lock_init(&v->shared->lock);
	if (ret)
		goto out_close;
	if (addr->kind == VROOM_ADDRESS_SOCKET) {
		ret = connect_socket(v, addr->path);
	} else {
		ret = vroom_emulated_start(addr, opts->file_bytes, &v->emulated);
		v->socket = v->emulated.socket;
	}
	if (ret)
		goto out_close;
	ret = negotiate(v);
	if (ret && v->emulated.pid)
		ret = vroom_emulated_why(&v->emulated, addr, ret);
	if (ret)
		goto out_close;
	ret = check_device(v);
	if (!ret)
		ret = map_bar0(v);
	if (!ret)
		ret = setup_wake(v);
	if (!ret && opts->interrupts)
		ret = count_vectors(v);
	if (ret)
		goto out_close;
	v->base.numa_node = -1;
	*out = &v->base;
	return 0;

out_close:
	vfio_user_close(&v->base, true);
	return ret;
}

const struct vroom_transport_ops vroom_transport_vfio_user = {
	.name = "vfio-user",
	.open = vfio_user_open,
	.close = vfio_user_close,
	.read = vfio_user_read,
	.write = vfio_user_write,
	.dma_map = vfio_user_dma_map,
	.reset = vfio_user_reset,
	.set_irq = vfio_user_set_irq,
	.kick = vfio_user_kick,
	.alive = vfio_user_alive,
};
