/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Transport vfio-user: a client of the vfio-user protocol, for any NVMe controller that is
 * served on a UNIX socket. When the address is a file, emu-mem or emu-null, the server is
 * our own emulated controller, started here and ended with the last user of the socket.
 * How messages and replies are exchanged is vfio_user_client.h's.
 */
#include <errno.h>
#include <fcntl.h>
#include <json-c/json.h>
#include <linux/membarrier.h>
#include <linux/pci_regs.h>
#include <linux/vfio.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/error.h"
#include "transport/emulated.h"
#include "transport/transport.h"
#include "transport/vfio_user_client.h"
#include "vroom_nvme.h"

struct vfio_user {
	struct vroom_transport base;
	struct vfio_user_client client;
	int wake_fd;			/* the doorbells' ioeventfd, or -1 */
	struct vroom_emulated emulated; /* pid 0: the server is not ours */
	char *bar0_map;			/* doorbells and what follows, as mapped */
	size_t bar0_map_offset;
	size_t bar0_map_bytes;
	int64_t sleep_word; /* offset into BAR0 that the server announced, or -1 */
};

/* A message of BYTES at OUT without descriptors, answered with LEAST bytes to IN, which may be OUT.
 */
static int ask(struct vfio_user *v, uint16_t command, const void *out, size_t bytes, void *in,
	       size_t least)
{
	struct vfio_user_message m = { .command = command,
				       .payload = out,
				       .bytes = bytes,
				       .reply = in,
				       .capacity = least,
				       .least = least };

	return vfio_user_exchange(&v->client, &m);
}

