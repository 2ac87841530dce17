/* SPDX-License-Identifier: BSD-3-Clause */
/* Creation and deletion of I/O queue pairs. */
#include "core/qpair.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/lock.h"
#include "base/size.h"

static int delete_queue_locked(struct vroom_ctrlr *c, uint8_t opcode, unsigned qid)
{
	struct nvme_sqe sqe = { .opcode = opcode, .cdw10 = qid };

	return vroom_admin_locked(c, &sqe, NULL, 0, NULL);
}

/* Deletes the queues of dead processes. False: the controller may still use some. */
static bool delete_dead(struct vroom_ctrlr *c)
{
	struct vroom_ctrlr_shared *s = c->shared;
	bool all = true;

	vroom_lock(&s->lock);
	for (unsigned qid = 1; qid <= c->qpairs; qid++) {
		pid_t owner = s->qpair_owner[qid];

		if (!owner || owner == getpid() || vroom_process_alive(owner))
			continue;
		/* It may have died before it had created both. */
		delete_queue_locked(c, NVME_ADMIN_DELETE_SQ, qid);
		delete_queue_locked(c, NVME_ADMIN_DELETE_CQ, qid);
		if (vroom_ctrlr_failed(c))
			all = false;
		else
			s->qpair_owner[qid] = 0;
	}
	vroom_unlock(&s->lock);
	return all;
}

/*
 * The order matters: as long as a queue pair exists its controller may write to what its owner had,
 * in the pool of any controller.
 */
void vroom_ctrlr_reclaim(struct vroom_ctrlr *c)
{
	struct vroom_dma_pool *pool = &c->pool;

	for (unsigned i = 0; i < pool->spaces; i++) {
		struct vroom_ctrlr *user = vroom_ctrlr_of(pool->space[i]);

		if (!vroom_space_suspect(pool->space[i]))
			delete_dead(user);
	}
	vroom_pool_free_dead(pool);
	for (unsigned i = 0; i < pool->spaces; i++)
		vroom_space_unmap_dead(pool->space[i]);
}

/* A free queue identifier, now owned by this process; 0 when all are taken. */
static unsigned take_qid(struct vroom_ctrlr *c)
{
	struct vroom_ctrlr_shared *s = c->shared;
	unsigned qid = 0;

	for (int tries = 0; tries < 2 && !qid; tries++) {
		if (tries)
			vroom_ctrlr_reclaim(c);
		vroom_lock(&s->lock);
		for (unsigned i = 1; i <= c->qpairs && !qid; i++)
			if (!s->qpair_owner[i])
				qid = i;
		if (qid)
			s->qpair_owner[qid] = getpid();
		vroom_unlock(&s->lock);
	}
	return qid;
}

/* Create I/O Completion Queue, then Submission Queue (Base 5.4, 5.5). */
static int create_queues(struct vroom_qpair *qp)
{
	struct vroom_ctrlr *c = qp->ctrlr;
	struct nvme_sqe cq = {
		.opcode = NVME_ADMIN_CREATE_CQ,
		.prp1 = vroom_space_iova(&c->space, qp->cq.entries),
		.cdw10 = (qp->cq.size - 1) << NVME_CREATE_QSIZE_SHIFT | qp->qid,
		.cdw11 = NVME_CREATE_PC,
	};
	struct nvme_sqe sq = {
		.opcode = NVME_ADMIN_CREATE_SQ,
		.prp1 = vroom_space_iova(&c->space, qp->sq.entries),
		.cdw10 = (qp->sq.size - 1) << NVME_CREATE_QSIZE_SHIFT | qp->qid,
		.cdw11 = (uint32_t)qp->qid << NVME_CREATE_HIGH16_SHIFT | NVME_CREATE_PC,
	};
	struct nvme_sqe undo = { .opcode = NVME_ADMIN_DELETE_CQ, .cdw10 = qp->qid };
	int ret;

	/* Queue pair N has vector N; the admin queue, which is polled, has the first. */
	if (qp->cold->eventfd >= 0)
		cq.cdw11 |= (uint32_t)qp->qid << NVME_CREATE_HIGH16_SHIFT | NVME_CREATE_IEN;
	ret = vroom_admin(c, &cq, NULL, 0, NULL);
	if (ret)
		return ret;
	ret = vroom_admin(c, &sq, NULL, 0, NULL);
	if (ret)
		vroom_admin(c, &undo, NULL, 0, &(struct nvme_cqe){ 0 });
	return ret;
}

