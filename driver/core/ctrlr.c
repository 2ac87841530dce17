/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Bringing a controller up and down. vroom_open() follows the initialisation sequence of
 * Base 3.5.1 step by step, vroom_close() the shutdown of 3.6.1.
 */
#include <stdarg.h>
#include <sys/mman.h>

#include "core/core.h"
#include "transport/transport.h"

#define DEFAULT_TIMEOUT_MS 30000
#define DEFAULT_QPAIRS	   128
/* Deadlines of commands that may work on a whole drive, in ordinary ones. */
#define LONG_TIMEOUTS	  10
#define HEALTH_TIMEOUT_MS 50

static int read_register(struct vroom_ctrlr *c, uint32_t reg, void *value, unsigned width)
{
	return c->transport->ops->read(c->transport, reg, value, width, 0);
}

static int write_register(struct vroom_ctrlr *c, uint32_t reg, uint64_t value, unsigned width)
{
	return c->transport->ops->write(c->transport, reg, &value, width);
}

const char *vroom_ctrlr_reason(const struct vroom_ctrlr *c)
{
	const char *line = vroom_error();
	size_t length = strlen(c->name);

	return strncmp(line, c->name, length) == 0 ? line + length + 2 : line;
}

void vroom_notice(const struct vroom_ctrlr *c, const char *format, ...)
{
	char text[512], line[sizeof(text) + VROOM_ADDRESS_MAX];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	snprintf(line, sizeof(line), "%s: %s", c->name, text);
	if (c->opts.notice)
		c->opts.notice(c->opts.notice_arg, line);
	else
		fprintf(stderr, "vroom: %s\n", line);
}

int vroom_ctrlr_mark_failed(struct vroom_ctrlr *c, int err)
{
	struct vroom_ctrlr_shared *s = c->shared;

	vroom_space_set_suspect(&c->space, true);
	vroom_lock(&s->failure_lock);
	if (!s->failed) {
		snprintf(s->failure, sizeof(s->failure), "%s", vroom_ctrlr_reason(c));
		__atomic_store_n(&s->failed, err, __ATOMIC_RELEASE);
	}
	vroom_unlock(&s->failure_lock);
	return err;
}

int vroom_ctrlr_failed(const struct vroom_ctrlr *c)
{
	int err = __atomic_load_n(&c->shared->failed, __ATOMIC_ACQUIRE);

	return err ? vroom_fail_on(c->name, -err, "%s", c->shared->failure) : 0;
}

static int all_ones(const struct vroom_ctrlr *c)
{
	return vroom_fail_on(c->name, ENODEV, "registers read all ones: the controller is gone");
}

static int check_csts(const struct vroom_ctrlr *c, uint32_t csts)
{
	if (csts == UINT32_MAX)
		return all_ones(c);
	if (NVME_GET(csts, NVME_CSTS_CFS))
		return vroom_fail_on(c->name, EIO,
				     "fatal status (CSTS.CFS); open it again to reset it");
	if (c->ready && !NVME_GET(csts, NVME_CSTS_RDY))
		return vroom_fail_on(c->name, ENODEV,
				     "not ready any more (CSTS.RDY): removed, or reset by others");
	return 0;
}

int vroom_ctrlr_health(struct vroom_ctrlr *c)
{
	struct vroom_transport *t = c->transport;
	uint32_t csts;
	int ret = vroom_ctrlr_failed(c);

	if (ret)
		return ret;
	ret = t->ops->alive(t);
	if (!ret)
		ret = t->ops->read(t, NVME_REG_CSTS, &csts, 4, HEALTH_TIMEOUT_MS);
	/* Slow to answer is not dead: that is for the commands' deadline to decide. */
	if (ret == -ETIMEDOUT)
		return 0;
	if (!ret)
		ret = check_csts(c, csts);
	return ret ? vroom_ctrlr_mark_failed(c, ret) : 0;
}

