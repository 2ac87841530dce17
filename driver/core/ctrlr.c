/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Bringing a controller up and down. vroom_open() follows the initialisation sequence of
 * Base 3.5.1 step by step, vroom_close() the shutdown of 3.6.1.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/internal.h"
#include "transport/choose.h"

#define ADMIN_ENTRIES	  32
#define HEALTH_TIMEOUT_MS 50

static int read32(struct vroom_ctrlr *c, uint32_t reg, uint32_t *value)
{
	return c->transport->ops->read(c->transport, reg, value, 4, 0);
}

static int write32(struct vroom_ctrlr *c, uint32_t reg, uint32_t value)
{
	return c->transport->ops->write(c->transport, reg, &value, 4);
}

const char *vroom_ctrlr_reason(const struct vroom_ctrlr *c)
{
	const char *line = vroom_error(), *address = c->address.text;
	size_t length = strlen(address);

	return strncmp(line, address, length) == 0 ? line + length + 2 : line;
}

void vroom_notice(const struct vroom_ctrlr *c, const char *format, ...)
{
	char line[512];
	va_list args;
	int n = snprintf(line, sizeof(line), "%s: ", c->address.text);

	va_start(args, format);
	if (n >= 0 && (size_t)n < sizeof(line))
		vsnprintf(line + n, sizeof(line) - (size_t)n, format, args);
	va_end(args);
	if (c->opts.notice)
		c->opts.notice(line);
	else
		fprintf(stderr, "vroom: %s\n", line);
}

int vroom_ctrlr_mark_failed(struct vroom_ctrlr *c, int err)
{
	struct vroom_shared *s = c->shared;

	if (!__atomic_exchange_n(&s->failing, 1, __ATOMIC_RELAXED)) {
		snprintf(s->failure, sizeof(s->failure), "%s", vroom_ctrlr_reason(c));
		__atomic_store_n(&s->failed, err, __ATOMIC_RELEASE);
	}
	return err;
}

int vroom_ctrlr_failed(const struct vroom_ctrlr *c)
{
	int err = __atomic_load_n(&c->shared->failed, __ATOMIC_ACQUIRE);

	return err ? vroom_fail(-err, "%s: %s", c->address.text, c->shared->failure) : 0;
}

int vroom_ctrlr_health(struct vroom_ctrlr *c)
{
	uint32_t csts;
	int ret = vroom_ctrlr_failed(c);

	if (ret)
		return ret;
	ret = c->transport->ops->alive(c->transport);
	if (!ret) {
		/* Slow to answer is not dead: that is for the commands' deadline to decide. */
		ret = c->transport->ops->read(c->transport, NVME_REG_CSTS, &csts, 4,
					      HEALTH_TIMEOUT_MS);
		if (ret == -ETIMEDOUT)
			return 0;
	}
	if (!ret && csts == UINT32_MAX)
		ret = vroom_fail(ENODEV, "%s: registers read all ones: the controller is gone",
				 c->address.text);
	if (!ret && NVME_GET(csts, NVME_CSTS_CFS))
		ret = vroom_fail(EIO,
				 "%s: the controller reports a fatal status (CSTS.CFS); reset "
				 "it by opening it again",
				 c->address.text);
	else if (!ret && c->admin_ready && !NVME_GET(csts, NVME_CSTS_RDY))
		ret = vroom_fail(
			ENODEV,
			"%s: the controller is no longer ready (CSTS.RDY): it was removed, "
			"or reset by somebody else",
			c->address.text);
	return ret ? vroom_ctrlr_mark_failed(c, ret) : 0;
}

/* Waits until the bits MASK of CSTS equal WANT, for CAP.TO at most (Base 3.1.3.1). */
static int wait_csts(struct vroom_ctrlr *c, uint32_t mask, uint32_t want, unsigned timeout_ms,
		     const char *what)
{
	uint64_t deadline = vroom_now_ms() + timeout_ms;

	for (;;) {
		uint32_t csts;
		int ret = read32(c, NVME_REG_CSTS, &csts);

		if (ret)
			return ret;
		if (csts == UINT32_MAX)
			return vroom_fail(ENODEV,
					  "%s: registers read all ones: the controller is "
					  "gone",
					  c->address.text);
		if ((csts & mask) == want)
			return 0;
		if (want && NVME_GET(csts, NVME_CSTS_CFS))
			return vroom_fail(EIO, "%s: fatal status (CSTS.CFS) while waiting for %s",
					  c->address.text, what);
		if (vroom_now_ms() > deadline)
			return vroom_fail(ETIMEDOUT, "%s: no %s within %u ms (CSTS is %08xh)",
					  c->address.text, what, timeout_ms, csts);
		usleep(100);
	}
}

