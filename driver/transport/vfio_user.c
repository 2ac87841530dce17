/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Transport vfio-user: a client of the vfio-user protocol, for any NVMe controller that is
 * served on a UNIX socket. When the address is a file, emu-mem or emu-null, the server is
 * our own emulated controller, started here and ended with the last user of the socket. Forked
 * processes share socket and inbox. One that dies in an exchange leaves a reply behind, or a part
 * of one: the next takes the rest, and skips what is not its own. Only a death inside the system
 * call that takes a part of a message ends the connection.
 */
#include <json-c/json.h>
#include <linux/membarrier.h>
#include <linux/pci_regs.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "pci/pci.h"
#include "transport/transport.h"
#include "transport/vfio_user_wire.h"
#include "vroom_nvme.h"

#define CONFIG_BYTES 256 /* of configuration space: header and capabilities */

/* In memory that processes share. */
struct vfio_user {
	struct vroom_transport base;
	struct vroom_emulated emulated; /* pid 0: the server is not ours */
	const char *name;		/* for messages: the address as written */
	int socket;
	unsigned timeout_ms;
	bool may_be_busy;    /* an end now means that the controller has another client */
	uint64_t sleep_word; /* offset into BAR0 that the server announced, or 0 */
	int wake_fd;	     /* the doorbells' ioeventfd, or -1 */
	pthread_mutex_t lock;
	uint16_t msg_id;
	struct vfio_user_inbox in;
};

/* A message, and what must come back: REPLY_BYTES or more, of which REPLY, if any, gets as many. */
struct message {
	uint16_t command;
	const void *payload;
	size_t bytes;
	void *reply;
	size_t reply_bytes;
	const int *fd;	     /* sent along; NULL: none */
	int *reply_fd;	     /* gets a descriptor, the caller's to close, if there is one */
	unsigned timeout_ms; /* 0: the transport's */
};

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

static int gone(const struct vfio_user *v)
{
	if (v->may_be_busy)
		return vroom_fail_on(v->name, EBUSY, "the controller has another client");
	return vroom_fail_on(v->name, ENODEV,
			     "the controller's process closed the connection; start it again");
}

/*
 * Waits for the reply to the last message; -EAGAIN: in vain. What else arrives is dropped: replies
 * that a dead process did not fetch, and commands of the server, which has nothing to ask.
 */
static int receive_reply(struct vfio_user *v, uint64_t deadline)
{
	struct vfio_user_inbox *in = &v->in;

	do {
		int ret = vfio_user_receive(v->socket, in);

		if (ret < 0)
			return ret;
		if (ret && (in->header.flags & VFIO_USER_FLAG_TYPE_MASK) == VFIO_USER_FLAG_REPLY &&
		    in->header.msg_id == v->msg_id)
			return 0;
		if (ret) {
			vfio_user_drop_fds(in);
			in->received = 0;
		}
	} while (vroom_wait_fd(v->socket, POLLIN, deadline));
	return -EAGAIN;
}

/* From the inbox to M. */
static int take_reply(struct vfio_user *v, const struct message *m)
{
	struct vfio_user_inbox *in = &v->in;
	size_t bytes = in->header.msg_size - sizeof(in->header);
	uint32_t error_no = in->header.error_no;
	int err = error_no && error_no < 4096 ? (int)error_no : EINVAL;

	in->received = 0;
	if (in->header.flags & VFIO_USER_FLAG_ERROR)
		return vroom_fail_on(v->name, err, "the controller refused %s: %s",
				     command_names[m->command], strerror(err));
	if (bytes < m->reply_bytes)
		return vroom_fail_on(v->name, EPROTO, "%s was answered with %zu bytes, not %zu",
				     command_names[m->command], bytes, m->reply_bytes);
	if (m->reply)
		memcpy(m->reply, in->bytes + sizeof(in->header), m->reply_bytes);
	if (m->reply_fd && in->nr_fds) {
		*m->reply_fd = in->fds[0];
		in->fds[0] = in->fds[--in->nr_fds];
	}
	return 0;
}