static int region_access(struct vfio_user *v, bool write, uint32_t region, uint64_t offset,
			 void *value, unsigned width, unsigned timeout_ms)
{
	union {
		struct vfio_user_region_access access;
		char bytes[sizeof(struct vfio_user_region_access) + 8];
	} out = { .access = { .offset = offset, .region = region, .count = width } }, in;
	struct vfio_user_message m = {
		.command = write ? VFIO_USER_REGION_WRITE : VFIO_USER_REGION_READ,
		.payload = &out,
		.bytes = sizeof(out.access) + (write ? width : 0),
		.timeout_ms = timeout_ms,
		.reply = &in,
		.capacity = sizeof(in),
		.least = write ? 0 : sizeof(in.access) + width,
	};
	int ret;

	if (write)
		memcpy(out.access.data, value, width);
	ret = vfio_user_exchange(&v->client, &m);
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

static int config_read(struct vfio_user *v, unsigned offset, void *value, unsigned width)
{
	return region_access(v, false, VFIO_PCI_CONFIG_REGION_INDEX, offset, value, width, 0);
}

static int config_write(struct vfio_user *v, unsigned offset, void *value, unsigned width)
{
	return region_access(v, true, VFIO_PCI_CONFIG_REGION_INDEX, offset, value, width, 0);
}

static int vfio_user_dma_map(struct vroom_transport *t, struct vroom_dma_map *dma)
{
	struct vfio_user *v = (struct vfio_user *)t;
	struct vfio_user_dma_map map = {
		.argsz = sizeof(map),
		.flags = VFIO_USER_DMA_READABLE | VFIO_USER_DMA_WRITEABLE,
		.offset = dma->fd_offset,
		.addr = dma->iova,
		.size = dma->bytes,
	};
	struct vfio_user_message m = { .command = VFIO_USER_DMA_MAP,
				       .payload = &map,
				       .bytes = sizeof(map),
				       .fds = &dma->fd,
				       .nr_fds = 1 };

	if (dma->fd < 0)
		return vroom_fail(ENOTSUP,
				  "%s: memory without a file cannot be shared with the "
				  "controller's process",
				  v->client.name);
	for (size_t i = 0; i < dma->bytes >> dma->page_shift; i++)
		dma->page_iova[i] = dma->iova + (i << dma->page_shift);
	return vfio_user_exchange(&v->client, &m);
}

static int vfio_user_dma_unmap(struct vroom_transport *t, uint64_t iova, size_t bytes)
{
	struct vfio_user_dma_unmap unmap = { .argsz = sizeof(unmap), .addr = iova, .size = bytes };

	return ask((struct vfio_user *)t, VFIO_USER_DMA_UNMAP, &unmap, sizeof(unmap), NULL, 0);
}

/* A process that has ended writes to nobody's memory. */
static int vfio_user_cut_off(struct vroom_transport *t)
{
	struct vfio_user *v = (struct vfio_user *)t;

	if (v->emulated.pid)
		return vroom_emulated_kill(&v->emulated, v->client.name);
	return vroom_fail(ENOTSUP,
			  "%s: the controller's process was not started by vroom and keeps its "
			  "access to memory; end it",
			  v->client.name);
}

static void vfio_user_kick(struct vroom_transport *t)
{
	struct vfio_user *v = (struct vfio_user *)t;

	if (v->wake_fd >= 0)
		eventfd_write(v->wake_fd, 1);
}

static int vfio_user_alive(struct vroom_transport *t)
{
	return vfio_user_client_alive(&((struct vfio_user *)t)->client);
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
	struct vfio_user_message m = {
		.command = VFIO_USER_VERSION,
		.payload = &out,
		.bytes = sizeof(out.version) + sizeof(capabilities),
		.reply = &in,
		.capacity = sizeof(in) - 1,
		.least = sizeof(in.version),
	};
	int ret;

	memcpy(out.version.json, capabilities, sizeof(capabilities));
	ret = vfio_user_exchange(&v->client, &m);
	if (ret)
		return ret;
	if (in.version.major != VFIO_USER_MAJOR)
		return vroom_fail(EPROTO, "%s: speaks vfio-user %u.%u, vroom %u.%u", v->client.name,
				  in.version.major, in.version.minor, VFIO_USER_MAJOR,
				  VFIO_USER_MINOR);
	v->client.may_be_busy = false;
	in.bytes[m.reply_bytes] = '\0';
	if (m.reply_bytes > sizeof(in.version))
		read_capabilities(v, in.version.json);
	return 0;
}

static int check_device(struct vfio_user *v)
{
	struct vfio_user_device_info info = { .argsz = sizeof(info) };
	uint32_t class = 0;
	uint16_t command = 0;
	int ret = ask(v, VFIO_USER_DEVICE_GET_INFO, &info, sizeof(info), &info, sizeof(info));

	if (ret)
		return ret;
	if (!(info.flags & VFIO_DEVICE_FLAGS_PCI) ||
	    info.num_regions <= VFIO_PCI_CONFIG_REGION_INDEX)
		return vroom_fail(ENODEV, "%s: serves a device that is not a PCI function",
				  v->client.name);
	/* Class code 010802h: NVM Express I/O controller (PCIe transport 3.8.1.5). */
	ret = config_read(v, PCI_CLASS_REVISION, &class, 4);
	if (!ret && class >> 8 != 0x010802)
		return vroom_fail(ENODEV,
				  "%s: serves a PCI function of class %06xh, not an NVMe "
				  "controller (010802h)",
				  v->client.name, class >> 8);
	/* Memory space and bus mastering on, INTx off; a server may not care. */
	if (!ret)
		ret = config_read(v, PCI_COMMAND, &command, 2);
	command |= PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER | PCI_COMMAND_INTX_DISABLE;
	return ret ? ret : config_write(v, PCI_COMMAND, &command, 2);
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
		return true;
	while (at && at % 8 == 0 && at + sizeof(struct vfio_region_info_cap_sparse_mmap) <= bytes) {
		const struct vfio_region_info_cap_sparse_mmap *sparse = (const void *)(reply + at);

		if (sparse->header.id == VFIO_REGION_INFO_CAP_SPARSE_MMAP) {
			for (uint32_t i = 0; i < sparse->nr_areas; i++) {
				if ((const char *)&sparse->areas[i + 1] > reply + bytes)
					return false;
				*offset = sparse->areas[i].offset;
				*size = sparse->areas[i].size;
				if (*offset <= NVME_REG_DOORBELLS &&
				    *size > NVME_REG_DOORBELLS - *offset)
					return true;
			}
			return false;
		}
		if (sparse->header.next <= at)
			break;
		at = sparse->header.next;
	}
	return true;
}

/* Maps SIZE bytes at OFFSET of BAR0, which lies in FD. To touch more than is there is deadly. */
static int map_doorbells(struct vfio_user *v, const struct vfio_region_info *info, int fd,
			 uint64_t offset, uint64_t size)
{
	uint64_t end = info->offset + offset + size;
	struct stat st;
	char *map;

	if (size > info->size || offset > info->size - size)
		return vroom_fail(EPROTO, "%s: announces doorbells beyond its BAR0 of %llu bytes",
				  v->client.name, (unsigned long long)info->size);
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
	    (end < info->offset || end > (uint64_t)st.st_size))
		return vroom_fail(EPROTO, "%s: announces doorbells beyond its file of %llu bytes",
				  v->client.name, (unsigned long long)st.st_size);
	map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
		   (off_t)(info->offset + offset));
	if (map == MAP_FAILED)
		return 0; /* then doorbells are messages */
	v->bar0_map = map;
	v->bar0_map_offset = offset;
	v->bar0_map_bytes = size;
	v->base.doorbells = (void *)(map + (NVME_REG_DOORBELLS - offset));
	v->base.doorbell_bytes = size - (NVME_REG_DOORBELLS - offset);
	return 0;
}

