/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Doorbells, submission and completion queues: what the admin queue and I/O queue pairs consist of.
 * A queue has one producer and one consumer; each tells the other of its index by a doorbell (host)
 * or by phase tags and SQ heads (controller). Base 3.3.1, 3.3.3.
 *
 * Memory order. Two pairs of accesses matter, and no others:
 *
 * - an entry is written before the tail doorbell that announces it: a store-release of the
 * doorbell;
 *
 * - a completion's phase tag is read before the rest of it, and before the data that it announces:
 * a load-acquire of its last word.
 *
 * tests/model/ checks these rules on this file.
 */
#ifndef VROOM_QUEUE_H
#define VROOM_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vroom_nvme.h"

#ifdef __cplusplus
extern "C" {
#endif

#define VROOM_LIKELY(x)	  __builtin_expect(!!(x), 1)
#define VROOM_UNLIKELY(x) __builtin_expect(!!(x), 0)

struct vroom_kick;

/* A doorbell register (PCIe 3.1.2). */
struct vroom_doorbell {
	volatile uint32_t *reg;		     /* of the controller's, or a word that stands for it */
	const volatile uint32_t *needs_kick; /* non-zero: a store is not enough */
	struct vroom_kick *kick;	     /* what is to be done then; core/doorbell.c */
};

/* A submission queue. */
struct vroom_sq {
	struct nvme_sqe *entries;
	struct vroom_doorbell doorbell;
	uint32_t size; /* entries; SIZE - 1 of them can be in use */
	uint32_t tail; /* the next to fill */
	uint32_t rung; /* tail that the controller was told */
};

/* A completion queue. */
struct vroom_cq {
	struct nvme_cqe *entries;
	struct vroom_doorbell doorbell;
	uint32_t size;
	uint32_t head;	/* the next to look at */
	uint32_t phase; /* NVME_CQE_PHASE while new entries have the tag 1, else 0 */
	int32_t slack;	/* entries that can be taken without the controller being told */
	int32_t left;	/* of these, since it was told the last time */
};

/* The phase tag in the last word of an entry. */
#define NVME_CQE_PHASE (NVME_STATUS_PHASE_MASK << 16)

#pragma GCC visibility push(default)
/* Where a store is not enough: sends a message, wakes a sleeping controller, or waits a moment. */
void vroom_doorbell_kick(const struct vroom_doorbell *db, uint32_t value);
#pragma GCC visibility pop

static inline void vroom_doorbell_write(const struct vroom_doorbell *db, uint32_t value)
{
	/* Release: the entries (or, of a completion queue, our reads of them) come before. */
	__atomic_store_n(db->reg, value, __ATOMIC_RELEASE);
	if (VROOM_UNLIKELY(*db->needs_kick))
		vroom_doorbell_kick(db, value);
}

/* The entry to fill next; vroom_sq_advance() then moves on. */
static inline struct nvme_sqe *vroom_sq_entry(const struct vroom_sq *sq)
{
	return &sq->entries[sq->tail];
}

static inline void vroom_sq_advance(struct vroom_sq *sq)
{
	uint32_t next = sq->tail + 1;

	sq->tail = next == sq->size ? 0 : next;
}

/* Tells the controller of all that was filled since the last time, if anything. */
static inline void vroom_sq_ring(struct vroom_sq *sq)
{
	uint32_t tail = sq->tail;

	if (sq->rung == tail)
		return;
	sq->rung = tail;
	vroom_doorbell_write(&sq->doorbell, tail);
}

/*
 * The last word of the entry at HEAD, without its phase tag: the status field from bit 17 on, the
 * command identifier below bit 16. With NVME_CQE_PHASE set there is no new entry.
 */
static inline uint32_t vroom_cq_peek(const struct vroom_cq *cq, const struct nvme_cqe *head)
{
	/* Acquire: the rest of the entry, and the data that it announces, are read after this. */
	uint32_t last =
		__atomic_load_n((const uint32_t *)(const void *)&head->cid, __ATOMIC_ACQUIRE);

	return last ^ cq->phase;
}

static inline bool vroom_cq_empty(const struct vroom_cq *cq)
{
	return vroom_cq_peek(cq, &cq->entries[cq->head]) & NVME_CQE_PHASE;
}

/* The entry after HEAD; phase tags change from one round to the next. */
static inline uint32_t vroom_cq_next(struct vroom_cq *cq, uint32_t head)
{
	if (VROOM_LIKELY(++head != cq->size))
		return head;
	cq->phase ^= NVME_CQE_PHASE;
	return 0;
}

/* Gives all entries that were taken back to the controller. */
static inline void vroom_cq_ring(struct vroom_cq *cq)
{
	cq->left = cq->slack;
	vroom_doorbell_write(&cq->doorbell, cq->head);
}

#ifdef __cplusplus
}
#endif

#endif