static unsigned cap_timeout_ms(const struct vroom_ctrlr *c)
{
	return VROOM_MAX((unsigned)NVME_GET(c->cap, NVME_CAP_TO), 1u) * 500;
}

/* What CAP must offer for vroom to drive the controller. */
static int check_capabilities(struct vroom_ctrlr *c)
{
	int ret = c->transport->ops->read(c->transport, NVME_REG_CAP, &c->cap, 8, 0);
	unsigned css, mpsmin;

	if (!ret)
		ret = read32(c, NVME_REG_VS, &c->vs);
	if (ret)
		return ret;
	css = (unsigned)NVME_GET(c->cap, NVME_CAP_CSS);
	mpsmin = (unsigned)NVME_GET(c->cap, NVME_CAP_MPSMIN);
	if (c->cap == UINT64_MAX)
		return vroom_fail(ENODEV, "%s: registers read all ones: the controller is gone",
				  c->address.text);
	if (!(css & (NVME_CAP_CSS_NVM | NVME_CAP_CSS_IOCS)))
		return vroom_fail(ENOTSUP,
				  "%s: the controller has no NVM command set (CAP.CSS is "
				  "%02xh)",
				  c->address.text, css);
	if (NVME_GET(c->cap, NVME_CAP_MQES) < 1)
		return vroom_fail(EPROTO,
				  "%s: the controller's queues hold one entry (CAP.MQES is "
				  "0), the specification asks for two",
				  c->address.text);
	/* The host's pages are 4 KiB; DMA memory is contiguous over more, so larger ones do. */
	if (12 + mpsmin > 16)
		return vroom_fail(ENOTSUP,
				  "%s: the controller's smallest page is %u KiB, vroom "
				  "supports up to 64 KiB",
				  c->address.text, 4u << mpsmin);
	c->page_size = (size_t)1 << (12 + mpsmin);
	return 0;
}

/* Leaves the controller disabled: CC.EN = 0 and CSTS.RDY = 0 (Base 3.5.3 via 3.7.2). */
static int disable(struct vroom_ctrlr *c)
{
	uint32_t cc, csts;
	int ret = read32(c, NVME_REG_CC, &cc);

	if (!ret)
		ret = read32(c, NVME_REG_CSTS, &csts);
	if (ret)
		return ret;
	if (NVME_GET(cc, NVME_CC_EN)) {
		/* EN must not change while an earlier change is under way. */
		if (!NVME_GET(csts, NVME_CSTS_RDY) && !NVME_GET(csts, NVME_CSTS_CFS)) {
			ret = wait_csts(c, NVME_CSTS_RDY_MASK, NVME_CSTS_RDY_MASK,
					cap_timeout_ms(c), "CSTS.RDY=1 before disabling");
			if (ret && ret != -ETIMEDOUT && ret != -EIO)
				return ret;
		}
		ret = write32(c, NVME_REG_CC, cc & ~NVME_CC_EN_MASK);
		if (ret)
			return ret;
	}
	return wait_csts(c, NVME_CSTS_RDY_MASK, 0, cap_timeout_ms(c), "CSTS.RDY=0");
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
	struct vroom_transport *t = c->transport;
	uint64_t bytes;

	snprintf(c->pool, sizeof(c->pool), "%s", t->pool ? t->pool : "");
	bytes = vroom_dma_remove_pool(c);
	if (bytes)
		vroom_notice(c,
			     "a killed run had left %llu MiB of DMA memory; the controller is "
			     "disabled, the memory reclaimed",
			     (unsigned long long)bytes >> 20);
	return t->ops->allow_dma ? t->ops->allow_dma(t) : 0;
}

