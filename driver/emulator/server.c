/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The vfio-user server around the controller: it answers messages between rounds of the
 * controller's loop, polls while there is work and sleeps when there is none.
 *
 * Doorbells in a mapped page make no noise when they are written. A client that knows the
 * sleep word signals an eventfd when it finds the word set after its store. For all others
 * the doorbells are looked at every few milliseconds while idle.
 */
#include <linux/membarrier.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "base/base.h"
#include "emulator/emulator.h"
#include "transport/vfio_user_wire.h"

#define NR_IRQS (VFIO_PCI_NUM_IRQS)
/* Empty rounds that only pause, before the processor is offered to others. */
#define SPIN_ROUNDS 400
/* Idle time after which it is worth sleeping. */
#define IDLE_NS 1000000u
/* Rounds with work between two looks at the socket. */
#define BUSY_ROUNDS	    256
#define SLEEP_MIN_NS	    100000
#define SLEEP_MAX_MS	    8	 /* for clients that do not wake us */
#define SLEEP_MAX_WAKING_MS 1000 /* for those that do */

struct server {
	struct emu e;
	int listener; /* -1: serving a given socket */
	int client;   /* -1: none */
	int wake_fd;
	bool client_wakes;
	bool membarrier;
	sigset_t unblocked; /* the signal mask while waiting */
	struct vfio_user_inbox in;
	uint8_t config[256], config_mask[256]; /* PCI configuration space, writeable bits */
};

static volatile sig_atomic_t stop_requested;

static void on_signal(int sig)
{
	(void)sig;
	stop_requested = 1;
}

static int complain(const struct emu_options *o, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
static int complain(const struct emu_options *o, const char *format, ...)
{
	int fd = o->report_fd >= 0 ? o->report_fd : STDERR_FILENO;
	char line[1024];
	va_list args;

	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	dprintf(fd, "%s%s\n", fd == STDERR_FILENO ? "vroom emulate: " : "", line);
	return 1;
}

/* --- PCI configuration space (PCIe transport 3.8) ----------------------------------------------
 */

#define BAR4_BYTES 8192 /* MSI-X table, then its pending bits; the client's to emulate */

static void put(uint8_t *at, uint32_t value, unsigned width)
{
	memcpy(at, &value, width);
}

static void config_init(struct server *s)
{
	uint8_t *c = s->config, *m = s->config_mask;
	uint32_t bar0_mask = (uint32_t) ~(s->e.bar0_bytes - 1);

	memset(c, 0, sizeof(s->config));
	memset(m, 0, sizeof(s->config_mask));
	put(c + 0x00, 0x5652, 2); /* vendor and device: nobody's */
	put(c + 0x02, 0x0001, 2);
	put(m + 0x04, 0x0546, 2);	     /* command: memory, bus master, parity, SERR, INTx */
	put(c + 0x06, 0x0010, 2);	     /* status: capability list */
	put(c + 0x08, 0x010802 << 8 | 1, 4); /* class code, revision */
	put(c + 0x10, 0x4, 4);		     /* BAR0: 64-bit memory */
	put(m + 0x10, bar0_mask, 4);
	put(m + 0x14, 0xffffffff, 4);
	put(m + 0x20, (uint32_t) ~(BAR4_BYTES - 1), 4); /* BAR4: 32-bit memory */
	put(c + 0x2c, 0x5652, 2);
	put(c + 0x2e, 0x0001, 2);
	put(c + 0x34, 0x40, 1);	  /* first capability */
	put(m + 0x3c, 0xff, 1);	  /* interrupt line */
	put(c + 0x3d, 1, 1);	  /* INTA */
	put(c + 0x40, 0x5001, 2); /* power management, next at 50h */
	put(c + 0x42, 0x0003, 2);
	put(c + 0x44, 0x0008, 2); /* D0, no soft reset */
	put(m + 0x44, 0x0003, 2);
	put(c + 0x50, 0x6011, 2);	    /* MSI-X, next at 60h */
	put(c + 0x52, s->e.opts.queues, 2); /* table size, 0-based */
	put(m + 0x52, 0xc000, 2);
	put(c + 0x54, 0x4, 4);		/* table in BAR4 */
	put(c + 0x58, 0x1000 | 0x4, 4); /* pending bits there as well */
	put(c + 0x60, 0x0010, 2);	/* PCI Express endpoint, the last one */
	put(c + 0x62, 0x0002, 2);
	put(c + 0x64, 0x10008000, 4); /* role-based errors, function-level reset */
}

static void config_access(struct server *s, bool write, uint64_t offset, uint8_t *data,
			  unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		uint64_t at = offset + i;

		if (at >= sizeof(s->config)) {
			if (!write)
				data[i] = 0;
		} else if (write) {
			s->config[at] = (uint8_t)((s->config[at] & ~s->config_mask[at]) |
						  (data[i] & s->config_mask[at]));
		} else {
			data[i] = s->config[at];
		}
	}
}