static int wait_csts(struct vroom_ctrlr *c, uint32_t mask, uint32_t want, unsigned timeout_ms,
		     const char *what)
{
	uint64_t deadline = vroom_now_ms() + timeout_ms;

	for (;;) {
		uint32_t csts;
		int ret = read_register(c, NVME_REG_CSTS, &csts, 4);

		if (ret)
			return ret;
		if (csts == UINT32_MAX)
			return all_ones(c);
		if ((csts & mask) == want)
			return 0;
		if (want && NVME_GET(csts, NVME_CSTS_CFS))
			return vroom_fail_on(c->name, EIO, "fatal status (CSTS.CFS), no %s", what);
		if (vroom_now_ms() > deadline)
			return vroom_fail_on(c->name, ETIMEDOUT, "no %s within %u ms (CSTS is %xh)",
					     what, timeout_ms, csts);
		usleep(100);
	}
}

/* Waits for CSTS.RDY to be READY, for CAP.TO at most (Base 3.1.3.1). */
static int wait_ready(struct vroom_ctrlr *c, uint32_t ready, const char *what)
{
	unsigned units = VROOM_MAX((unsigned)NVME_GET(c->cap, NVME_CAP_TO), 1u);

	return wait_csts(c, NVME_CSTS_RDY_MASK, ready, units * 500, what);
}

static int check_capabilities(struct vroom_ctrlr *c)
{
	int ret = read_register(c, NVME_REG_CAP, &c->cap, 8);
	unsigned css = (unsigned)NVME_GET(c->cap, NVME_CAP_CSS);
	unsigned mpsmin = (unsigned)NVME_GET(c->cap, NVME_CAP_MPSMIN);

	if (!ret)
		ret = read_register(c, NVME_REG_VS, &c->vs, 4);
	if (ret)
		return ret;
	if (c->cap == UINT64_MAX)
		return all_ones(c);
	if (!(css & (NVME_CAP_CSS_NVM | NVME_CAP_CSS_IOCS)))
		return vroom_fail_on(c->name, ENOTSUP, "no NVM command set (CAP.CSS is %xh)", css);
	if (NVME_GET(c->cap, NVME_CAP_MQES) < 1)
		return vroom_fail_on(c->name, EPROTO, "queues hold one entry, not two (CAP.MQES)");
	/* The host's pages are 4 KiB; DMA memory is contiguous over more, so larger ones do. */
	if (12 + mpsmin > 16)
		return vroom_fail_on(c->name, ENOTSUP, "smallest page is %u KiB, vroom's limit 64",
				     4u << mpsmin);
	c->page_size = (size_t)1 << (12 + mpsmin);
	return 0;
}

/* Leaves the controller disabled: CC.EN = 0 and CSTS.RDY = 0 (Base 3.5.3 via 3.7.2). */
static int disable(struct vroom_ctrlr *c)
{
	uint32_t cc, csts;
	int ret = read_register(c, NVME_REG_CC, &cc, 4);

	if (!ret)
		ret = read_register(c, NVME_REG_CSTS, &csts, 4);
	if (ret)
		return ret;
	if (!NVME_GET(cc, NVME_CC_EN))
		return wait_ready(c, 0, "CSTS.RDY=0");
	/* EN must not change while an earlier change is under way. */
	if (!NVME_GET(csts, NVME_CSTS_RDY) && !NVME_GET(csts, NVME_CSTS_CFS)) {
		ret = wait_ready(c, NVME_CSTS_RDY_MASK, "CSTS.RDY=1 before disabling");
		if (ret && ret != -ETIMEDOUT && ret != -EIO)
			return ret;
	}
	ret = write_register(c, NVME_REG_CC, cc & ~NVME_CC_EN_MASK, 4);
	return ret ? ret : wait_ready(c, 0, "CSTS.RDY=0");
}