static int enable(struct vroom_ctrlr *c)
{
	uint32_t aqa = NVME_SET(ADMIN_ENTRIES - 1u, NVME_AQA_ASQS) |
		       NVME_SET(ADMIN_ENTRIES - 1u, NVME_AQA_ACQS);
	uint64_t asq = vroom_dma_iova(c, c->admin_sq), acq = vroom_dma_iova(c, c->admin_cq);
	unsigned css = (unsigned)NVME_GET(c->cap, NVME_CAP_CSS);
	struct vroom_transport *t = c->transport;
	int ret;

	ret = write32(c, NVME_REG_AQA, aqa);
	if (!ret)
		ret = t->ops->write(t, NVME_REG_ASQ, &asq, 8);
	if (!ret)
		ret = t->ops->write(t, NVME_REG_ACQ, &acq, 8);
	if (ret)
		return ret;
	/* The NVM command set (000b), or all I/O command sets (110b) where it is one of them. */
	c->cc = NVME_SET(css & NVME_CAP_CSS_NVM ? 0u : 6u, NVME_CC_CSS) |
		NVME_SET((uint32_t)__builtin_ctzl(c->page_size) - 12u, NVME_CC_MPS) |
		NVME_SET(6u, NVME_CC_IOSQES) | NVME_SET(4u, NVME_CC_IOCQES) | NVME_CC_EN_MASK;
	ret = write32(c, NVME_REG_CC, c->cc);
	if (!ret)
		ret = wait_csts(c, NVME_CSTS_RDY_MASK, NVME_CSTS_RDY_MASK, cap_timeout_ms(c),
				"CSTS.RDY=1");
	return ret;
}

static int identify(struct vroom_ctrlr *c)
{
	const struct nvme_id_ctrlr *id = &c->id;
	int ret = vroom_admin_identify(c, NVME_CNS_CTRLR, 0, &c->id);

	if (ret)
		return ret;
	if (id->cntrltype == NVME_CNTRLTYPE_DISCOVERY || id->cntrltype == NVME_CNTRLTYPE_ADMIN)
		return vroom_fail(ENOTSUP,
				  "%s: is %s controller (subsystem %.223s), which does no "
				  "I/O; name the I/O subsystem's",
				  c->address.text,
				  id->cntrltype == NVME_CNTRLTYPE_DISCOVERY ? "a discovery"
									    : "an administrative",
				  id->subnqn);
	if ((id->sqes & 0xf) > 6 || (id->cqes & 0xf) > 4)
		return vroom_fail(ENOTSUP,
				  "%s: wants queue entries of 2^%u and 2^%u bytes, NVM's "
				  "are 64 and 16",
				  c->address.text, id->sqes & 0xf, id->cqes & 0xf);
	c->max_transfer = VROOM_MAX_TRANSFER;
	/* MDTS counts units of CAP.MPSMIN, which is our page size. */
	if (id->mdts && id->mdts < 20)
		c->max_transfer = VROOM_MIN(c->max_transfer, c->page_size << id->mdts);
	return 0;
}

static int set_number_of_queues(struct vroom_ctrlr *c)
{
	unsigned ask = c->opts.qpairs ? c->opts.qpairs : VROOM_DEFAULT_QPAIRS;
	struct nvme_sqe sqe = { .opcode = NVME_ADMIN_SET_FEATURES,
				.cdw10 = NVME_FEAT_NUMBER_OF_QUEUES };
	struct nvme_cqe cqe;
	int ret;

	ask = VROOM_MIN(ask, VROOM_MAX_QPAIRS);
	sqe.cdw11 = (ask - 1) << 16 | (ask - 1); /* 0-based: NCQR, NSQR (Base 5.27.1.5) */
	ret = vroom_admin(c, &sqe, NULL, 0, false, &cqe);
	if (ret)
		return ret;
	if (cqe.status)
		return vroom_fail(EIO, "%s: Number of Queues failed: %s", c->address.text,
				  vroom_status_str(cqe.status));
	c->qpairs = VROOM_MIN((cqe.dw0 & 0xffff) + 1, (cqe.dw0 >> 16) + 1);
	c->qpairs = VROOM_MIN(c->qpairs, ask);
	return 0;
}