/* --- messages
 * -------------------------------------------------------------------------------------- */

/* Sends a reply of BYTES at PAYLOAD with FDS; ERR is a positive errno or 0. */
static int reply(struct server *s, const void *payload, size_t bytes, const int *fds,
		 unsigned nr_fds, int err)
{
	struct vfio_user_header header = {
		.msg_id = s->in.header.msg_id,
		.command = s->in.header.command,
		.msg_size = (uint32_t)(sizeof(header) + (err ? 0 : bytes)),
		.flags = VFIO_USER_FLAG_REPLY | (err ? VFIO_USER_FLAG_ERROR : 0),
		.error_no = (uint32_t)err,
	};

	if (s->in.header.flags & VFIO_USER_FLAG_NO_REPLY)
		return 0;
	return vfio_user_send(s->client, &header, payload, fds, err ? 0 : nr_fds, 0);
}

static int reply_error(struct server *s, int err)
{
	return reply(s, NULL, 0, NULL, 0, err);
}

static int on_version(struct server *s, const struct vfio_user_version *v, size_t bytes)
{
	const size_t head = offsetof(struct vfio_user_version, json);
	struct vfio_user_version out = { .major = VFIO_USER_MAJOR };
	char ours[64] = "";

	if (bytes < head || v->major != VFIO_USER_MAJOR)
		return -EPROTO; /* the specification's answer is to hang up */
	/* Some clients refuse a minor version above their own. */
	out.minor = VROOM_MIN(v->minor, VFIO_USER_MINOR);
	if (s->e.opts.mmap) /* VFIO_USER_SLEEP_WORD */
		snprintf(ours, sizeof(ours), ",\"vroom\":{\"sleep_word\":%llu}",
			 (unsigned long long)s->e.sleep_word_offset);
	snprintf(out.json, sizeof(out.json),
		 "{\"capabilities\":{\"max_msg_fds\":%d,\"max_data_xfer_size\":4096%s}}",
		 VFIO_USER_MAX_FDS, ours);
	return reply(s, &out, head + strlen(out.json) + 1, NULL, 0, 0);
}

static int on_dma_map(struct server *s, const struct vfio_iommu_type1_dma_map *m, size_t bytes)
{
	if (bytes < sizeof(*m))
		return reply_error(s, EINVAL);
	return reply_error(s, -emu_memory_map(&s->e, m->iova, m->size,
					      s->in.nr_fds ? s->in.fds[0] : -1, m->vaddr,
					      m->flags & VFIO_DMA_MAP_FLAG_WRITE));
}

static int on_dma_unmap(struct server *s, const struct vfio_iommu_type1_dma_unmap *m, size_t bytes)
{
	int ret = 0;

	if (bytes < sizeof(*m))
		return reply_error(s, EINVAL);
	if (m->flags & VFIO_DMA_UNMAP_FLAG_ALL)
		ret = emu_memory_unmap(&s->e, 0, UINT64_MAX);
	else
		ret = emu_memory_unmap(&s->e, m->iova, m->size);
	if (ret)
		return reply_error(s, -ret);
	return reply(s, m, sizeof(*m), NULL, 0, 0);
}

static int on_get_info(struct server *s)
{
	struct vfio_device_info info = {
		.argsz = VFIO_USER_DEVICE_INFO_BYTES,
		.flags = VFIO_DEVICE_FLAGS_PCI | VFIO_DEVICE_FLAGS_RESET,
		.num_regions = VFIO_PCI_NUM_REGIONS,
		.num_irqs = NR_IRQS,
	};

	return reply(s, &info, VFIO_USER_DEVICE_INFO_BYTES, NULL, 0, 0);
}