static int map_bar0(struct vfio_user *v)
{
	union {
		struct vfio_region_info info;
		char bytes[4096];
	} out = { .info = { .argsz = sizeof(out), .index = VFIO_PCI_BAR0_REGION_INDEX } }, in;
	int fd;
	struct vfio_user_message m = { .command = VFIO_USER_DEVICE_GET_REGION_INFO,
				       .payload = &out,
				       .bytes = sizeof(out.info),
				       .reply = &in,
				       .capacity = sizeof(in),
				       .least = sizeof(in.info),
				       .reply_fd = &fd };
	uint64_t offset, size;
	int ret = vfio_user_exchange(&v->client, &m);

	if (ret)
		return ret;
	if (in.info.size <= NVME_REG_DOORBELLS)
		ret = vroom_fail(ENODEV, "%s: BAR0 of %llu bytes has no room for doorbells",
				 v->client.name, (unsigned long long)in.info.size);
	else if (fd >= 0 && find_mappable(in.bytes, m.reply_bytes, &offset, &size))
		ret = map_doorbells(v, &in.info, fd, offset, size);
	if (fd >= 0)
		close(fd);
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
	struct vfio_user_message m = { .command = VFIO_USER_DEVICE_GET_REGION_IO_FDS,
				       .payload = &out,
				       .bytes = sizeof(out.io),
				       .reply = &in,
				       .capacity = sizeof(in),
				       .least = sizeof(in.io),
				       .reply_fd = &v->wake_fd };
	uint64_t word = (uint64_t)v->sleep_word;
	int ret;

	if (v->sleep_word < 0 || !v->bar0_map || word % 4 || word < v->bar0_map_offset ||
	    word + 4 > v->bar0_map_offset + v->bar0_map_bytes)
		return 0;
	ret = vfio_user_exchange(&v->client, &m);
	if (ret || v->wake_fd < 0)
		return ret;
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
	struct vfio_user_message m = { .command = VFIO_USER_DEVICE_SET_IRQS,
				       .payload = &out,
				       .bytes = sizeof(out),
				       .fds = &fd,
				       .nr_fds = fd >= 0 };

	return vfio_user_exchange(&((struct vfio_user *)t)->client, &m);
}

static int count_vectors(struct vfio_user *v)
{
	struct vfio_irq_info info = { .argsz = sizeof(info), .index = VFIO_PCI_MSIX_IRQ_INDEX };
	int ret = ask(v, VFIO_USER_DEVICE_GET_IRQ_INFO, &info, sizeof(info), &info, sizeof(info));

	v->base.vectors = ret ? 0 : info.count;
	return ret;
}

/* *AT is where the MSI-X capability is in configuration space, 0: there is none. */
static int find_msix(struct vfio_user *v, uint8_t *at)
{
	uint16_t status = 0, entry = 0; /* capability ID, offset of the next one */
	int ret = config_read(v, PCI_STATUS, &status, 2);

	*at = 0;
	if (!ret && (status & PCI_STATUS_CAP_LIST))
		ret = config_read(v, PCI_CAPABILITY_LIST, at, 1);
	*at &= 0xfc; /* the two low bits are reserved */
	/* No more than fit: the list may be a ring. */
	for (unsigned left = (256 - PCI_STD_HEADER_SIZEOF) / 4; !ret && *at; left--) {
		ret = config_read(v, *at, &entry, 2);
		if ((entry & 0xff) == PCI_CAP_ID_MSIX)
			return ret;
		*at = left > 1 ? entry >> 8 & 0xfc : 0;
	}
	return ret;
}