/* The same, by a reset of the function where the controller does not obey. */
static int disable_or_reset(struct vroom_ctrlr *c)
{
	int ret = disable(c);

	if ((ret != -ETIMEDOUT && ret != -EIO) || !c->transport->ops->reset)
		return ret;
	vroom_notice(c, "the controller does not stop; resetting the function");
	ret = c->transport->ops->reset(c->transport);
	return ret ? ret : disable(c);
}

/* The controller is off, so memory of a killed run that it still used can go back. */
static int allow_dma(struct vroom_ctrlr *c)
{
	const struct vroom_transport_ops *ops = c->transport->ops;
	uint64_t bytes = vroom_space_remove_files(&c->space, 0);

	if (bytes)
		vroom_notice(c, "disabled, and %llu MiB of a killed run's DMA memory reclaimed",
			     (unsigned long long)bytes >> 20);
	return ops->allow_dma ? ops->allow_dma(c->transport) : 0;
}

static int enable(struct vroom_ctrlr *c)
{
	uint32_t aqa = NVME_SET(VROOM_ADMIN_ENTRIES - 1u, NVME_AQA_ASQS) |
		       NVME_SET(VROOM_ADMIN_ENTRIES - 1u, NVME_AQA_ACQS);
	unsigned css = (unsigned)NVME_GET(c->cap, NVME_CAP_CSS);
	int ret = write_register(c, NVME_REG_AQA, aqa, 4);

	/* The NVM command set (000b), or all I/O command sets (110b) where it is one of them. */
	c->cc = NVME_SET(css & NVME_CAP_CSS_NVM ? 0u : 6u, NVME_CC_CSS) |
		NVME_SET((uint32_t)__builtin_ctzl(c->page_size) - 12u, NVME_CC_MPS) |
		NVME_SET(6u, NVME_CC_IOSQES) | NVME_SET(4u, NVME_CC_IOCQES) | NVME_CC_EN_MASK;
	if (!ret)
		ret = write_register(c, NVME_REG_ASQ,
				     vroom_space_iova(&c->space, c->admin.sq.entries), 8);
	if (!ret)
		ret = write_register(c, NVME_REG_ACQ,
				     vroom_space_iova(&c->space, c->admin.cq.entries), 8);
	if (!ret)
		ret = write_register(c, NVME_REG_CC, c->cc, 4);
	if (!ret)
		ret = wait_ready(c, NVME_CSTS_RDY_MASK, "CSTS.RDY=1");
	c->ready = !ret;
	return ret;
}

static int identify(struct vroom_ctrlr *c)
{
	const struct nvme_id_ctrlr *id = &c->id;
	int ret = vroom_admin_identify(c, NVME_CNS_CTRLR, 0, &c->id);
	unsigned sqes = id->sqes & 0xf, cqes = id->cqes & 0xf;
	bool discovery = id->cntrltype == NVME_CNTRLTYPE_DISCOVERY;
	const char *kind = discovery ? "a discovery" : "an administrative";

	if (ret)
		return ret;
	if (discovery || id->cntrltype == NVME_CNTRLTYPE_ADMIN)
		return vroom_fail_on(c->name, ENOTSUP,
				     "is %s controller (subsystem %.223s); name one with I/O", kind,
				     id->subnqn);
	if (sqes > 6 || cqes > 4)
		return vroom_fail_on(c->name, ENOTSUP,
				     "queue entries of 2^%u and 2^%u bytes, NVM's are 64 and 16",
				     sqes, cqes);
	c->max_transfer = c->page_size * VROOM_PRP_LIST_ENTRIES;
	/* MDTS counts units of CAP.MPSMIN, which is our page size. */
	if (id->mdts && id->mdts < 20)
		c->max_transfer = VROOM_MIN(c->max_transfer, c->page_size << id->mdts);
	return 0;
}