static int on_region_info(struct server *s, const struct vfio_region_info *ask, size_t bytes)
{
	struct {
		struct vfio_region_info info;
		struct vfio_info_cap_header cap;
		uint32_t nr_areas, reserved;
		struct vfio_region_sparse_mmap_area area;
	} out = { .info = { .argsz = sizeof(out.info) } };
	unsigned rw = VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE;

	if (bytes < sizeof(*ask) || ask->index >= VFIO_PCI_NUM_REGIONS)
		return reply_error(s, EINVAL);
	out.info.index = ask->index;
	switch (ask->index) {
	case VFIO_PCI_CONFIG_REGION_INDEX:
		out.info.size = sizeof(s->config);
		out.info.flags = rw;
		break;
	case VFIO_PCI_BAR4_REGION_INDEX:
		out.info.size = BAR4_BYTES;
		out.info.flags = rw;
		break;
	case VFIO_PCI_BAR0_REGION_INDEX:
		out.info.size = s->e.bar0_bytes;
		out.info.flags = rw;
		if (!s->e.opts.mmap)
			break;
		out.info.flags |= VFIO_REGION_INFO_FLAG_MMAP | VFIO_REGION_INFO_FLAG_CAPS;
		out.info.argsz = sizeof(out);
		out.info.cap_offset = sizeof(out.info);
		out.cap.id = VFIO_REGION_INFO_CAP_SPARSE_MMAP;
		out.cap.version = 1;
		out.nr_areas = 1;
		out.area.offset = NVME_REG_DOORBELLS;
		out.area.size = s->e.area_bytes;
		if (ask->argsz < sizeof(out)) /* told how much room it takes, it asks again */
			break;
		return reply(s, &out, sizeof(out), &s->e.bar0_fd, 1, 0);
	}
	return reply(s, &out, sizeof(out.info), NULL, 0, 0);
}

static int on_region_io_fds(struct server *s, const struct vfio_user_region_io_fds *ask,
			    size_t bytes)
{
	struct {
		uint32_t argsz, flags, index, count;
		struct vfio_user_ioeventfd fd;
	} out = { .argsz = sizeof(out),
		  .count = 1,
		  .fd = { .offset = NVME_REG_DOORBELLS,
			  .size = s->e.sleep_word_offset - NVME_REG_DOORBELLS } };

	if (bytes < sizeof(*ask) || ask->index >= VFIO_PCI_NUM_REGIONS)
		return reply_error(s, EINVAL);
	out.index = ask->index;
	if (ask->index != VFIO_PCI_BAR0_REGION_INDEX || !s->e.opts.mmap) {
		out.argsz = sizeof(out) - sizeof(out.fd);
		out.count = 0;
		return reply(s, &out, sizeof(out) - sizeof(out.fd), NULL, 0, 0);
	}
	if (ask->argsz < sizeof(out))
		return reply(s, &out, sizeof(out) - sizeof(out.fd), NULL, 0, 0);
	s->client_wakes = true;
	return reply(s, &out, sizeof(out), &s->wake_fd, 1, 0);
}

static int on_irq_info(struct server *s, const struct vfio_irq_info *ask, size_t bytes)
{
	struct vfio_irq_info out = { .argsz = sizeof(out), .flags = VFIO_IRQ_INFO_EVENTFD };

	if (bytes < sizeof(*ask) || ask->index >= NR_IRQS)
		return reply_error(s, EINVAL);
	out.index = ask->index;
	if (ask->index == VFIO_PCI_MSIX_IRQ_INDEX) {
		out.count = s->e.opts.queues + 1;
		out.flags |= VFIO_IRQ_INFO_NORESIZE;
	}
	return reply(s, &out, sizeof(out), NULL, 0, 0);
}

static void set_irq(struct emu *e, unsigned vector, int fd)
{
	if (e->irq_fd[vector] >= 0) {
		close(e->irq_fd[vector]);
		e->nr_irqs--;
	}
	e->irq_fd[vector] = fd;
	if (fd >= 0)
		e->nr_irqs++;
}