/*
 * Vector 0 is the admin queue's, which is always polled; but some servers raise no interrupt at
 * all while it leads nowhere, so it is given an eventfd that nobody reads.
 */
static int connect_vector_0(struct vfio_user *v)
{
	int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	int ret;

	if (fd < 0)
		return vroom_fail(errno, "%s: eventfd: %s", v->client.name, strerror(errno));
	ret = vfio_user_set_irq(&v->base, 0, fd);
	close(fd); /* the server has its own */
	return ret;
}

/*
 * With INTx off, a controller raises interrupts only while MSI-X Enable is set and Function Mask
 * is not (PCIe transport 3.8.4). Both survive a client in some servers.
 */
static int setup_msix(struct vfio_user *v, bool wanted)
{
	uint16_t flags = 0, before;
	uint8_t at;
	int ret = find_msix(v, &at);

	if (ret || !at) /* without the capability there are no vectors */
		return ret;
	ret = config_read(v, at + PCI_MSIX_FLAGS, &flags, 2);
	if (!ret && wanted)
		ret = count_vectors(v);
	if (!ret && wanted)
		ret = connect_vector_0(v);
	before = flags;
	flags &= (uint16_t) ~(PCI_MSIX_FLAGS_ENABLE | PCI_MSIX_FLAGS_MASKALL);
	if (wanted)
		flags |= PCI_MSIX_FLAGS_ENABLE;
	if (ret || flags == before)
		return ret;
	return config_write(v, at + PCI_MSIX_FLAGS, &flags, 2);
}

static int vfio_user_reset(struct vroom_transport *t)
{
	return ask((struct vfio_user *)t, VFIO_USER_DEVICE_RESET, NULL, 0, NULL, 0);
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
	v->client.socket = fd;
	v->client.may_be_busy = true; /* until it answers */
	return 0;
}

static void vfio_user_close(struct vroom_transport *t, bool owner)
{
	struct vfio_user *v = (struct vfio_user *)t;

	if (v->bar0_map)
		munmap(v->bar0_map, v->bar0_map_bytes);
	if (v->wake_fd >= 0)
		close(v->wake_fd);
	vfio_user_client_close(&v->client);
	if (v->emulated.pid)
		vroom_emulated_close(&v->emulated, owner);
	free(v);
}

static int reach_server(struct vfio_user *v, const struct vroom_address *addr, uint64_t file_bytes)
{
	int ret;

	if (addr->kind == VROOM_ADDRESS_SOCKET) {
		ret = connect_socket(v, addr->path);
		return ret ? ret : negotiate(v);
	}
	ret = vroom_emulated_start(addr, file_bytes, &v->emulated);
	if (ret)
		return ret;
	v->client.socket = v->emulated.socket;
	ret = negotiate(v);
	return ret ? vroom_emulated_why(&v->emulated, addr, ret) : 0;
}

static int vfio_user_open(const struct vroom_address *addr, const struct vroom_transport_opts *opts,
			  struct vroom_transport **out)
{
	struct vfio_user *v = calloc(1, sizeof(*v));
	int ret;

	if (!v)
		return vroom_fail(ENOMEM, "%s: out of memory", addr->text);
	v->base.ops = &vroom_transport_vfio_user;
	v->base.numa_node = -1;
	v->wake_fd = -1;
	v->sleep_word = -1;
	v->client.name = addr->text;
	v->client.timeout_ms = opts->timeout_ms;
	ret = vfio_user_client_init(&v->client);
	if (!ret)
		ret = reach_server(v, addr, opts->file_bytes);
	if (!ret)
		ret = check_device(v);
	if (!ret)
		ret = map_bar0(v);
	if (!ret)
		ret = setup_wake(v);
	if (!ret)
		ret = setup_msix(v, opts->interrupts);
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