/* Memory for a queue of BYTES that is contiguous for the controller: within one huge page. */
static void *alloc_queue(struct vroom_ctrlr *c, size_t bytes)
{
	size_t align = c->page_size;
	void *mem;

	while (align < bytes && align < VROOM_HUGE_PAGE)
		align *= 2;
	mem = vroom_dma_alloc(c, bytes, align);
	if (mem) /* phase tags start at 0 (Base 3.3.3.2) */
		memset(mem, 0, bytes);
	return mem;
}

static int allocate(struct vroom_qpair *qp)
{
	struct vroom_ctrlr *c = qp->ctrlr;

	qp->slots = aligned_alloc(64, vroom_round_up(qp->depth * sizeof(*qp->slots), 64));
	qp->cold->slots = calloc(qp->depth, sizeof(*qp->cold->slots));
	qp->sq.entries = alloc_queue(c, qp->sq.size * sizeof(struct nvme_sqe));
	qp->cq.entries = alloc_queue(c, qp->cq.size * sizeof(struct nvme_cqe));
	if (!qp->slots || !qp->cold->slots || !qp->sq.entries || !qp->cq.entries)
		return vroom_fail_on(c->name, ENOMEM, "no memory for a queue pair of depth %u",
				     qp->depth);
	memset(qp->slots, 0, qp->depth * sizeof(*qp->slots));
	for (uint32_t i = 0; i < qp->depth; i++)
		qp->slots[i].next_free = i + 1 < qp->depth ? i + 1 : VROOM_NO_SLOT;
	return 0;
}

static int set_doorbells(struct vroom_qpair *qp)
{
	unsigned dstrd = (unsigned)NVME_GET(qp->ctrlr->cap, NVME_CAP_DSTRD);
	struct vroom_qpair_cold *cold = qp->cold;
	struct vroom_ctrlr *c = qp->ctrlr;
	bool traps = vroom_ctrlr_traps(c);

	if (vroom_doorbell_init(&qp->sq.doorbell, &cold->sq_kick, c->transport, qp->qid, false,
				dstrd, traps) ||
	    vroom_doorbell_init(&qp->cq.doorbell, &cold->cq_kick, c->transport, qp->qid, true,
				dstrd, traps))
		return vroom_fail_on(c->name, ENOTSUP,
				     "the doorbells of queue %u are beyond BAR0 (CAP.DSTRD is %u)",
				     qp->qid, dstrd);
	if (traps) {
		cold->sq_kick.holdoff = &cold->holdoff;
		cold->holdoff.sq = &qp->sq;
		cold->holdoff.cq = &qp->cq;
	}
	return 0;
}

/* DELETED: the controller has let go of the queues; else their memory stays taken. */
static void release(struct vroom_qpair *qp, bool deleted)
{
	struct vroom_ctrlr *c = qp->ctrlr;

	if (deleted && qp->slots && qp->cold->slots)
		vroom_request_free_all(qp);
	if (deleted) {
		vroom_dma_free(c, qp->sq.entries);
		vroom_dma_free(c, qp->cq.entries);
	}
	free(qp->slots);
	free(qp->cold->slots);
	free(qp->cold);
	free(qp);
}

/* Says, once for all jobs on the controller, that this one runs far from it. */
static void check_numa_node(const struct vroom_ctrlr *c)
{
	int device = c->transport->numa_node;
	unsigned cpu, node;

	if (device < 0 || getcpu(&cpu, &node) != 0 || node == (unsigned)device ||
	    __atomic_exchange_n(&c->shared->hinted, 1, __ATOMIC_RELAXED))
		return;
	vroom_notice(c,
		     "the device is on NUMA node %d, this job runs on node %u and will be slower; "
		     "keep it near: numa_cpu_nodes=%d in fio, or numactl -N %d",
		     device, node, device, device);
}