static int exchange_locked(struct vfio_user *v, const struct message *m)
{
	struct vfio_user_header header = {
		.msg_id = ++v->msg_id,
		.command = m->command,
		.msg_size = (uint32_t)(sizeof(header) + m->bytes),
	};
	unsigned timeout_ms = m->timeout_ms ? m->timeout_ms : v->timeout_ms;
	uint64_t deadline = vroom_now_ms() + timeout_ms;
	int ret;

	if (v->in.taking)
		return vroom_fail_on(v->name, ENODEV,
				     "the connection is lost: a process that shared it was killed "
				     "while it read an answer; repeat the run");
	v->in.nr_fds = 0; /* those of a process that died here have gone with it */
	do {		  /* the socket of a server that reads nothing fills up */
		ret = vfio_user_send(v->socket, &header, m->payload, m->fd, m->fd != NULL,
				     MSG_DONTWAIT);
	} while (ret == -EAGAIN && vroom_wait_fd(v->socket, POLLOUT, deadline));
	if (!ret)
		ret = receive_reply(v, deadline);
	switch (ret) {
	case 0: return take_reply(v, m);
	case -EAGAIN:
		return vroom_fail_on(v->name, ETIMEDOUT,
				     "no answer to %s within %u ms; is its process stuck%s?",
				     command_names[m->command], timeout_ms,
				     v->may_be_busy ? ", or serving another client" : "");
	case -EMSGSIZE:
		return vroom_fail_on(v->name, EPROTO,
				     "does not speak vfio-user (a message of %u bytes)",
				     v->in.header.msg_size);
	default: return gone(v);
	}
}

/* Sends M and fills in its reply. From any process. */
static int exchange(struct vfio_user *v, const struct message *m)
{
	int ret;

	vroom_lock(&v->lock);
	ret = exchange_locked(v, m);
	vfio_user_drop_fds(&v->in); /* but not the part of a message: the rest may come */
	vroom_unlock(&v->lock);
	return ret;
}

/* A message of BYTES without descriptors, answered with REPLY_BYTES. */
static int ask(struct vfio_user *v, uint16_t command, const void *payload, size_t bytes,
	       void *reply, size_t reply_bytes)
{
	struct message m = { command, payload, bytes, reply, reply_bytes, NULL, NULL, 0 };

	return exchange(v, &m);
}

/* What answers a read, and what a write is. */
struct region_data {
	struct vfio_user_region_access at;
	char value[8];
};

static int vfio_user_read(struct vroom_transport *t, uint32_t offset, void *value, unsigned width,
			  unsigned timeout_ms)
{
	struct vfio_user_region_access at = { offset, VFIO_PCI_BAR0_REGION_INDEX, width };
	struct region_data in;
	struct message m = { VFIO_USER_REGION_READ,   &at, sizeof(at), &in, sizeof(at) + width,
			     .timeout_ms = timeout_ms };
	int ret = exchange((struct vfio_user *)t, &m);

	if (!ret)
		memcpy(value, in.value, width);
	return ret;
}

static int vfio_user_write(struct vroom_transport *t, uint32_t offset, const void *value,
			   unsigned width)
{
	struct region_data out = { .at = { offset, VFIO_PCI_BAR0_REGION_INDEX, width } };

	memcpy(out.value, value, width);
	return ask((struct vfio_user *)t, VFIO_USER_REGION_WRITE, &out, sizeof(out.at) + width,
		   NULL, 0);
}

static int config_write(struct vfio_user *v, unsigned offset, uint16_t value)
{
	struct region_data out = { .at = { offset, VFIO_PCI_CONFIG_REGION_INDEX, 2 } };

	memcpy(out.value, &value, 2);
	return ask(v, VFIO_USER_REGION_WRITE, &out, sizeof(out.at) + 2, NULL, 0);
}

static int vfio_user_dma_map(struct vroom_transport *t, struct vroom_dma_map *dma)
{
	struct vfio_user *v = (struct vfio_user *)t;
	struct vfio_iommu_type1_dma_map map = {
		.argsz = sizeof(map),
		.flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
		.vaddr = dma->fd_offset,
		.iova = dma->iova,
		.size = dma->bytes,
	};
	struct message m = { VFIO_USER_DMA_MAP, &map, sizeof(map), .fd = &dma->fd };

	if (dma->fd < 0)
		return vroom_fail_on(v->name, ENOTSUP,
				     "memory without a file cannot be shared with a process");
	for (size_t i = 0; i < dma->bytes >> dma->page_shift; i++)
		dma->page_iova[i] = dma->iova + (i << dma->page_shift);
	return exchange(v, &m);
}

static int vfio_user_dma_unmap(struct vroom_transport *t, uint64_t iova, size_t bytes)
{
	struct vfio_iommu_type1_dma_unmap unmap = { sizeof(unmap), .iova = iova, .size = bytes };

	return ask((struct vfio_user *)t, VFIO_USER_DMA_UNMAP, &unmap, sizeof(unmap), NULL, 0);
}

/* A process that has ended writes to nobody's memory. */
static int vfio_user_cut_off(struct vroom_transport *t)
{
	struct vfio_user *v = (struct vfio_user *)t;

	if (v->emulated.pid)
		return vroom_emulated_kill(&v->emulated, v->name);
	return vroom_fail_on(
		v->name, ENOTSUP,
		"the controller's process, which is not vroom's, reaches memory; end it");
}