static int set_number_of_queues(struct vroom_ctrlr *c)
{
	unsigned wanted = c->opts.qpairs ? c->opts.qpairs : DEFAULT_QPAIRS;
	unsigned ask = VROOM_MIN(wanted, VROOM_MAX_QPAIRS);
	/* 0-based: NCQR, NSQR (Base 5.27.1.5) */
	const uint32_t cdw[5] = { (ask - 1) << 16 | (ask - 1) };
	struct nvme_cqe cqe;
	int ret = vroom_admin_set_feature(c, NVME_FEAT_NUMBER_OF_QUEUES, cdw, &cqe);

	if (!ret && cqe.status)
		ret = vroom_fail_on(c->name, EIO, "cannot set the number of queues: %s",
				    vroom_status_str(cqe.status));
	if (ret)
		return ret;
	c->qpairs = VROOM_MIN((cqe.dw0 & 0xffff) + 1, (cqe.dw0 >> 16) + 1);
	c->qpairs = VROOM_MIN(c->qpairs, ask);
	return 0;
}

static int prepare(struct vroom_ctrlr *c)
{
	int ret = vroom_share(c->name, sizeof(*c->shared), (void **)&c->shared);

	if (!ret)
		ret = vroom_lock_init(&c->shared->lock);
	if (!ret)
		ret = vroom_lock_init(&c->shared->failure_lock);
	if (!ret)
		ret = vroom_space_init(&c->space, c->transport, c->name);
	return ret ? ret : vroom_pool_init(&c->pool, &c->space);
}

static int reserve(struct vroom_ctrlr *c)
{
	return c->opts.dma_bytes ? vroom_dma_reserve(c, c->opts.dma_bytes) : 0;
}

/* OFF: the controller is known to reach no memory. */
static void release(struct vroom_ctrlr *c, bool owner, bool off)
{
	if (c->lender)
		/* A process that only lets go changes nothing for the controller. */
		vroom_pool_unshare(&c->lender->pool, &c->space, off || !owner);
	if (c->transport)
		c->transport->ops->close(c->transport, owner);
	vroom_space_free(&c->space, owner && off);
	vroom_pool_free(&c->pool);
	if (c->shared)
		munmap(c->shared, sizeof(*c->shared));
	free(c);
}

/* Base 3.5.1, step by step. */
int vroom_ctrlr_bring_up(struct vroom_ctrlr *c, struct vroom_transport *t)
{
	static int (*const steps[])(struct vroom_ctrlr * c) = {
		prepare,
		check_capabilities,
		disable_or_reset,
		allow_dma,
		reserve,
		vroom_admin_init,
		enable,
		identify,
		set_number_of_queues,
	};
	int ret = 0;

	c->transport = t;
	for (size_t i = 0; i < VROOM_LENGTH(steps) && !ret; i++)
		ret = steps[i](c);
	if (!ret)
		vroom_hmb_lend(c);
	return ret;
}

/* A copy of what the caller knows of OPTS, which may be less, or more, than this library does. */
static int take_opts(struct vroom_ctrlr *c, const struct vroom_opts *opts, size_t size)
{
	if (opts && opts->size)
		size = opts->size;
	if (opts && size > sizeof(c->opts))
		return vroom_fail(EPROTO, "vroom_opts has %zu bytes, this library's has %zu", size,
				  sizeof(c->opts));
	if (opts)
		memcpy(&c->opts, opts, size);
	if (!c->opts.io_timeout_ms)
		c->opts.io_timeout_ms = DEFAULT_TIMEOUT_MS;
	if (!c->opts.long_timeout_ms)
		c->opts.long_timeout_ms = LONG_TIMEOUTS * c->opts.io_timeout_ms;
	if (!c->opts.admin_timeout_ms)
		c->opts.admin_timeout_ms = DEFAULT_TIMEOUT_MS;
	return 0;
}

static int open_transport(struct vroom_ctrlr *c)
{
	const struct vroom_transport_opts opts = {
		.timeout_ms = c->opts.admin_timeout_ms,
		.interrupts = c->opts.interrupts,
		.file_bytes = c->opts.file_bytes,
	};
	const struct vroom_transport_ops *ops;
	int ret = vroom_transport_choose(&c->address, c->opts.transport, &ops);

	return ret ? ret : ops->open(&c->address, &opts, &c->transport);
}