static int on_set_irqs(struct server *s, const struct vfio_irq_set *set, size_t bytes)
{
	struct emu *e = &s->e;
	bool eventfds;

	if (bytes < sizeof(*set))
		return reply_error(s, EINVAL);
	eventfds = set->flags & VFIO_IRQ_SET_DATA_EVENTFD;
	if (set->index >= NR_IRQS || set->start > e->opts.queues + 1 ||
	    set->count > e->opts.queues + 1 - set->start)
		return reply_error(s, EINVAL);
	if (set->index != VFIO_PCI_MSIX_IRQ_INDEX)
		return reply_error(s, set->count && eventfds ? EINVAL : 0);
	if (!(set->flags & VFIO_IRQ_SET_ACTION_TRIGGER))
		return reply_error(s, 0);
	if (!set->count && (set->flags & VFIO_IRQ_SET_DATA_NONE)) {
		for (unsigned i = 0; i <= e->opts.queues; i++)
			set_irq(e, i, -1);
		return reply_error(s, 0);
	}
	for (unsigned i = 0; eventfds && i < set->count; i++)
		set_irq(e, set->start + i, i < s->in.nr_fds ? dup(s->in.fds[i]) : -1);
	return reply_error(s, 0);
}

static int on_region_access(struct server *s, bool write, struct vfio_user_region_access *a,
			    size_t bytes)
{
	struct {
		struct vfio_user_region_access access;
		uint8_t data[4096];
	} out;
	uint8_t *data = write ? (uint8_t *)(a + 1) : out.data;
	struct emu *e = &s->e;
	uint64_t value = 0;

	if (bytes < sizeof(*a) || a->count > sizeof(out.data) ||
	    (write && bytes - sizeof(*a) < a->count) || a->offset + a->count < a->offset)
		return reply_error(s, EINVAL);
	memset(&out, 0, sizeof(*a) + a->count);
	out.access = *a;
	switch (a->region) {
	case VFIO_PCI_CONFIG_REGION_INDEX:
		config_access(s, write, a->offset, data, a->count);
		break;
	case VFIO_PCI_BAR0_REGION_INDEX:
		if (a->offset + a->count > e->bar0_bytes || a->count > 8 ||
		    (a->count & (a->count - 1)) || (a->offset & (a->count - 1)))
			return reply_error(s, EINVAL);
		if (write) {
			memcpy(&value, data, a->count);
			emu_register_write(e, a->offset, value, a->count);
		} else {
			value = emu_register_read(e, a->offset, a->count);
			memcpy(data, &value, a->count);
		}
		break;
	case VFIO_PCI_BAR4_REGION_INDEX: break; /* the client emulates MSI-X; reads as zero */
	default: return reply_error(s, EINVAL);
	}
	return reply(s, &out, sizeof(*a) + (write ? 0 : a->count), NULL, 0, 0);
}

/* Answers the complete message in s->in. Negative: hang up. */
static int dispatch(struct server *s)
{
	void *payload = s->in.bytes + sizeof(s->in.header);
	size_t bytes = s->in.header.msg_size - sizeof(s->in.header);

	if ((s->in.header.flags & VFIO_USER_FLAG_TYPE_MASK) != 0)
		return 0; /* a reply: we never ask */
	switch (s->in.header.command) {
	case VFIO_USER_VERSION: return on_version(s, payload, bytes);
	case VFIO_USER_DMA_MAP: return on_dma_map(s, payload, bytes);
	case VFIO_USER_DMA_UNMAP: return on_dma_unmap(s, payload, bytes);
	case VFIO_USER_DEVICE_GET_INFO: return on_get_info(s);
	case VFIO_USER_DEVICE_GET_REGION_INFO: return on_region_info(s, payload, bytes);
	case VFIO_USER_DEVICE_GET_REGION_IO_FDS: return on_region_io_fds(s, payload, bytes);
	case VFIO_USER_DEVICE_GET_IRQ_INFO: return on_irq_info(s, payload, bytes);
	case VFIO_USER_DEVICE_SET_IRQS: return on_set_irqs(s, payload, bytes);
	case VFIO_USER_REGION_READ:
	case VFIO_USER_REGION_WRITE:
		return on_region_access(s, s->in.header.command == VFIO_USER_REGION_WRITE, payload,
					bytes);
	case VFIO_USER_DEVICE_RESET: emu_ctrlr_reset(&s->e); return reply_error(s, 0);
	default: return reply_error(s, ENOTSUP);
	}
}