static int vfio_user_reset(struct vroom_transport *t)
{
	return ask((struct vfio_user *)t, VFIO_USER_DEVICE_RESET, NULL, 0, NULL, 0);
}

static int vfio_user_set_irq(struct vroom_transport *t, unsigned vector, int fd)
{
	struct vfio_irq_set set = { sizeof(set),
				    VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER,
				    VFIO_PCI_MSIX_IRQ_INDEX, vector, .count = 1 };
	struct message m = { VFIO_USER_DEVICE_SET_IRQS, &set, sizeof(set),
			     .fd = fd >= 0 ? &fd : NULL };

	return exchange((struct vfio_user *)t, &m);
}

static void vfio_user_kick(struct vroom_transport *t)
{
	eventfd_write(((struct vfio_user *)t)->wake_fd, 1);
}

static int vfio_user_alive(struct vroom_transport *t)
{
	const struct vfio_user *v = (struct vfio_user *)t;
	struct pollfd p = { .fd = v->socket, .events = POLLRDHUP };

	return poll(&p, 1, 0) > 0 ? gone(v) : 0;
}

static void vfio_user_close(struct vroom_transport *t, bool owner)
{
	struct vfio_user *v = (struct vfio_user *)t;

	if (t->doorbells)
		munmap((void *)(uintptr_t)t->doorbells, t->doorbell_bytes);
	close(v->wake_fd);
	close(v->socket);
	if (v->emulated.pid)
		vroom_emulated_close(&v->emulated, owner);
	munmap(v, sizeof(*v));
}

/* The last reply where it is: while a transport is being opened nobody else uses it. */
static const void *last_reply(struct vfio_user *v)
{
	return v->in.bytes + sizeof(v->in.header);
}

static int negotiate(struct vfio_user *v)
{
	static const struct vfio_user_version ask_for = {
		VFIO_USER_MAJOR, VFIO_USER_MINOR,
		"{\"capabilities\":{\"max_msg_fds\":8,\"max_data_xfer_size\":4096}}"
	};
	const size_t head = offsetof(struct vfio_user_version, json);
	const struct vfio_user_version *reply = last_reply(v);
	struct json_object *root, *word;
	int ret = ask(v, VFIO_USER_VERSION, &ask_for, head + strlen(ask_for.json) + 1, NULL, head);

	if (ret)
		return ret;
	if (reply->major != VFIO_USER_MAJOR)
		return vroom_fail_on(v->name, EPROTO, "speaks vfio-user %u.%u, vroom %u.%u",
				     reply->major, reply->minor, VFIO_USER_MAJOR, VFIO_USER_MINOR);
	v->in.bytes[VROOM_MIN(v->in.header.msg_size, sizeof(v->in.bytes) - 1)] = '\0';
	root = json_tokener_parse(reply->json);
	if (root && json_pointer_get(root, VFIO_USER_SLEEP_WORD, &word) == 0)
		v->sleep_word = (uint64_t)json_object_get_int64(word);
	json_object_put(root);
	return 0;
}

static int connect_socket(const char *path)
{
	struct sockaddr_un sun = { .sun_family = AF_UNIX };
	int fd, err;

	if (strlen(path) >= sizeof(sun.sun_path))
		return vroom_fail_on(path, ENAMETOOLONG, "socket paths have %zu characters at most",
				     sizeof(sun.sun_path) - 1);
	strcpy(sun.sun_path, path);
	/* Not blocking, or a listener that never accepts would hold us up for ever. */
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd >= 0 && connect(fd, (const struct sockaddr *)&sun, sizeof(sun)) == 0)
		return fd;
	err = errno;
	close(fd);
	if (err == EAGAIN)
		return vroom_fail_on(path, EBUSY, "the controller has another client");
	if (err == ECONNREFUSED)
		return vroom_fail_on(path, err,
				     "nobody listens on this socket; start the controller, for "
				     "instance with vroom emulate --socket");
	return vroom_fail_on(path, err, "%s", strerror(err));
}

static int reach_server(struct vfio_user *v, const struct vroom_address *addr, uint64_t file_bytes)
{
	bool ours = addr->kind != VROOM_ADDRESS_SOCKET;
	int ret = ours ? vroom_emulated_start(addr, file_bytes, &v->emulated)
		       : connect_socket(addr->path);

	if (ret < 0)
		return ret;
	v->socket = ret;
	v->may_be_busy = !ours; /* until it answers */
	ret = negotiate(v);
	v->may_be_busy = false;
	return ret && ours ? vroom_emulated_why(&v->emulated, addr, ret) : ret;
}