int vroom_open_abi(unsigned abi, size_t opts_size, const char *address,
		   const struct vroom_opts *opts, struct vroom_ctrlr **out)
{
	struct vroom_ctrlr *c;
	int ret;

	*out = NULL;
	if (abi != VROOM_ABI)
		return vroom_fail(EPROTO,
				  "compile the program again: its interface is %u, not %u (%s)",
				  abi, VROOM_ABI, VROOM_VERSION);
	c = calloc(1, sizeof(*c));
	if (!c)
		return vroom_fail(ENOMEM, "out of memory");
	c->opener = getpid();
	c->name = c->address.text;
	ret = take_opts(c, opts, opts_size);
	if (!ret)
		ret = vroom_address_parse(address, &c->address);
	if (!ret)
		ret = open_transport(c);
	if (!ret)
		ret = vroom_ctrlr_bring_up(c, c->transport);
	if (ret) /* closing cuts the controller off, whatever state it is in */
		release(c, true, true);
	else
		*out = c;
	return ret;
}

/* Normal shutdown: CC.SHN = 01b, then wait for CSTS.SHST = 10b (Base 3.6.1). */
static void shut_down(struct vroom_ctrlr *c)
{
	/* RTD3E is the time that a shutdown takes at most, in microseconds (Base 5.17.2.1). */
	unsigned timeout_ms = c->id.rtd3e ? c->id.rtd3e / 1000 + 1000 : 10000;

	if (c->transport->ops->alive(c->transport))
		return;
	vroom_hmb_take_back(c);
	if (write_register(c, NVME_REG_CC, c->cc | NVME_SET(NVME_CC_SHN_NORMAL, NVME_CC_SHN), 4))
		return;
	if (wait_csts(c, NVME_CSTS_SHST_MASK << NVME_CSTS_SHST_SHIFT,
		      NVME_CSTS_SHST_DONE << NVME_CSTS_SHST_SHIFT, timeout_ms,
		      "shutdown") == -ETIMEDOUT)
		vroom_notice(c, "%s", vroom_ctrlr_reason(c));
}

/* Off: nothing is written to our memory once it is somebody else's. True when that is known. */
static bool turn_off(struct vroom_ctrlr *c)
{
	const struct vroom_transport_ops *ops = c->transport->ops;

	if (!vroom_ctrlr_failed(c)) {
		shut_down(c);
		if (disable(c) == 0)
			return true;
	} else if (c->space.prefix[0]) {
		/* May not obey, so nobody waits: the transport cuts it off as well. */
		write_register(c, NVME_REG_CC, c->cc & ~NVME_CC_EN_MASK, 4);
	}
	return ops->cut_off && ops->cut_off(c->transport) == 0;
}

void vroom_close(struct vroom_ctrlr *c)
{
	bool owner = c && c->opener == getpid();

	if (c)
		release(c, owner, owner && turn_off(c));
}

void vroom_ctrlr_info(const struct vroom_ctrlr *c, struct vroom_ctrlr_info *out)
{
	*out = (struct vroom_ctrlr_info){
		.address = c->name,
		.transport = c->transport->ops->name,
		.id = &c->id,
		.cap = c->cap,
		.vs = c->vs,
		.max_queue_entries = (unsigned)NVME_GET(c->cap, NVME_CAP_MQES) + 1,
		.max_qpairs = c->qpairs,
		.max_transfer = c->max_transfer,
		.page_size = c->page_size,
		.doorbells_mapped = c->transport->doorbells != NULL,
		.nsid = c->address.nsid,
		.host_memory = c->hmb.bytes,
	};
}