/* Takes what the socket holds. 1: something came, 0: nothing there, negative: hang up. */
static int receive(struct server *s)
{
	int ret = vfio_user_receive(s->client, &s->in);

	if (ret <= 0)
		return ret;
	ret = dispatch(s);
	vfio_user_drop_fds(&s->in);
	s->in.received = 0;
	return ret ? ret : 1;
}

/* --- serving
 * --------------------------------------------------------------------------------------- */

static void hang_up(struct server *s)
{
	emu_ctrlr_reset(&s->e);
	emu_memory_unmap_all(&s->e);
	for (unsigned i = 0; i <= EMU_MAX_QUEUES; i++)
		set_irq(&s->e, i, -1);
	vfio_user_drop_fds(&s->in);
	s->in.received = 0;
	s->client_wakes = false;
	close(s->client);
	s->client = -1;
}

/* One client at a time: others are let in and shown out, so that they need not wait. */
static void accept_client(struct server *s)
{
	int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC);

	if (fd < 0)
		return;
	if (s->client >= 0) {
		close(fd);
		return;
	}
	s->client = fd;
	config_init(s);
}

/* Looks at the sockets, waiting at most TIMEOUT_NS (negative: for ever) for something. */
static void look_at_sockets(struct server *s, int64_t timeout_ns)
{
	struct pollfd p[3] = {
		{ .fd = s->client, .events = POLLIN },
		{ .fd = s->wake_fd, .events = POLLIN },
		{ .fd = s->listener, .events = POLLIN },
	};
	struct timespec ts = { .tv_sec = timeout_ns / 1000000000,
			       .tv_nsec = timeout_ns % 1000000000 };

	/* The signals that end us are let in here only, or one could slip in before the wait. */
	if (ppoll(p, 3, timeout_ns < 0 ? NULL : &ts, &s->unblocked) <= 0)
		return;
	if (p[1].revents) {
		eventfd_t ignored;

		eventfd_read(s->wake_fd, &ignored);
	}
	if (p[0].revents) {
		int ret;

		while ((ret = receive(s)) > 0)
			;
		if (ret < 0)
			hang_up(s);
	}
	if (p[2].revents)
		accept_client(s);
}

/* Announces the sleep, then makes sure that no doorbell was missed, and waits. */
static void sleep_until_woken(struct server *s, int64_t timeout_ns)
{
	__atomic_store_n(s->e.sleep_word, 1, __ATOMIC_SEQ_CST);
	/* Orders each client's doorbell store before its load of the sleep word: a client that
	 * read 0 has its store visible to the check below. */
	if (s->membarrier && s->client_wakes)
		syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
	/* With a doorbell whose value is invalid there is work that nobody can do. */
	look_at_sockets(s, emu_has_work(&s->e) ? 0 : timeout_ns);
	__atomic_store_n(s->e.sleep_word, 0, __ATOMIC_RELEASE);
}

static bool done(const struct server *s)
{
	return stop_requested || (s->client < 0 && s->listener < 0);
}

/* Tells the processor that this is a polling loop. */
static void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* What an idle round does, by how long it has been idle. */
static void idle(struct server *s, unsigned rounds, uint64_t *idle_since, int64_t *sleep_ns,
		 uint64_t next_due)
{
	uint64_t now;
	int64_t limit;

	if (rounds < SPIN_ROUNDS) {
		relax();
		return;
	}
	now = vroom_now_ns();
	if (rounds == SPIN_ROUNDS) {
		*idle_since = now;
		*sleep_ns = 0;
	}
	if (next_due) { /* a completion waits for its time: sleep if that is worth it */
		if (next_due > now + 200000)
			sleep_until_woken(s, (int64_t)(next_due - now - 100000));
		else if (rounds % 16 == 0)
			look_at_sockets(s, 0);
		return;
	}
	if (now - *idle_since < IDLE_NS && s->client >= 0) {
		sched_yield();
		if (rounds % 16 == 0)
			look_at_sockets(s, 0);
		return;
	}
	limit = s->client < 0
			? -1
			: (s->client_wakes && s->membarrier ? SLEEP_MAX_WAKING_MS : SLEEP_MAX_MS) *
				  1000000ll;
	if (s->client_wakes || limit < 0)
		*sleep_ns = limit;
	else if (*sleep_ns <= 0) /* also after the time without a client, which is not measured */
		*sleep_ns = SLEEP_MIN_NS;
	else
		*sleep_ns = 2 * *sleep_ns < limit ? 2 * *sleep_ns : limit;
	sleep_until_woken(s, *sleep_ns);
}

