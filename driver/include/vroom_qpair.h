/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The hot path: from a command's description to a submission queue entry, the doorbell, and back
 * from a completion queue entry to the caller's tag. Included by vroom.h.
 *
 * No lock, system call, allocation, clock read or indirect call per I/O; what cannot do without is
 * behind a branch marked unlikely, in core/request.c and core/watchdog.c. One thread per queue
 * pair.
 *
 * Structures here are laid open because the path is inlined into programs. vroom_open() compares
 * VROOM_ABI, so that a program and a library that differ in them refuse each other.
 */
#ifndef VROOM_QPAIR_H
#define VROOM_QPAIR_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

#include "vroom_nvme.h"
#include "vroom_queue.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Changes with any structure or inline function of this header or of vroom_queue.h. */
#define VROOM_ABI 2

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

/* What vroom_submit() has to look at in a command. */
enum vroom_io_kind {
	VROOM_IO_DATA,	 /* names blocks and moves them: read, write, compare */
	VROOM_IO_BLOCKS, /* names blocks and moves none: write zeroes */
	VROOM_IO_RANGES, /* names ranges of blocks, which are copied */
	VROOM_IO_RAW,	 /* the caller's own; never split */
};

/* One command before it is submitted; filled by vroom_prep_*(), free to reuse afterwards. */
struct vroom_io {
	struct nvme_sqe sqe; /* cid, prp1 and prp2 are filled in at submission */
	void *buf;
	const struct iovec *iov; /* instead of BUF: IOVCNT pieces */
	unsigned iovcnt;
	enum vroom_io_kind kind;
	uint64_t bytes;	   /* of data */
	uint64_t nlb;	   /* blocks; a command too large for the controller is split by these */
	void *tag;	   /* comes back in vroom_completion */
	uint8_t lba_shift; /* log2 of the block size */
};

/* One finished command. */
struct vroom_completion {
	void *tag;
	uint64_t result; /* DW0, and above it DW1, of the completion queue entry */
	uint16_t status; /* its status word, phase tag cleared: 0 is success */
};

/* Of a slot: what vroom_poll() has to do when its command completes. */
enum vroom_slot_state {
	VROOM_SLOT_FREE,  /* nothing is outstanding: the completion is a fault */
	VROOM_SLOT_PLAIN, /* hand out the tag */
	VROOM_SLOT_SLOW,  /* vroom_poll_rest() */
};
#define VROOM_NO_SLOT UINT32_MAX

/* A command in flight; its index is the command identifier. private: to the driver. */
struct vroom_slot {
	void *tag;
	uint64_t slba;
	uint32_t what;	    /* opcode << 24 | blocks, to name the command when it is late */
	uint32_t deadline;  /* tick after which the command is late */
	uint32_t state;	    /* enum vroom_slot_state */
	uint32_t next_free; /* command identifier, or VROOM_NO_SLOT */
};
NVME_ASSERT(sizeof(struct vroom_slot) == 32 || sizeof(void *) != 8, "two commands in a cache line");

/* A stretch of memory that the controller sees in one piece: address + delta. */
struct vroom_dma_range {
	uintptr_t base;
	size_t bytes;
	uint64_t delta;
};

/* private: to the driver, all of it. */
struct vroom_qpair {
	struct vroom_sq sq;
	struct vroom_slot *slots;
	uint32_t free_slot; /* the first free one; VROOM_NO_SLOT also while nothing may be submitted
			     */
	uint32_t deadline;  /* tick after which a command that is submitted now is late */
	struct vroom_dma_range range; /* where the last buffer was found */
	uint64_t page_mask;	      /* CC.MPS as bytes, less 1 */
	struct vroom_cq cq;
	uint32_t depth;
	uint32_t blocked; /* failed, or a request is being split: free slots are held back */
	uint16_t qid;
	uint64_t last_look;  /* ticks of the processor's counter, at the last empty poll that looked
			      */
	uint64_t look_ticks; /* between two of them */
	uint32_t rings_to_look; /* head doorbells until a busy queue is looked at */
	int error;		/* negative errno once the queue pair has failed */
	struct vroom_ctrlr *ctrlr;
	struct vroom_qpair_cold *cold;
};

/* The parts of the path that need more than a few instructions. */
#pragma GCC visibility push(default)
int vroom_submit_slow(struct vroom_qpair *qp, const struct vroom_io *io);
int vroom_submit_blocked(const struct vroom_qpair *qp);
int vroom_poll_rest(struct vroom_qpair *qp, struct vroom_completion *out, int max, int count);
int vroom_poll_idle(struct vroom_qpair *qp, uint64_t now);
#pragma GCC visibility pop