static int map_shared(struct vroom_ctrlr *c)
{
	c->shared = mmap(NULL, sizeof(*c->shared), PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (c->shared == MAP_FAILED) {
		c->shared = NULL;
		return vroom_fail(ENOMEM, "%s: out of memory", c->address.text);
	}
	c->shared->next_iova = 1ull << 32;
	return vroom_lock_init(&c->shared->lock);
}

static void release(struct vroom_ctrlr *c, bool owner)
{
	if (c->transport)
		c->transport->ops->close(c->transport, owner);
	/* The transport has cut the controller off from memory, whatever state it is in. */
	if (owner)
		vroom_dma_remove_pool(c);
	vroom_dma_release_all(c);
	if (c->trapped_doorbells)
		munmap((void *)(uintptr_t)c->trapped_doorbells, VROOM_TRAPPED_BYTES);
	if (c->shared)
		munmap(c->shared, sizeof(*c->shared));
	free(c);
}

int vroom_open(const char *address, const struct vroom_opts *opts, struct vroom_ctrlr **out)
{
	struct vroom_ctrlr *c = calloc(1, sizeof(*c));
	const struct vroom_transport_ops *ops;
	struct vroom_transport_opts topts;
	int ret;

	*out = NULL;
	if (!c)
		return vroom_fail(ENOMEM, "%s: out of memory", address);
	c->opener = getpid();
	if (opts)
		c->opts = *opts;
	if (!c->opts.io_timeout_ms)
		c->opts.io_timeout_ms = VROOM_DEFAULT_TIMEOUT_MS;
	if (!c->opts.admin_timeout_ms)
		c->opts.admin_timeout_ms = VROOM_DEFAULT_TIMEOUT_MS;
	topts = (struct vroom_transport_opts){ c->opts.admin_timeout_ms, c->opts.interrupts,
					       c->opts.file_bytes };
	ret = vroom_address_parse(address, &c->address);
	if (!ret)
		ret = map_shared(c);
	if (!ret)
		ret = vroom_transport_choose(&c->address, c->opts.transport, &ops);
	if (!ret)
		ret = ops->open(&c->address, &topts, &c->transport);
	if (!ret)
		ret = check_capabilities(c);
	if (!ret)
		ret = disable_or_reset(c);
	if (!ret)
		ret = allow_dma(c);
	if (!ret && c->opts.dma_bytes)
		ret = vroom_dma_reserve(c, c->opts.dma_bytes);
	if (!ret)
		ret = vroom_admin_init(c, ADMIN_ENTRIES);
	if (!ret)
		ret = enable(c);
	if (!ret)
		c->admin_ready = true;
	if (!ret)
		ret = identify(c);
	if (!ret)
		ret = set_number_of_queues(c);
	if (ret) {
		release(c, true);
		return ret;
	}
	*out = c;
	return 0;
}

/* Normal shutdown: CC.SHN = 01b, then wait for CSTS.SHST = 10b (Base 3.6.1). */
static void shut_down(struct vroom_ctrlr *c)
{
	/* RTD3E is the time that a shutdown takes at most, in microseconds (Base 5.17.2.1). */
	unsigned timeout_ms = c->id.rtd3e ? c->id.rtd3e / 1000 + 1000 : 10000;

	if (vroom_ctrlr_failed(c) || c->transport->ops->alive(c->transport))
		return;
	if (write32(c, NVME_REG_CC, c->cc | NVME_SET(NVME_CC_SHN_NORMAL, NVME_CC_SHN)) == 0)
		wait_csts(c, NVME_CSTS_SHST_MASK << NVME_CSTS_SHST_SHIFT,
			  NVME_CSTS_SHST_DONE << NVME_CSTS_SHST_SHIFT, timeout_ms, "shutdown");
}

void vroom_close(struct vroom_ctrlr *c)
{
	bool owner;

	if (!c)
		return;
	owner = c->opener == getpid();
	if (owner && !vroom_ctrlr_failed(c)) {
		shut_down(c);
		disable(c); /* off: nothing is written to our memory once it is somebody else's */
	} else if (owner && c->pool[0]) {
		/* May not obey, so nobody waits: the transport cuts it off as well. */
		write32(c, NVME_REG_CC, c->cc & ~NVME_CC_EN_MASK);
	}
	release(c, owner);
}

void vroom_ctrlr_info(const struct vroom_ctrlr *c, struct vroom_ctrlr_info *out)
{
	*out = (struct vroom_ctrlr_info){
		.address = c->address.text,
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
	};
}

int vroom_namespaces(struct vroom_ctrlr *c, uint32_t *nsids, int max)
{
	uint32_t list[NVME_IDENTIFY_BYTES / sizeof(uint32_t)], after = 0;
	int count = 0;

	for (;;) {
		int ret = vroom_admin_identify(c, NVME_CNS_ACTIVE_NS_LIST, after, list);
		unsigned i;

		if (ret)
			return ret;
		for (i = 0; i < sizeof(list) / sizeof(list[0]) && list[i]; i++, count++)
			if (count < max)
				nsids[count] = list[i];
		if (i < sizeof(list) / sizeof(list[0]))
			return count;
		after = list[i - 1];
	}
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
	ret = vroom_admin(c, &sqe, &id, sizeof(id), false, &cqe);
	if (ret)
		return ret;
	if (cqe.status || !id.nsze) /* refused, or an inactive one: all zeroes */
		return vroom_fail(ENXIO, "%s: has no namespace %u", c->address.text, nsid);
	if (raw)
		*raw = id;
	format = &id.lbaf[nvme_lba_format_index(id.flbas)];
	if (format->lbads < 9 || format->lbads > 16)
		return vroom_fail(ENOTSUP,
				  "%s: namespace %u has blocks of 2^%u bytes, vroom uses "
				  "512 to 65536",
				  c->address.text, nsid, format->lbads);
	if (format->ms)
		return vroom_fail(ENOTSUP,
				  "%s: namespace %u is formatted with %u bytes of metadata "
				  "a block, which vroom does not use; format it without",
				  c->address.text, nsid, format->ms);
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

bool vroom_ctrlr_traps(const struct vroom_ctrlr *c)
{
	return c->address.kind == VROOM_ADDRESS_PCI && (c->id.oacs & NVME_OACS_DOORBELL_BUFFER);
}

/* Once, whichever thread comes first. */
static int map_trapped_doorbells(struct vroom_ctrlr *c)
{
	int ret = 0;

	vroom_lock(&c->shared->lock);
	if (!c->trapped_doorbells) {
		void *map = mmap(NULL, VROOM_TRAPPED_BYTES, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

		if (map != MAP_FAILED)
			c->trapped_doorbells = map;
		else
			ret = vroom_fail(ENOMEM, "%s: out of memory", c->address.text);
	}
	vroom_unlock(&c->shared->lock);
	return ret;
}

int vroom_ctrlr_doorbell(struct vroom_ctrlr *c, unsigned qid, bool completion,
			 volatile uint32_t **doorbell, const volatile uint32_t **sleeping)
{
	static const uint32_t never = 0, always = 1;
	struct vroom_transport *t = c->transport;
	/* PCIe 3.1.2: 1000h + (2y + is_cq) * (4 << CAP.DSTRD). */
	size_t offset = (size_t)(2 * qid + completion) * (4ul << NVME_GET(c->cap, NVME_CAP_DSTRD));
	int ret;

	if (t->doorbells && offset + 4 <= t->doorbell_bytes && !(qid && vroom_ctrlr_traps(c))) {
		*doorbell = t->doorbells + offset / 4;
		*sleeping = t->needs_kick ? t->needs_kick : &never;
		return 0;
	}
	/* A word of our own, whose position tells vroom_ctrlr_ring_slow() which doorbell it is. */
	ret = map_trapped_doorbells(c);
	if (ret)
		return ret;
	if (offset + 4 > VROOM_TRAPPED_BYTES)
		return vroom_fail(ENOTSUP,
				  "%s: the doorbell of queue %u is %zu bytes away "
				  "(CAP.DSTRD is %u)",
				  c->address.text, qid, offset,
				  (unsigned)NVME_GET(c->cap, NVME_CAP_DSTRD));
	*doorbell = c->trapped_doorbells + offset / 4;
	*sleeping = &always;
	return 0;
}

void vroom_ctrlr_ring_slow(struct vroom_ctrlr *c, volatile uint32_t *doorbell, uint32_t value)
{
	size_t offset = (size_t)((uintptr_t)doorbell - (uintptr_t)c->trapped_doorbells);

	if (c->trapped_doorbells && offset < VROOM_TRAPPED_BYTES) {
		/* A failure shows at the next look at the controller's health. */
		write32(c, NVME_REG_DOORBELLS + (uint32_t)offset, value);
		return;
	}
	if (c->transport->ops->kick)
		c->transport->ops->kick(c->transport);
}
