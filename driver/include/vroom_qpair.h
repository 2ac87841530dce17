/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The hot path: from a command's description to a submission queue entry, the doorbell,
 * and back from a completion queue entry to the caller's tag. Included by vroom.h.
 *
 * No lock, system call, allocation, clock read or indirect call here; what cannot do
 * without is behind a branch marked unlikely, in core/qpair.c. One thread per queue pair.
 */
#ifndef VROOM_QPAIR_H
#define VROOM_QPAIR_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "vroom_nvme.h"

#ifdef __cplusplus
extern "C" {
#endif

#define VROOM_LIKELY(x)	  __builtin_expect(!!(x), 1)
#define VROOM_UNLIKELY(x) __builtin_expect(!!(x), 0)

struct vroom_ctrlr;

/* A namespace, as vroom_namespace() fills it in. */
struct vroom_ns {
	uint32_t nsid;
	uint32_t lba_size; /* bytes */
	uint64_t blocks;   /* size in logical blocks (NSZE) */
	uint8_t lba_shift; /* log2 of lba_size */
	bool read_only;	   /* write protected (NSATTR bit 0) */
	bool deallocates;  /* dataset management is supported (ONCS) */
};

/* One command before it is submitted; filled by vroom_prep_*(), free to reuse afterwards. */
struct vroom_io {
	struct nvme_sqe sqe; /* cid, prp1 and prp2 are filled in at submission */
	void *buf;	     /* NULL for commands without data */
	uint64_t bytes;	     /* of buf */
	uint64_t nlb;	     /* blocks; a command too large for the controller is split by these */
	void *tag;	     /* comes back in vroom_completion */
	uint8_t lba_shift;   /* log2 of the block size; 0: the command cannot be split */
	bool to_host;	     /* data goes from the controller to buf */
};

/* One finished command. */
struct vroom_completion {
	void *tag;
	uint32_t result; /* DW0 of the completion queue entry */
	uint16_t status; /* its status word, phase tag cleared: 0 is success */
};

/* A command in flight; its index is the command identifier. private: to the driver. */
struct vroom_slot {
	void *tag;
	uint64_t slba;
	uint32_t nlb;
	uint8_t opcode;
	bool busy;
	bool slow;		   /* its completion needs vroom_complete_slow() */
	uint8_t epoch;		   /* of the deadline clock when it was submitted */
	struct vroom_split *split; /* set: a part of this larger request */
	void *list;		   /* PRP lists or ranges, in DMA memory, kept by the slot */
	uint64_t list_iova;
	struct vroom_bounce *bounce; /* set: data goes through DMA memory */
	uint64_t unused;
};
_Static_assert(sizeof(struct vroom_slot) == 64, "one cache line per command");

/* A stretch of DMA memory and where the controller sees it, granule by granule. */
struct vroom_dma_window {
	uintptr_t base;
	size_t bytes;
	const uint64_t *iova;
	unsigned granule_shift;
};

/* private: fields are the driver's; programs read qid and depth only. */
struct vroom_qpair {
	/* submission */
	struct nvme_sqe *sq;
	volatile uint32_t *sq_doorbell;
	const volatile uint32_t *sleeping; /* non-zero: the doorbell takes more than a store */
	struct vroom_slot *slots;
	uint16_t *free_slots;	     /* stack of free command identifiers */
	struct vroom_dma_window dma; /* where the last buffer was found */
	uint64_t max_transfer;
	uint32_t page_size;
	uint32_t free_count;
	uint32_t sq_tail;
	uint32_t sq_size;
	uint32_t sq_rung; /* tail that the doorbell was last given */
	int error;	  /* negative errno once the queue pair has failed */
	uint8_t epoch;
	/* completion */
	uint8_t phase;
	uint16_t qid;
	uint32_t depth;
	struct nvme_cqe *cq;
	volatile uint32_t *cq_doorbell;
	uint32_t cq_head;
	uint32_t cq_size;
	uint32_t cq_unrung; /* entries taken since the doorbell was written */
	uint32_t cq_slack;  /* how many of these are harmless */
	uint32_t polls;
	struct vroom_split *splitting; /* the request whose parts are not all submitted */
	struct vroom_ctrlr *ctrlr;
	struct vroom_qpair_cold *cold;
};

/* Every so many polls, vroom_poll() looks at the clock and at the controller. */
#define VROOM_IDLE_POLLS 256

/* The parts of the path that need more than a few instructions; core/qpair.c. */
#pragma GCC visibility push(default)
int vroom_submit_slow(struct vroom_qpair *qp, const struct vroom_io *io);
int vroom_complete_slow(struct vroom_qpair *qp, struct vroom_slot *slot, uint16_t status,
			struct vroom_completion *out);
int vroom_poll_idle(struct vroom_qpair *qp, bool idle);
int vroom_bad_completion(struct vroom_qpair *qp, uint16_t cid);
void vroom_doorbell_slow(struct vroom_qpair *qp, volatile uint32_t *doorbell, uint32_t value);
#pragma GCC visibility pop

/* Commands that QP can hold at once; vroom_submit() answers -EAGAIN beyond that. */
static inline unsigned vroom_qpair_depth(const struct vroom_qpair *qp)
{
	return qp->depth;
}

/* --- describing a command: pure functions --------------------------------------------- */

static inline void vroom_prep_rw(struct vroom_io *io, uint8_t opcode, const struct vroom_ns *ns,
				 void *buf, uint64_t slba, uint64_t nlb, void *tag)
{
	memset(&io->sqe, 0, sizeof(io->sqe));
	io->sqe.opcode = opcode;
	io->sqe.nsid = ns->nsid;
	io->sqe.cdw10 = (uint32_t)slba;
	io->sqe.cdw11 = (uint32_t)(slba >> 32);
	io->sqe.cdw12 = (uint32_t)(nlb - 1) & NVME_RW_NLB_MASK;
	io->buf = buf;
	io->bytes = buf ? nlb << ns->lba_shift : 0;
	io->nlb = nlb;
	io->tag = tag;
	io->lba_shift = ns->lba_shift;
	io->to_host = opcode == NVME_CMD_READ;
}

/* Reads NLB (at least 1) blocks from SLBA into BUF (NVM 3.2.4). */
static inline void vroom_prep_read(struct vroom_io *io, const struct vroom_ns *ns, void *buf,
				   uint64_t slba, uint64_t nlb, void *tag)
{
	vroom_prep_rw(io, NVME_CMD_READ, ns, buf, slba, nlb, tag);
}

/* Writes NLB blocks from BUF to SLBA (NVM 3.2.6). Add vroom_prep_fua() to reach the media. */
static inline void vroom_prep_write(struct vroom_io *io, const struct vroom_ns *ns, const void *buf,
				    uint64_t slba, uint64_t nlb, void *tag)
{
	vroom_prep_rw(io, NVME_CMD_WRITE, ns, (void *)(uintptr_t)buf, slba, nlb, tag);
}

/* Compares NLB blocks at SLBA with BUF; status Compare Failure if they differ (NVM 3.2.1). */
static inline void vroom_prep_compare(struct vroom_io *io, const struct vroom_ns *ns,
				      const void *buf, uint64_t slba, uint64_t nlb, void *tag)
{
	vroom_prep_rw(io, NVME_CMD_COMPARE, ns, (void *)(uintptr_t)buf, slba, nlb, tag);
}

/* Zeroes NLB blocks at SLBA without a transfer (NVM 3.2.8). */
static inline void vroom_prep_write_zeroes(struct vroom_io *io, const struct vroom_ns *ns,
					   uint64_t slba, uint64_t nlb, void *tag)
{
	vroom_prep_rw(io, NVME_CMD_WRITE_ZEROES, ns, NULL, slba, nlb, tag);
}

/* Makes a prepared read or write reach the media before it completes (FUA). */
static inline void vroom_prep_fua(struct vroom_io *io)
{
	io->sqe.cdw12 |= NVME_RW_FUA;
}

/* A command of the caller's own making, with BYTES of data at BUF or none. Never split. */
static inline void vroom_prep_raw(struct vroom_io *io, const struct nvme_sqe *sqe, void *buf,
				  size_t bytes, bool to_host, void *tag)
{
	io->sqe = *sqe;
	io->buf = bytes ? buf : NULL;
	io->bytes = bytes;
	io->nlb = 0;
	io->tag = tag;
	io->lba_shift = 0;
	io->to_host = to_host;
}

/* Commits what was written to the namespace to the media (NVM 3.2.2 in Base 7.1). */
static inline void vroom_prep_flush(struct vroom_io *io, const struct vroom_ns *ns, void *tag)
{
	struct nvme_sqe sqe = { .opcode = NVME_CMD_FLUSH, .nsid = ns->nsid };

	vroom_prep_raw(io, &sqe, NULL, 0, false, tag);
}

/*
 * Deallocates COUNT (1 to 256) RANGES (NVM 3.2.3), which are copied at submission and need
 * not be DMA memory.
 */
static inline void vroom_prep_deallocate(struct vroom_io *io, const struct vroom_ns *ns,
					 const struct nvme_dsm_range *ranges, unsigned count,
					 void *tag)
{
	struct nvme_sqe sqe = {
		.opcode = NVME_CMD_DSM,
		.nsid = ns->nsid,
		.cdw10 = count - 1,
		.cdw11 = NVME_DSM_DEALLOCATE,
	};

	vroom_prep_raw(io, &sqe, (void *)(uintptr_t)ranges, count * sizeof(*ranges), false, tag);
}

/* --- the queue -------------------------------------------------------------------------- */

/* Where the controller sees VA; false when VA is outside the last window. */
static inline bool vroom_translate(const struct vroom_qpair *qp, uintptr_t va, uint64_t *iova)
{
	const struct vroom_dma_window *w = &qp->dma;
	size_t offset = va - w->base;

	if (VROOM_UNLIKELY(offset >= w->bytes))
		return false;
	*iova = w->iova[offset >> w->granule_shift] + (offset & ((1ul << w->granule_shift) - 1));
	return true;
}

/* Takes a free slot for IO and copies its entry to the tail; the doorbell comes later. */
static inline struct vroom_slot *vroom_post(struct vroom_qpair *qp, const struct vroom_io *io,
					    uint64_t prp1, uint64_t prp2)
{
	uint16_t cid = qp->free_slots[--qp->free_count];
	struct vroom_slot *slot = &qp->slots[cid];
	struct nvme_sqe *sqe = &qp->sq[qp->sq_tail];

	*sqe = io->sqe;
	sqe->cid = cid;
	sqe->prp1 = prp1;
	sqe->prp2 = prp2;
	slot->tag = io->tag;
	slot->slba = (uint64_t)io->sqe.cdw11 << 32 | io->sqe.cdw10;
	slot->nlb = (uint32_t)io->nlb;
	slot->opcode = io->sqe.opcode;
	slot->epoch = qp->epoch;
	slot->busy = true;
	if (++qp->sq_tail == qp->sq_size)
		qp->sq_tail = 0;
	return slot;
}

/*
 * Queues IO; the controller learns of it with vroom_ring(). Its buffer is the controller's
 * until its completion. Any buffer will do; one from vroom_dma_alloc() is not copied.
 * Returns 0; -EAGAIN when the queue pair is full: ring, poll, then try again; another
 * negative errno once the queue pair has failed, see vroom_error().
 */
static inline int vroom_submit(struct vroom_qpair *qp, const struct vroom_io *io)
{
	uint64_t prp1 = 0, prp2 = 0, in_page;

	if (VROOM_UNLIKELY(!qp->free_count || qp->splitting || qp->error))
		return qp->error ? qp->error : -EAGAIN;
	if (io->bytes) {
		if (VROOM_UNLIKELY(!vroom_translate(qp, (uintptr_t)io->buf, &prp1)))
			return vroom_submit_slow(qp, io);
		in_page = qp->page_size - (prp1 & (qp->page_size - 1));
		if (io->bytes > in_page) {
			if (VROOM_UNLIKELY(
				    io->bytes > in_page + qp->page_size ||
				    io->bytes > qp->max_transfer || (prp1 & 3) ||
				    !vroom_translate(qp, (uintptr_t)io->buf + in_page, &prp2)))
				return vroom_submit_slow(qp, io);
		} else if (VROOM_UNLIKELY(prp1 & 3)) { /* PRP entries are dword aligned */
			return vroom_submit_slow(qp, io);
		}
		/* The window may end inside the buffer. */
		if (VROOM_UNLIKELY((uintptr_t)io->buf - qp->dma.base + io->bytes > qp->dma.bytes))
			return vroom_submit_slow(qp, io);
	} else if (VROOM_UNLIKELY(io->nlb > NVME_RW_MAX_NLB)) {
		return vroom_submit_slow(qp, io);
	}
	vroom_post(qp, io, prp1, prp2);
	return 0;
}

static inline void vroom_doorbell(struct vroom_qpair *qp, volatile uint32_t *doorbell,
				  uint32_t value)
{
	/* Release: the queue entries are visible to the controller before the new index is. */
	__atomic_store_n(doorbell, value, __ATOMIC_RELEASE);
	if (VROOM_UNLIKELY(*qp->sleeping))
		vroom_doorbell_slow(qp, doorbell, value);
}

/* Hands all that was submitted since the last call to the controller: one doorbell write. */
static inline void vroom_ring(struct vroom_qpair *qp)
{
	if (qp->sq_rung == qp->sq_tail)
		return;
	qp->sq_rung = qp->sq_tail;
	vroom_doorbell(qp, qp->sq_doorbell, qp->sq_tail);
}

/*
 * Reaps up to MAX completions into OUT. Returns how many, 0 when there are none; a negative
 * errno once the queue pair has failed: -ETIMEDOUT a command passed its deadline, -EIO fatal
 * controller status, -ENODEV the controller is gone, -EPROTO it answered nonsense.
 *
 * The head doorbell frees queue entries for the controller. It is written before these
 * could run out, which with a completion queue larger than the submission queue is once
 * in many completions.
 */
static inline int vroom_poll(struct vroom_qpair *qp, struct vroom_completion *out, int max)
{
	uint32_t head = qp->cq_head, taken = 0;
	int count = 0;

	while (count < max) {
		struct nvme_cqe *cqe = &qp->cq[head];
		/* Acquire: the rest of the entry, and the data it announces, are read after. */
		uint32_t dw3 = __atomic_load_n((uint32_t *)(void *)&cqe->cid, __ATOMIC_ACQUIRE);
		uint16_t status = (uint16_t)(dw3 >> 16), cid = (uint16_t)dw3;
		struct vroom_slot *slot;

		if ((status & 1) != qp->phase)
			break;
		if (VROOM_UNLIKELY(cid >= qp->depth || !qp->slots[cid].busy))
			return vroom_bad_completion(qp, cid);
		slot = &qp->slots[cid];
		out[count].tag = slot->tag;
		out[count].result = cqe->dw0;
		out[count].status = status & 0xfffe;
		taken++;
		if (++head == qp->cq_size) {
			head = 0;
			qp->phase ^= 1;
		}
		if (VROOM_UNLIKELY(slot->slow)) {
			count += vroom_complete_slow(qp, slot, status & 0xfffe, &out[count]);
			continue;
		}
		slot->busy = false;
		qp->free_slots[qp->free_count++] = cid;
		count++;
	}
	if (VROOM_UNLIKELY(++qp->polls % VROOM_IDLE_POLLS == 0 || qp->error)) {
		int ret = vroom_poll_idle(qp, !taken);

		if (!taken)
			return ret;
	}
	if (!taken)
		return 0;
	qp->cq_head = head;
	qp->cq_unrung += taken;
	if (qp->cq_unrung > qp->cq_slack) {
		qp->cq_unrung = 0;
		vroom_doorbell(qp, qp->cq_doorbell, head);
	}
	return count;
}

#ifdef __cplusplus
}
#endif

#endif