/* Commands that QP can hold at once; vroom_submit() answers -EAGAIN beyond that. */
static inline unsigned vroom_qpair_depth(const struct vroom_qpair *qp)
{
	return qp->depth;
}

/* --- describing a command: pure functions --------------------------------------------- */

static inline void vroom_prep_init(struct vroom_io *io, enum vroom_io_kind kind, uint8_t opcode,
				   uint32_t nsid, void *tag)
{
	struct nvme_sqe *sqe = &io->sqe;

	sqe->opcode = opcode;
	sqe->flags = 0;
	sqe->cid = 0;
	sqe->nsid = nsid;
	sqe->cdw2 = sqe->cdw3 = 0;
	sqe->mptr = sqe->prp1 = sqe->prp2 = 0;
	sqe->cdw10 = sqe->cdw11 = sqe->cdw12 = sqe->cdw13 = sqe->cdw14 = sqe->cdw15 = 0;
	io->kind = kind;
	io->buf = NULL;
	io->iov = NULL;
	io->iovcnt = 0;
	io->bytes = 0;
	io->nlb = 0;
	io->lba_shift = 0;
	io->tag = tag;
}

static inline void vroom_prep_rw(struct vroom_io *io, enum vroom_io_kind kind, uint8_t opcode,
				 const struct vroom_ns *ns, void *buf, uint64_t slba, uint64_t nlb,
				 void *tag)
{
	vroom_prep_init(io, kind, opcode, ns->nsid, tag);
	nvme_sqe_set_slba(&io->sqe, slba);
	io->sqe.cdw12 = (uint32_t)(nlb - 1) & NVME_RW_NLB_MASK;
	io->buf = buf;
	io->nlb = nlb;
	io->lba_shift = ns->lba_shift;
	if (kind == VROOM_IO_DATA)
		io->bytes = nlb << ns->lba_shift;
}

/* Reads NLB (at least 1) blocks from SLBA into BUF (NVM 3.2.4). */
static inline void vroom_prep_read(struct vroom_io *io, const struct vroom_ns *ns, void *buf,
				   uint64_t slba, uint64_t nlb, void *tag)
{
	vroom_prep_rw(io, VROOM_IO_DATA, NVME_CMD_READ, ns, buf, slba, nlb, tag);
}

/* Writes NLB blocks from BUF to SLBA (NVM 3.2.6). Add vroom_prep_fua() to reach the media. */
static inline void vroom_prep_write(struct vroom_io *io, const struct vroom_ns *ns, const void *buf,
				    uint64_t slba, uint64_t nlb, void *tag)
{
	vroom_prep_rw(io, VROOM_IO_DATA, NVME_CMD_WRITE, ns, (void *)(uintptr_t)buf, slba, nlb,
		      tag);
}

/* Compares NLB blocks at SLBA with BUF; status Compare Failure if they differ (NVM 3.2.1). */
static inline void vroom_prep_compare(struct vroom_io *io, const struct vroom_ns *ns,
				      const void *buf, uint64_t slba, uint64_t nlb, void *tag)
{
	vroom_prep_rw(io, VROOM_IO_DATA, NVME_CMD_COMPARE, ns, (void *)(uintptr_t)buf, slba, nlb,
		      tag);
}

/*
 * The same with memory in IOVCNT pieces, which together hold NLB blocks or more. IOV and what it
 * names must stay until the completion. Where a piece but the first begins, or one but the last
 * ends, inside a page of the controller's, data is copied.
 */
static inline void vroom_prep_readv(struct vroom_io *io, const struct vroom_ns *ns,
				    const struct iovec *iov, unsigned iovcnt, uint64_t slba,
				    uint64_t nlb, void *tag)
{
	vroom_prep_rw(io, VROOM_IO_DATA, NVME_CMD_READ, ns, NULL, slba, nlb, tag);
	io->iov = iov;
	io->iovcnt = iovcnt;
}

static inline void vroom_prep_writev(struct vroom_io *io, const struct vroom_ns *ns,
				     const struct iovec *iov, unsigned iovcnt, uint64_t slba,
				     uint64_t nlb, void *tag)
{
	vroom_prep_rw(io, VROOM_IO_DATA, NVME_CMD_WRITE, ns, NULL, slba, nlb, tag);
	io->iov = iov;
	io->iovcnt = iovcnt;
}