/* The area of BAR0 that holds the doorbells and may be mapped; of no bytes when there is none. */
static struct vfio_region_sparse_mmap_area find_doorbells(const struct vfio_region_info *info,
							  size_t bytes)
{
	const struct vfio_region_info_cap_sparse_mmap *cap;
	struct vfio_region_sparse_mmap_area none = { 0 }, all = { .size = info->size };

	if (!(info->flags & VFIO_REGION_INFO_FLAG_MMAP))
		return none;
	if (!(info->flags & VFIO_REGION_INFO_FLAG_CAPS))
		return all;
	for (uint32_t at = info->cap_offset, last = 0;
	     at > last && at % 8 == 0 && at + sizeof(*cap) <= bytes;
	     last = at, at = cap->header.next) {
		size_t room = (bytes - at - sizeof(*cap)) / sizeof(*cap->areas);

		cap = (const void *)((const char *)info + at);
		if (cap->header.id != VFIO_REGION_INFO_CAP_SPARSE_MMAP)
			continue;
		for (uint32_t i = 0; i < VROOM_MIN(cap->nr_areas, room); i++)
			if (cap->areas[i].offset <= NVME_REG_DOORBELLS &&
			    cap->areas[i].size > NVME_REG_DOORBELLS - cap->areas[i].offset)
				return cap->areas[i];
		return none;
	}
	return all;
}

/* Maps the doorbells in AREA of BAR0, which lies in FD. To touch more than is there is deadly. */
static int map_doorbells(struct vfio_user *v, const struct vfio_region_info *info, int fd,
			 struct vfio_region_sparse_mmap_area area)
{
	uint64_t start = info->offset + NVME_REG_DOORBELLS,
		 end = info->offset + area.offset + area.size;
	struct stat st;
	void *map;

	if (area.size > info->size || area.offset > info->size - area.size)
		return vroom_fail_on(v->name, EPROTO,
				     "announces doorbells beyond its BAR0 of %llu bytes",
				     (unsigned long long)info->size);
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
	    (end < info->offset || end > (uint64_t)st.st_size))
		return vroom_fail_on(v->name, EPROTO,
				     "announces doorbells beyond its file of %llu bytes",
				     (unsigned long long)st.st_size);
	map = mmap(NULL, end - start, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)start);
	if (map == MAP_FAILED)
		return 0; /* then doorbells are messages */
	v->base.doorbells = map;
	v->base.doorbell_bytes = end - start;
	return 0;
}

static int map_bar0(struct vfio_user *v)
{
	struct vfio_region_info ask_for = { .argsz = VFIO_USER_MAX_PAYLOAD,
					    .index = VFIO_PCI_BAR0_REGION_INDEX };
	const struct vfio_region_info *info = last_reply(v);
	struct vfio_region_sparse_mmap_area area;
	int fd = -1;
	struct message m = { VFIO_USER_DEVICE_GET_REGION_INFO, &ask_for, sizeof(ask_for),
			     .reply_bytes = sizeof(*info), .reply_fd = &fd };
	int ret = exchange(v, &m);

	if (ret)
		return ret;
	area = find_doorbells(info, v->in.header.msg_size - sizeof(v->in.header));
	if (info->size <= NVME_REG_DOORBELLS)
		ret = vroom_fail_on(v->name, ENODEV, "BAR0 of %llu bytes has no room for doorbells",
				    (unsigned long long)info->size);
	else if (fd >= 0 && area.size)
		ret = map_doorbells(v, info, fd, area);
	close(fd);
	return ret;
}

/* The store to a doorbell and the load of the word need no fence: the server's membarrier(). */
static int setup_wake(struct vfio_user *v)
{
	struct vfio_user_region_io_fds io = { .argsz = VFIO_USER_MAX_PAYLOAD,
					      .index = VFIO_PCI_BAR0_REGION_INDEX };
	struct message m = { VFIO_USER_DEVICE_GET_REGION_IO_FDS, &io, sizeof(io),
			     .reply_fd = &v->wake_fd };
	uint64_t at = v->sleep_word - NVME_REG_DOORBELLS;
	int ret;

	if (v->sleep_word % 4 || at / 4 >= v->base.doorbell_bytes / 4)
		return 0;
	ret = exchange(v, &m);
	if (ret || v->wake_fd < 0)
		return ret;
	v->base.needs_kick = v->base.doorbells + at / 4;
	syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0);
	return 0;
}