int vroom_namespaces(struct vroom_ctrlr *c, uint32_t *nsids, int max)
{
	uint32_t list[NVME_IDENTIFY_BYTES / sizeof(uint32_t)], last = 0;
	int count = 0;

	for (;;) {
		int ret = vroom_admin_identify(c, NVME_CNS_ACTIVE_NS_LIST, last, list);

		if (ret)
			return ret;
		for (size_t i = 0; i < VROOM_LENGTH(list); i++) {
			if (!list[i])
				return count;
			if (list[i] <= last) /* Base 5.17.2.2: in rising order */
				return vroom_fail_on(c->name, EPROTO, "namespaces out of order");
			last = list[i];
			if (count < max)
				nsids[count] = last;
			count++;
		}
	}
}

/* The command set of namespace NSID (Base 5.17.2.4); NVM's where the controller does not say. */
static uint8_t command_set(struct vroom_ctrlr *c, uint32_t nsid)
{
	const struct nvme_sqe sqe = { .opcode = NVME_ADMIN_IDENTIFY,
				      .nsid = nsid,
				      .cdw10 = NVME_CNS_NS_DESCRIPTORS };
	uint8_t list[NVME_IDENTIFY_BYTES];
	struct nvme_cqe cqe;

	if (!(NVME_GET(c->cap, NVME_CAP_CSS) & NVME_CAP_CSS_IOCS) ||
	    vroom_admin(c, &sqe, list, sizeof(list), &cqe) || cqe.status)
		return NVME_CSI_NVM;
	for (size_t at = 0; at + 5 <= sizeof(list) && list[at + 1]; at += 4 + list[at + 1])
		if (list[at] == NVME_NIDT_CSI)
			return list[at + 4];
	return NVME_CSI_NVM;
}

static int check_namespace(struct vroom_ctrlr *c, uint32_t nsid, const struct nvme_lbaf *format)
{
	uint8_t csi = command_set(c, nsid);
	unsigned shift = format->lbads;

	if (csi != NVME_CSI_NVM)
		return vroom_fail_on(c->name, ENOTSUP,
				     "namespace %u is %s; vroom drives NVM's only", nsid,
				     csi == NVME_CSI_ZNS ? "zoned" : "of an unknown kind");
	if (shift < 9 || shift > 16)
		return vroom_fail_on(
			c->name, ENOTSUP,
			"namespace %u has blocks of 2^%u bytes, vroom uses 2^9 to 2^16", nsid,
			shift);
	if (c->max_transfer >> shift == 0)
		return vroom_fail_on(c->name, ENOTSUP,
				     "namespace %u has blocks of %u bytes, MDTS allows %zu", nsid,
				     1u << shift, c->max_transfer);
	if (format->ms)
		return vroom_fail_on(
			c->name, ENOTSUP,
			"namespace %u has %u bytes of metadata a block; format it without", nsid,
			format->ms);
	return 0;
}

int vroom_namespace(struct vroom_ctrlr *c, uint32_t nsid, struct vroom_ns *out,
		    struct nvme_id_ns *raw)
{
	struct nvme_sqe sqe = { .opcode = NVME_ADMIN_IDENTIFY, .cdw10 = NVME_CNS_NS };
	const struct nvme_lbaf *format;
	struct nvme_id_ns id;
	struct nvme_cqe cqe;
	int ret;

	if (!nsid)
		nsid = c->address.nsid ? c->address.nsid : 1;
	sqe.nsid = nsid;
	ret = vroom_admin(c, &sqe, &id, sizeof(id), &cqe);
	if (ret)
		return ret;
	if (cqe.status || !id.nsze) /* refused, or an inactive one: all zeroes */
		return vroom_fail_on(c->name, ENXIO, "has no namespace %u", nsid);
	if (raw)
		*raw = id;
	format = &id.lbaf[nvme_lba_format_index(id.flbas)];
	ret = check_namespace(c, nsid, format);
	if (ret)
		return ret;
	*out = (struct vroom_ns){
		.nsid = nsid,
		.lba_size = 1u << format->lbads,
		.lba_shift = format->lbads,
		.blocks = id.nsze,
		.read_only = id.nsattr & 1,
		.deallocates = c->id.oncs & NVME_ONCS_DSM,
	};
	return 0;
}