/* Sizes of both queues. A queue of n entries is full with n - 1 (Base 3.3.1.5). */
static void set_sizes(struct vroom_qpair *qp, unsigned depth)
{
	const struct vroom_ctrlr *c = qp->ctrlr;
	unsigned entries = (unsigned)NVME_GET(c->cap, NVME_CAP_MQES) + 1;

	/* Physical memory is contiguous by huge page only. */
	if (c->transport->pool)
		entries = VROOM_MIN(entries, VROOM_HUGE_PAGE / sizeof(struct nvme_sqe));
	qp->depth = VROOM_MIN(VROOM_MAX(depth, 1u), entries - 1);
	qp->sq.size = qp->depth + 1;
	/* Twice as large, so that its doorbell is rung seldom. */
	qp->cq.size = VROOM_MIN(VROOM_MAX(2 * qp->sq.size, 64u), entries);
	qp->cq.slack = qp->cq.left = (int32_t)(qp->cq.size - 1 - qp->depth);
	qp->cq.phase = NVME_CQE_PHASE;
}

static struct vroom_qpair *new_qpair(struct vroom_ctrlr *c, unsigned depth)
{
	struct vroom_qpair *qp = aligned_alloc(64, vroom_round_up(sizeof(*qp), 64));

	if (!qp)
		return NULL;
	memset(qp, 0, sizeof(*qp));
	qp->cold = calloc(1, sizeof(*qp->cold));
	if (!qp->cold) {
		free(qp);
		return NULL;
	}
	qp->ctrlr = c;
	qp->cold->eventfd = -1;
	qp->page_mask = c->page_size - 1;
	/* A window that no address is in, until there is one. */
	qp->window =
		(struct vroom_dma_window){ .base = UINTPTR_MAX / 2, .bytes = 2 * c->page_size };
	set_sizes(qp, depth);
	return qp;
}

int vroom_qpair_create(struct vroom_ctrlr *c, unsigned depth, struct vroom_qpair **out)
{
	struct vroom_qpair *qp = new_qpair(c, depth);
	struct vroom_dma_window w;
	int ret;

	*out = NULL;
	if (!qp)
		return vroom_fail_on(c->name, ENOMEM, "out of memory");
	check_numa_node(c);
	qp->qid = (uint16_t)take_qid(c);
	if (!qp->qid) {
		ret = vroom_fail_on(
			c->name, ENOSPC,
			"all %u I/O queue pairs of the controller are in use; run fewer jobs on it",
			c->qpairs);
		goto out_release;
	}
	ret = c->opts.interrupts ? vroom_qpair_connect_interrupt(qp) : 0;
	if (!ret)
		ret = allocate(qp);
	if (!ret)
		ret = set_doorbells(qp);
	if (ret)
		goto out_qid;
	vroom_watchdog_init(qp);
	if (!vroom_space_find(&c->space, qp->sq.entries, &w) && w.bytes >= 2 * c->page_size)
		qp->window = w;
	ret = create_queues(qp);
	if (ret)
		goto out_qid;
	*out = qp;
	return 0;

out_qid:
	vroom_qpair_disconnect_interrupt(qp);
	__atomic_store_n(&c->shared->qpair_owner[qp->qid], 0, __ATOMIC_RELEASE);
out_release:
	release(qp, !vroom_ctrlr_failed(c));
	return ret;
}

void vroom_qpair_destroy(struct vroom_qpair *qp)
{
	struct vroom_ctrlr *c;
	int ret;

	if (!qp)
		return;
	c = qp->ctrlr;
	vroom_lock(&c->shared->lock);
	ret = delete_queue_locked(c, NVME_ADMIN_DELETE_SQ, qp->qid);
	if (!ret)
		ret = delete_queue_locked(c, NVME_ADMIN_DELETE_CQ, qp->qid);
	if (!ret)
		c->shared->qpair_owner[qp->qid] = 0;
	vroom_unlock(&c->shared->lock);
	vroom_qpair_disconnect_interrupt(qp);
	/* Memory that a failed controller may write to is kept back by the pool. */
	release(qp, !ret || vroom_space_suspect(&c->space));
}