/* Zeroes NLB (at least 1) blocks at SLBA without a transfer (NVM 3.2.8). */
static inline void vroom_prep_write_zeroes(struct vroom_io *io, const struct vroom_ns *ns,
					   uint64_t slba, uint64_t nlb, void *tag)
{
	vroom_prep_rw(io, VROOM_IO_BLOCKS, NVME_CMD_WRITE_ZEROES, ns, NULL, slba, nlb, tag);
}

/* Makes a prepared read or write reach the media before it completes (FUA). */
static inline void vroom_prep_fua(struct vroom_io *io)
{
	io->sqe.cdw12 |= NVME_RW_FUA;
}

/*
 * A command of the caller's own making, with BYTES of data at BUF or none, which goes where the
 * opcode's bits 1:0 say (Base 3.3.3.1). Never split.
 */
static inline void vroom_prep_raw(struct vroom_io *io, const struct nvme_sqe *sqe, void *buf,
				  size_t bytes, void *tag)
{
	vroom_prep_init(io, VROOM_IO_RAW, sqe->opcode, sqe->nsid, tag);
	io->sqe = *sqe;
	io->buf = buf;
	io->bytes = bytes;
}

/* Commits what was written to the namespace to the media (NVM 3.2.2 in Base 7.1). */
static inline void vroom_prep_flush(struct vroom_io *io, const struct vroom_ns *ns, void *tag)
{
	vroom_prep_init(io, VROOM_IO_RAW, NVME_CMD_FLUSH, ns->nsid, tag);
}

/*
 * Deallocates COUNT (1 to 256) RANGES (NVM 3.2.3), which are copied at submission and need
 * not be DMA memory.
 */
static inline void vroom_prep_deallocate(struct vroom_io *io, const struct vroom_ns *ns,
					 const struct nvme_dsm_range *ranges, unsigned count,
					 void *tag)
{
	vroom_prep_init(io, VROOM_IO_RANGES, NVME_CMD_DSM, ns->nsid, tag);
	io->sqe.cdw10 = count - 1;
	io->sqe.cdw11 = NVME_DSM_DEALLOCATE;
	io->buf = (void *)(uintptr_t)ranges;
	io->nlb = count;
	io->bytes = count * sizeof(*ranges);
}

/* --- the queue -------------------------------------------------------------------------- */

/*
 * Finds the PRP entries of BYTES at VA (Base 4.1.1) where that is quick: memory within the last
 * range, at most two pages. What PRP2 is then is for vroom_post() to see.
 */
static inline bool vroom_translate(const struct vroom_qpair *qp, uintptr_t va, uint64_t bytes,
				   uint64_t *prp1, uint64_t *prp2)
{
	const struct vroom_dma_range *w = &qp->range;
	uint64_t iova = va + w->delta, mask = qp->page_mask;
	uint64_t last = (iova & mask) + bytes - 1; /* byte, from the start of the first page */

	*prp1 = iova;
	*prp2 = 0;
	if (VROOM_UNLIKELY(last > mask)) {
		if (last > 2 * mask + 1)
			return false;
		*prp2 = (iova | mask) + 1;
	}
	/* PRP entries are dword aligned. Ranges hold two pages or more. */
	return VROOM_LIKELY(!(iova & 3) &&
			    va - __atomic_load_n(&w->base, __ATOMIC_RELAXED) <= w->bytes - bytes);
}

/*
 * Fetches the line at P for writing, some entries ahead of their use: the controller had it last,
 * and its processor may be far away. Where they are near this neither gains nor costs.
 */
static inline void vroom_prefetch_write(const void *p)
{
#if defined(__x86_64__)
	__asm__ volatile("prefetchw %0" : : "m"(*(const char *)p));
#else
	__builtin_prefetch(p, 1);
#endif
}