/* Where the MSI-X capability is in configuration space, or 0. */
static unsigned find_msix(const uint8_t *config)
{
	unsigned at = PCI_CAPABILITY_LIST - PCI_CAP_LIST_NEXT; /* as if the head were one */
	unsigned left = CONFIG_BYTES / 4;		       /* the list may be a ring */

	if (!(config[PCI_STATUS] & PCI_STATUS_CAP_LIST))
		return 0;
	do {
		at = config[at + PCI_CAP_LIST_NEXT] & 0xfc;
	} while (at && config[at] != PCI_CAP_ID_MSIX && --left);
	return left ? at : 0;
}

/*
 * With INTx off, a controller raises interrupts only while MSI-X Enable is set and Function Mask
 * is not (PCIe transport 3.8.4). Both survive a client in some servers.
 */
static int setup_msix(struct vfio_user *v, const uint8_t *config, bool wanted)
{
	unsigned at = find_msix(config);
	uint16_t before, flags;
	int fd, ret;

	if (!at)
		return 0;
	memcpy(&before, config + at + PCI_MSIX_FLAGS, sizeof(before));
	flags = before & (uint16_t) ~(PCI_MSIX_FLAGS_ENABLE | PCI_MSIX_FLAGS_MASKALL);
	if (wanted) {
		/* Some servers raise none while vector 0 leads nowhere; nobody waits for it. */
		fd = eventfd(0, EFD_CLOEXEC);
		ret = vfio_user_set_irq(&v->base, 0, fd);
		close(fd);
		if (ret)
			return ret;
		v->base.vectors = (flags & PCI_MSIX_FLAGS_QSIZE) + 1;
		flags |= PCI_MSIX_FLAGS_ENABLE;
	}
	return flags == before ? 0 : config_write(v, at + PCI_MSIX_FLAGS, flags);
}

static int setup_function(struct vfio_user *v, bool interrupts)
{
	struct vfio_device_info info = { .argsz = VFIO_USER_DEVICE_INFO_BYTES };
	struct vfio_user_region_access at = { 0, VFIO_PCI_CONFIG_REGION_INDEX, CONFIG_BYTES };
	uint8_t config[CONFIG_BYTES];
	uint32_t class;
	int ret = ask(v, VFIO_USER_DEVICE_GET_INFO, &info, info.argsz, &info, info.argsz);

	if (ret)
		return ret;
	if (!(info.flags & VFIO_DEVICE_FLAGS_PCI))
		return vroom_fail_on(v->name, ENODEV, "serves a device that is not a PCI function");
	ret = ask(v, VFIO_USER_REGION_READ, &at, sizeof(at), NULL, sizeof(at) + CONFIG_BYTES);
	if (ret)
		return ret;
	memcpy(config, (const char *)last_reply(v) + sizeof(at), sizeof(config));
	memcpy(&class, config + PCI_CLASS_REVISION, sizeof(class));
	if (class >> 8 != VROOM_PCI_CLASS_NVME)
		return vroom_fail_on(v->name, ENODEV,
				     "serves a PCI function of class %06xh, not of NVMe's %06xh",
				     class >> 8, VROOM_PCI_CLASS_NVME);
	ret = config_write(v, PCI_COMMAND,
			   PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER | PCI_COMMAND_INTX_DISABLE);
	return ret ? ret : setup_msix(v, config, interrupts);
}

static int vfio_user_open(const struct vroom_address *addr, const struct vroom_transport_opts *opts,
			  struct vroom_transport **out)
{
	struct vfio_user *v;
	int ret = vroom_share(addr->text, sizeof(*v), (void **)&v);

	if (ret)
		return ret;
	v->base = (struct vroom_transport){ .ops = &vroom_transport_vfio_user, .numa_node = -1 };
	v->wake_fd = -1;
	v->name = addr->text;
	v->socket = -1;
	v->timeout_ms = opts->timeout_ms;
	ret = vroom_lock_init(&v->lock) ?: reach_server(v, addr, opts->file_bytes)
		?: setup_function(v, opts->interrupts) ?: map_bar0(v) ?: setup_wake(v);
	if (ret)
		vfio_user_close(&v->base, true);
	else
		*out = &v->base;
	return ret;
}

const struct vroom_transport_ops vroom_transport_vfio_user = {
	.name = "vfio-user",
	.open = vfio_user_open,
	.close = vfio_user_close,
	.read = vfio_user_read,
	.write = vfio_user_write,
	.dma_map = vfio_user_dma_map,
	.dma_unmap = vfio_user_dma_unmap,
	.cut_off = vfio_user_cut_off,
	.reset = vfio_user_reset,
	.set_irq = vfio_user_set_irq,
	.kick = vfio_user_kick,
	.alive = vfio_user_alive,
};
