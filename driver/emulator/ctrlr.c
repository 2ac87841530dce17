/* SPDX-License-Identifier: BSD-3-Clause */
/* The controller proper: properties, queues, and the loop that fetches and completes. */
#include <sys/eventfd.h>
#include <sys/mman.h>

#include "base/base.h"
#include "emulator/emulator.h"

/* Commands taken from one queue before the next one has its turn. */
#define BURST 64

static volatile uint32_t *doorbell(const struct emu *e, unsigned qid, bool completion)
{
	return (void *)(e->bar0 + NVME_REG_DOORBELLS +
			(size_t)(2 * qid + completion) * (4ul << e->opts.dstrd));
}

void emu_doorbell_clear(struct emu *e, unsigned qid, bool completion)
{
	*doorbell(e, qid, completion) = 0;
}

static size_t power_of_two(size_t at_least)
{
	size_t n = 1;

	while (n < at_least)
		n <<= 1;
	return n;
}

int emu_ctrlr_init(struct emu *e)
{
	size_t page = 4096, doorbells = (2 * ((size_t)e->opts.queues + 1)) * (4ul << e->opts.dstrd);

	e->page_size = page << e->opts.mpsmin;
	e->cap = NVME_SET((uint64_t)e->opts.queue_entries - 1, NVME_CAP_MQES) |
		 NVME_SET(UINT64_C(1), NVME_CAP_CQR) | NVME_SET(UINT64_C(20), NVME_CAP_TO) |
		 NVME_SET((uint64_t)e->opts.dstrd, NVME_CAP_DSTRD) |
		 NVME_SET((uint64_t)NVME_CAP_CSS_NVM, NVME_CAP_CSS) |
		 NVME_SET((uint64_t)e->opts.mpsmin, NVME_CAP_MPSMIN) |
		 NVME_SET((uint64_t)e->opts.mpsmin, NVME_CAP_MPSMAX);
	/* Doorbells from the second page on, then a page for the sleep word. */
	e->sleep_word_offset = NVME_REG_DOORBELLS + (doorbells + page - 1) / page * page;
	e->area_bytes = e->sleep_word_offset + page - NVME_REG_DOORBELLS;
	e->bar0_bytes = power_of_two(e->sleep_word_offset + page);
	e->bar0_fd = memfd_create("vroom-bar0", MFD_CLOEXEC);
	if (e->bar0_fd < 0 || ftruncate(e->bar0_fd, (off_t)e->bar0_bytes) != 0)
		return -errno;
	e->bar0 = mmap(NULL, e->bar0_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, e->bar0_fd, 0);
	if (e->bar0 == MAP_FAILED)
		return -errno;
	e->sleep_word = (void *)(e->bar0 + e->sleep_word_offset);
	e->max_iov = (unsigned)((e->opts.mdts ? e->opts.mdts : 65536ull * 4096) / e->page_size) + 2;
	e->iov = calloc(e->max_iov, sizeof(*e->iov));
	/* Compare and verify need room for a whole transfer; touched only when used. */
	e->scratch_bytes = e->opts.mdts ? e->opts.mdts : 65536ull * 4096;
	e->scratch = mmap(NULL, e->scratch_bytes, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (!e->iov || e->scratch == MAP_FAILED)
		return -ENOMEM;
	e->last_region = &e->region[0];
	for (unsigned i = 0; i <= EMU_MAX_QUEUES; i++)
		e->irq_fd[i] = -1;
	emu_ctrlr_reset(e);
	return emu_timing_init(e);
}

void emu_ctrlr_free(struct emu *e)
{
	free(e->iov);
	free(e->pending);
	free(e->channel_free_ns);
	munmap(e->scratch, e->scratch_bytes);
	munmap(e->bar0, e->bar0_bytes);
	close(e->bar0_fd);
}

/* Controller reset (Base 3.7.2): queues go, AQA, ASQ and ACQ stay. */
static void disable(struct emu *e)
{
	memset(e->sq, 0, sizeof(e->sq));
	memset(e->cq, 0, sizeof(e->cq));
	e->nr_active = e->nr_cqs = 0;
	e->nr_pending = 0;
	e->nr_aer = 0;
	e->csts = 0;
	e->frozen = false;
	emu_features_reset(e);
	memset(e->bar0 + NVME_REG_DOORBELLS, 0, e->sleep_word_offset - NVME_REG_DOORBELLS);
}

void emu_ctrlr_reset(struct emu *e)
{
	disable(e);
	e->cc = 0;
	e->aqa = 0;
	e->asq = e->acq = 0;
	e->intms = 0;
}

void emu_fatal(struct emu *e)
{
	e->csts |= 1u << NVME_CSTS_CFS_SHIFT;
	e->frozen = true;
}

/* CC.EN goes to 1: the admin queues come to life, or the controller reports fatal status. */
static void enable(struct emu *e)
{
	uint32_t sq_size = NVME_GET(e->aqa, NVME_AQA_ASQS) + 1;
	uint32_t cq_size = NVME_GET(e->aqa, NVME_AQA_ACQS) + 1;
	const struct nvme_sqe *sq = emu_memory(e, e->asq, sq_size * sizeof(*sq), false);
	struct nvme_cqe *cq = emu_memory(e, e->acq, cq_size * sizeof(*cq), true);

	disable(e);
	if (!sq || !cq || sq_size < 2 || cq_size < 2 || ((e->asq | e->acq) & (e->page_size - 1)) ||
	    NVME_GET(e->cc, NVME_CC_CSS) || NVME_GET(e->cc, NVME_CC_AMS) ||
	    NVME_GET(e->cc, NVME_CC_MPS) != e->opts.mpsmin) {
		emu_fatal(e);
		return;
	}
	e->cq[0] =
		(struct emu_cq){ .entries = cq, .size = cq_size, .phase = 1, .interrupts = true };
	e->sq[0] = (struct emu_sq){ .entries = sq, .cq = &e->cq[0], .size = sq_size };
	e->csts = 1u << NVME_CSTS_RDY_SHIFT;
}

static void write_cc(struct emu *e, uint32_t value)
{
	bool was = NVME_GET(e->cc, NVME_CC_EN), on = NVME_GET(value, NVME_CC_EN);
	bool shutdown = NVME_GET(value, NVME_CC_SHN) && !NVME_GET(e->cc, NVME_CC_SHN);

	e->cc = value;
	if (!was && on)
		enable(e);
	else if (was && !on)
		disable(e);
	if (shutdown) {
		for (unsigned i = 0; i < e->opts.nr_ns; i++)
			emu_ns_flush(&e->opts.ns[i]);
		e->csts |= NVME_SET(NVME_CSTS_SHST_DONE, NVME_CSTS_SHST);
		e->count.shutdowns++;
	}
}

static uint32_t read32(struct emu *e, uint64_t offset)
{
	switch (offset) {
	case NVME_REG_CAP: return (uint32_t)e->cap;
	case NVME_REG_CAP + 4: return (uint32_t)(e->cap >> 32);
	case NVME_REG_VS: return NVME_VERSION(1, 4, 0);
	case NVME_REG_INTMS:
	case NVME_REG_INTMC: return e->intms;
	case NVME_REG_CC: return e->cc;
	case NVME_REG_CSTS: return e->csts;
	case NVME_REG_AQA: return e->aqa;
	case NVME_REG_ASQ: return (uint32_t)e->asq;
	case NVME_REG_ASQ + 4: return (uint32_t)(e->asq >> 32);
	case NVME_REG_ACQ: return (uint32_t)e->acq;
	case NVME_REG_ACQ + 4: return (uint32_t)(e->acq >> 32);
	default: return 0; /* reserved, and doorbells (PCIe 3.1.2) */
	}
}

static void write32(struct emu *e, uint64_t offset, uint32_t value)
{
	switch (offset) {
	case NVME_REG_INTMS: e->intms |= value; break;
	case NVME_REG_INTMC: e->intms &= ~value; break;
	case NVME_REG_CC: write_cc(e, value); break;
	case NVME_REG_AQA: e->aqa = value; break;
	case NVME_REG_ASQ: e->asq = (e->asq & ~0xffffffffull) | value; break;
	case NVME_REG_ASQ + 4: e->asq = (e->asq & 0xffffffffull) | (uint64_t)value << 32; break;
	case NVME_REG_ACQ: e->acq = (e->acq & ~0xffffffffull) | value; break;
	case NVME_REG_ACQ + 4: e->acq = (e->acq & 0xffffffffull) | (uint64_t)value << 32; break;
	default:
		if (offset >= NVME_REG_DOORBELLS && offset < e->sleep_word_offset)
			__atomic_store_n((uint32_t *)(void *)(e->bar0 + offset), value,
					 __ATOMIC_RELEASE);
	}
}

uint64_t emu_register_read(struct emu *e, uint64_t offset, unsigned width)
{
	uint64_t aligned = offset & ~3ull;
	uint64_t value = read32(e, aligned) | (uint64_t)read32(e, aligned + 4) << 32;

	value >>= 8 * (offset - aligned);
	return width == 8 ? value : value & ((1ull << 8 * width) - 1);
}

void emu_register_write(struct emu *e, uint64_t offset, uint64_t value, unsigned width)
{
	if (offset & 3 || (width != 4 && width != 8))
		return; /* properties are accessed by their width (PCIe 3.1.1) */
	write32(e, offset, (uint32_t)value);
	if (width == 8)
		write32(e, offset + 4, (uint32_t)(value >> 32));
}

/* --- completion ------------------------------------------------------------------------------- */

/* Room for one more entry; looks at the doorbell only when it seems full. */
static bool cq_has_room(struct emu *e, struct emu_cq *cq)
{
	uint32_t next = cq->tail + 1 == cq->size ? 0 : cq->tail + 1, head;

	if (next != cq->head)
		return true;
	head = __atomic_load_n(doorbell(e, cq->id, true), __ATOMIC_ACQUIRE);
	if (head >= cq->size) {
		emu_async_event(e, NVME_AER_TYPE_ERROR, NVME_AER_INVALID_DB_VALUE, NVME_LOG_ERROR);
		return false;
	}
	cq->head = head;
	return next != head;
}

bool emu_post(struct emu *e, struct emu_cq *cq, const struct nvme_cqe *cqe)
{
	struct nvme_cqe *entry = &cq->entries[cq->tail];
	uint64_t words[2];

	if (!cq_has_room(e, cq))
		return false;
	memcpy(words, cqe, sizeof(words));
	words[1] = (words[1] & ~(1ull << 48)) | (uint64_t)cq->phase << 48;
	memcpy(entry, &words[0], sizeof(words[0]));
	/* Release: data and the entry's first half are visible before the phase tag is. */
	__atomic_store_n((uint64_t *)(void *)&entry->sqhd, words[1], __ATOMIC_RELEASE);
	if (++cq->tail == cq->size) {
		cq->tail = 0;
		cq->phase ^= 1;
	}
	cq->notify = cq->interrupts;
	return true;
}

void emu_async_event(struct emu *e, unsigned type, unsigned info, unsigned log_page)
{
	struct nvme_cqe cqe = { .dw0 = type | info << 8 | log_page << 16 };

	if (!e->nr_aer)
		return;
	cqe.cid = e->aer_cid[--e->nr_aer];
	cqe.sqhd = (uint16_t)e->sq[0].head;
	emu_post(e, &e->cq[0], &cqe);
}

static void log_error(struct emu *e, const struct emu_sq *sq, const struct nvme_sqe *sqe,
		      uint32_t status)
{
	memmove(&e->errors[1], &e->errors[0], sizeof(e->errors) - sizeof(e->errors[0]));
	e->errors[0] = (struct nvme_error_log){
		.error_count = ++e->count.errors,
		.sqid = sq->id,
		.cid = sqe->cid,
		.status = (uint16_t)(status << NVME_STATUS_SC_SHIFT),
		.parameter_location = 0xffff,
		.lba = (uint64_t)sqe->cdw11 << 32 | sqe->cdw10,
		.nsid = sqe->nsid,
	};
}

/* --- the loop -----------------------------------------------------------------------------------
 */

/* A fault that was asked for is due at this command. False: the command is not executed. */
static bool inject(struct emu *e, struct nvme_sqe *sqe)
{
	switch (e->opts.fault) {
	case EMU_FAULT_DROP: return false;
	case EMU_FAULT_FATAL: emu_fatal(e); return false;
	case EMU_FAULT_EXIT: _exit(3);
	case EMU_FAULT_CID: sqe->cid ^= 0x7000; return true;
	default: return true;
	}
}

/* Executes one copied entry and posts its completion, now or when its time has come. */
static void execute(struct emu *e, struct emu_sq *sq, const struct nvme_sqe *sqe)
{
	struct nvme_cqe cqe = { .sqid = sq->id, .cid = sqe->cid };
	uint32_t status, result = 0;

	status = sq->id ? emu_io(e, sqe) : emu_admin(e, sqe, &result);
	if (__builtin_expect(status, 0)) {
		if (status == EMU_NO_COMPLETION)
			return;
		log_error(e, sq, sqe, status);
		cqe.status = (uint16_t)(status << NVME_STATUS_SC_SHIFT);
	}
	cqe.dw0 = result;
	cqe.sqhd = (uint16_t)sq->head;
	if (sq->id && emu_timing_on(&e->opts.timing)) {
		bool write = sqe->opcode != NVME_CMD_READ;
		uint64_t bytes = sqe->opcode == NVME_CMD_READ || sqe->opcode == NVME_CMD_WRITE
					 ? ((sqe->cdw12 & 0xffffull) + 1)
						   << e->opts.ns[sqe->nsid - 1].lba_shift
					 : 0;
		struct emu_pending p = { .due_ns = emu_timing_due(e, write, bytes, vroom_now_ns()),
					 .sq = sq,
					 .cqe = cqe };

		if (!status && emu_pending_push(e, &p) == 0)
			return;
	}
	emu_post(e, sq->cq, &cqe);
}

static bool process(struct emu *e, struct emu_sq *sq)
{
	uint32_t tail = __atomic_load_n(doorbell(e, sq->id, false), __ATOMIC_ACQUIRE);
	unsigned budget = BURST;

	if (tail == sq->head)
		return false;
	if (tail >= sq->size) {
		if (!sq->stopped)
			emu_async_event(e, NVME_AER_TYPE_ERROR, NVME_AER_INVALID_DB_VALUE,
					NVME_LOG_ERROR);
		sq->stopped = true; /* until the doorbell makes sense again */
		return false;
	}
	sq->stopped = false;
	for (unsigned ahead = 1; ahead < 4; ahead++)
		__builtin_prefetch(&sq->entries[(sq->head + ahead) % sq->size]);
	while (sq->head != tail && budget-- && !e->frozen && sq->entries) {
		struct nvme_sqe sqe;

		if (!cq_has_room(e, sq->cq))
			return budget + 1 < BURST;
		memcpy(&sqe, &sq->entries[sq->head], sizeof(sqe));
		__builtin_prefetch(&sq->entries[(sq->head + 4) % sq->size]);
		if (++sq->head == sq->size)
			sq->head = 0;
		if (sq->id && e->opts.fault && ++e->commands == e->opts.fault_at &&
		    !inject(e, &sqe))
			continue;
		execute(e, sq, &sqe);
	}
	return true;
}

static void notify(struct emu *e)
{
	for (unsigned i = 0; i <= EMU_MAX_QUEUES; i++) {
		struct emu_cq *cq = &e->cq[i];

		if (!cq->entries || !cq->notify)
			continue;
		cq->notify = false;
		if (e->irq_fd[cq->vector] >= 0)
			eventfd_write(e->irq_fd[cq->vector], 1);
	}
}

bool emu_poll(struct emu *e)
{
	bool busy = false;

	if (e->frozen || !e->sq[0].entries)
		return false;
	for (unsigned i = 0; i < e->nr_active; i++)
		busy |= process(e, e->active[i]);
	busy |= process(e, &e->sq[0]);
	if (e->nr_irqs && busy)
		notify(e);
	return busy;
}

bool emu_has_work(const struct emu *e)
{
	if (e->frozen || !e->sq[0].entries)
		return false;
	if (*doorbell(e, 0, false) != e->sq[0].head)
		return true;
	for (unsigned i = 0; i < e->nr_active; i++)
		if (*doorbell(e, e->active[i]->id, false) != e->active[i]->head)
			return true;
	return false;
}