static void serve(struct server *s)
{
	unsigned idle_rounds = 0, busy_rounds = 0;
	uint64_t idle_since = 0, next_due = 0;
	int64_t sleep_ns = 0;

	while (!done(s)) {
		bool busy = emu_poll(&s->e);

		if (s->e.nr_pending)
			busy |= emu_pending_post(&s->e, &next_due);
		else
			next_due = 0;
		if (!busy) {
			busy_rounds = 0;
			idle(s, idle_rounds++, &idle_since, &sleep_ns, next_due);
			continue;
		}
		idle_rounds = 0;
		if (++busy_rounds % BUSY_ROUNDS == 0)
			look_at_sockets(s, 0);
	}
}

/* A socket file that nobody serves any more. */
static bool is_stale(const struct sockaddr_un *sun)
{
	int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct stat st;
	bool stale = lstat(sun->sun_path, &st) == 0 && S_ISSOCK(st.st_mode) &&
		     connect(probe, (const struct sockaddr *)sun, sizeof(*sun)) != 0 &&
		     errno == ECONNREFUSED;

	close(probe);
	return stale;
}

/* Listens at the path asked for, which may be one that a dead process left behind. */
static int listen_at(const struct emu_options *o)
{
	struct sockaddr_un sun = { .sun_family = AF_UNIX };
	const struct sockaddr *addr = (const struct sockaddr *)&sun;
	int fd, ret;

	if (strlen(o->socket_path) >= sizeof(sun.sun_path)) {
		complain(o, "%s: socket paths are limited to %zu characters", o->socket_path,
			 sizeof(sun.sun_path) - 1);
		return -1;
	}
	memcpy(sun.sun_path, o->socket_path, strlen(o->socket_path));
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ret = bind(fd, addr, sizeof(sun));
	if (ret && errno == EADDRINUSE && is_stale(&sun)) {
		unlink(o->socket_path);
		ret = bind(fd, addr, sizeof(sun));
	}
	if (!ret)
		ret = listen(fd, 8);
	if (!ret)
		return fd;
	complain(o, "%s: %s", o->socket_path, strerror(errno));
	close(fd);
	return -1;
}

int emu_run(struct emu_options *opts)
{
	struct server *s = calloc(1, sizeof(*s));
	struct sigaction stop = { .sa_handler = on_signal };
	int ret;

	if (!s)
		return complain(opts, "out of memory");
	s->e.opts = *opts;
	s->listener = -1;
	s->client = opts->socket_fd;
	sigaction(SIGTERM, &stop, NULL);
	sigaction(SIGINT, &stop, NULL);
	sigemptyset(&stop.sa_mask);
	sigaddset(&stop.sa_mask, SIGTERM);
	sigaddset(&stop.sa_mask, SIGINT);
	sigprocmask(SIG_BLOCK, &stop.sa_mask, &s->unblocked);
	signal(SIGPIPE, SIG_IGN);
	s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	s->membarrier =
		syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;
	ret = emu_ctrlr_init(&s->e);
	if (ret || s->wake_fd < 0)
		return complain(opts, "cannot set up the controller: %s", strerror(-ret));
	config_init(s);
	if (opts->socket_path) {
		s->listener = listen_at(opts);
		if (s->listener < 0)
			return 1;
		printf("vroom emulate: listening on %s\n", opts->socket_path);
		fflush(stdout);
	}
	if (opts->report_fd >= 0)
		close(opts->report_fd);
	serve(s);
	if (s->client >= 0)
		hang_up(s);
	if (opts->socket_path)
		unlink(opts->socket_path);
	emu_ctrlr_free(&s->e);
	free(s);
	return 0;
}