/* Fills the entry at the tail with IO's command and takes a free slot for it. */
static inline struct vroom_slot *vroom_post(struct vroom_qpair *qp, const struct vroom_io *io,
					    uint64_t prp1, uint64_t prp2)
{
	uint32_t cid = qp->free_slot;
	struct vroom_slot *slot = &qp->slots[cid];
	uint64_t *entry = (uint64_t *)(void *)vroom_sq_entry(&qp->sq);
	const struct nvme_sqe *sqe = &io->sqe;

	vroom_prefetch_write(&entry[32]);
	/* Eight wide stores: the description itself never needs to exist in memory. */
	entry[0] = (uint64_t)sqe->nsid << 32 | cid << 16 | (uint32_t)sqe->flags << 8 | sqe->opcode;
	entry[1] = (uint64_t)sqe->cdw3 << 32 | sqe->cdw2;
	entry[2] = sqe->mptr;
	entry[3] = prp1;
	entry[4] = prp2;
	entry[5] = (uint64_t)sqe->cdw11 << 32 | sqe->cdw10;
	entry[6] = (uint64_t)sqe->cdw13 << 32 | sqe->cdw12;
	entry[7] = (uint64_t)sqe->cdw15 << 32 | sqe->cdw14;
	qp->free_slot = slot->next_free;
	slot->tag = io->tag;
	slot->slba = nvme_sqe_slba(sqe);
	slot->what = (uint32_t)sqe->opcode << 24 | (uint32_t)io->nlb;
	slot->deadline = qp->deadline;
	slot->state = VROOM_SLOT_PLAIN;
	vroom_sq_advance(&qp->sq);
	return slot;
}

/*
 * Queues IO; the controller learns of it with vroom_ring(). Its buffer is the controller's
 * until its completion. Any buffer will do; one from vroom_dma_alloc() or vroom_dma_register()
 * is not copied. Returns 0; -EAGAIN when the queue pair is full: ring, poll, then try again;
 * -EINVAL a command without blocks, ranges or buffer; another negative errno once the queue pair
 * has failed, see vroom_error().
 */
static inline int vroom_submit(struct vroom_qpair *qp, const struct vroom_io *io)
{
	uint64_t prp1, prp2;

	if (VROOM_UNLIKELY(qp->free_slot == VROOM_NO_SLOT))
		return vroom_submit_blocked(qp);
	if (VROOM_UNLIKELY(io->kind != VROOM_IO_DATA || io->nlb - 1 >= NVME_RW_MAX_NLB ||
			   !vroom_translate(qp, (uintptr_t)io->buf, io->bytes, &prp1, &prp2))) {
		struct vroom_io copy = *io;

		return vroom_submit_slow(qp, &copy);
	}
	vroom_post(qp, io, prp1, prp2);
	return 0;
}

/* Hands all that was submitted since the last call to the controller: one doorbell write. */
static inline void vroom_ring(struct vroom_qpair *qp)
{
	vroom_sq_ring(&qp->sq);
}

/* A constant-rate counter of the processor's; its unit is not known. */
static inline uint64_t vroom_ticks(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
	uint64_t value;

	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(value));
	return value;
#else
	return 0; /* then each empty poll looks at the clock */
#endif
}

/*
 * Reaps up to MAX completions into OUT. Returns how many, 0 when there are none; a negative
 * errno once the queue pair has failed: -ETIMEDOUT a command passed its deadline, -EIO fatal
 * controller status, -ENODEV the controller is gone, -EPROTO it answered nonsense.
 *
 * The head doorbell gives entries back to the controller. It is written (by vroom_poll_rest())
 * before the queue could be full for the controller, which with a completion queue larger than what
 * can be outstanding is once in many completions.
 */
static inline int vroom_poll(struct vroom_qpair *qp, struct vroom_completion *out, int max)
{
	struct vroom_cq *cq = &qp->cq;
	uint32_t head = cq->head;
	int count = 0;

	for (; count < max; count++, out++) {
		const struct nvme_cqe *cqe = &cq->entries[head];
		uint32_t last = vroom_cq_peek(cq, cqe), cid = last & 0xffff;
		struct vroom_slot *slot = &qp->slots[cid];

		if (last & NVME_CQE_PHASE)
			break;
		if (VROOM_UNLIKELY(cid >= qp->depth || slot->state != VROOM_SLOT_PLAIN)) {
			cq->head = head;
			return vroom_poll_rest(qp, out, max, count);
		}
		out->result = nvme_cqe_result(cqe);
		out->status = (uint16_t)(last >> 16);
		out->tag = slot->tag;
		slot->state = VROOM_SLOT_FREE;
		slot->next_free = qp->free_slot;
		qp->free_slot = cid;
		head = vroom_cq_next(cq, head);
	}
	if (!count) {
		uint64_t now = vroom_ticks();

		if (VROOM_LIKELY(now - qp->last_look < qp->look_ticks))
			return 0;
		return vroom_poll_idle(qp, now);
	}
	cq->head = head;
	if (VROOM_UNLIKELY(cq->left < count))
		return vroom_poll_rest(qp, out, count, count);
	cq->left -= count;
	return count;
}

#ifdef __cplusplus
}
#endif

#endif
