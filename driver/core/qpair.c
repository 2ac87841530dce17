/* SPDX-License-Identifier: BSD-3-Clause */
/* Creation and deletion of I/O queue pairs. */
#include "core/core.h"

#include <sched.h>

static int delete_queue_locked(struct vroom_ctrlr *c, uint8_t opcode, unsigned qid)
{
	struct nvme_sqe sqe = { .opcode = opcode, .cdw10 = qid };

	return vroom_admin_locked(c, &sqe, NULL, 0, NULL);
}

static void delete_dead(struct vroom_ctrlr *c)
{
	pid_t *owners = c->shared->qpair_owner;

	vroom_lock(&c->shared->lock);
	for (unsigned qid = 1; qid <= c->qpairs; qid++) {
		if (!owners[qid] || owners[qid] == getpid() || vroom_process_alive(owners[qid]))
			continue;
		/* It may have died before it had created both. */
		delete_queue_locked(c, NVME_ADMIN_DELETE_SQ, qid);
		delete_queue_locked(c, NVME_ADMIN_DELETE_CQ, qid);
		if (!vroom_ctrlr_failed(c))
			owners[qid] = 0;
	}
	vroom_unlock(&c->shared->lock);
}

/*
 * The order matters: as long as a queue pair exists its controller may write to what its owner had,
 * in the pool of any controller.
 */
void vroom_ctrlr_reclaim(struct vroom_ctrlr *c)
{
	struct vroom_dma_pool *pool = &c->pool;

	for (unsigned i = 0; i < pool->spaces; i++)
		if (!vroom_space_suspect(pool->space[i]))
			delete_dead(vroom_ctrlr_of(pool->space[i]));
	/* What a dead opener had is in use by all: the admin queue, the first regions. */
	if (!vroom_process_alive(c->opener))
		return;
	vroom_pool_free_dead(pool);
	for (unsigned i = 0; i < pool->spaces; i++)
		vroom_space_unmap_dead(pool->space[i]);
}

/* A free queue identifier, now owned by this process; 0 when all are taken. */
static unsigned take_qid(struct vroom_ctrlr *c)
{
	pid_t *owners = c->shared->qpair_owner;
	unsigned qid = 1;

	vroom_lock(&c->shared->lock);
	while (qid <= c->qpairs && owners[qid])
		qid++;
	if (qid > c->qpairs)
		qid = 0;
	else
		owners[qid] = getpid();
	vroom_unlock(&c->shared->lock);
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
	struct nvme_cqe ignored;
	int ret;

	/* Queue pair N has vector N; the admin queue, which is polled, has the first. */
	if (qp->cold->eventfd >= 0)
		cq.cdw11 |= (uint32_t)qp->qid << NVME_CREATE_HIGH16_SHIFT | NVME_CREATE_IEN;
	ret = vroom_admin(c, &cq, NULL, 0, NULL);
	if (ret)
		return ret;
	ret = vroom_admin(c, &sq, NULL, 0, NULL);
	if (ret)
		vroom_admin(c, &undo, NULL, 0, &ignored);
	return ret;
}

bool vroom_ctrlr_traps(const struct vroom_ctrlr *c)
{
	return c->transport->on_bus && (c->id.oacs & NVME_OACS_DOORBELL_BUFFER);
}

static int allocate(struct vroom_qpair *qp)
{
	struct vroom_qpair_cold *cold = qp->cold;
	bool traps = vroom_ctrlr_traps(qp->ctrlr);
	int ret = vroom_queues_init(qp->ctrlr, qp->qid, &qp->sq, &qp->cq, cold->kicks, traps);

	if (ret)
		return ret;
	qp->slots = aligned_alloc(64, vroom_round_up(qp->depth * sizeof(*qp->slots), 64));
	cold->slots = calloc(qp->depth, sizeof(*cold->slots));
	if (!qp->slots || !cold->slots)
		return vroom_fail_on(qp->ctrlr->name, ENOMEM, "out of memory");
	memset(qp->slots, 0, qp->depth * sizeof(*qp->slots));
	for (uint32_t i = 0; i < qp->depth; i++)
		qp->slots[i].next_free = i + 1 < qp->depth ? i + 1 : VROOM_NO_SLOT;
	if (traps) {
		cold->kicks[0].holdoff = &cold->holdoff;
		cold->holdoff.sq = &qp->sq;
		cold->holdoff.cq = &qp->cq;
	}
	return 0;
}

/* DELETED: the controller has let go of the queues; else their memory stays taken. */
static void release(struct vroom_qpair *qp, bool deleted)
{
	struct vroom_ctrlr *c = qp->ctrlr;

	if (deleted) {
		if (qp->slots && qp->cold->slots)
			vroom_request_free_all(qp);
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
		     "on NUMA node %d, but this job runs on node %u and will be slower; keep it "
		     "near: numa_cpu_nodes=%d in fio, or numactl -N %d",
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
	struct vroom_qpair_cold *cold = calloc(1, sizeof(*cold));

	if (!qp || !cold) {
		free(qp);
		free(cold);
		return NULL;
	}
	memset(qp, 0, sizeof(*qp));
	qp->ctrlr = c;
	qp->cold = cold;
	cold->eventfd = -1;
	qp->page_mask = c->page_size - 1;
	qp->range.base = VROOM_NOWHERE;
	qp->range.bytes = 2 * c->page_size;
	set_sizes(qp, depth);
	return qp;
}

static int set_up(struct vroom_qpair *qp)
{
	struct vroom_ctrlr *c = qp->ctrlr;
	struct vroom_dma_range w;
	int ret = c->opts.interrupts ? vroom_qpair_connect_interrupt(qp) : 0;

	if (!ret)
		ret = allocate(qp);
	if (ret)
		return ret;
	vroom_watchdog_init(qp);
	if (!vroom_space_find(&c->space, qp->sq.entries, &w) && w.bytes >= 2 * c->page_size)
		vroom_qpair_set_range(qp, &w);
	return create_queues(qp);
}

int vroom_qpair_create(struct vroom_ctrlr *c, unsigned depth, struct vroom_qpair **out)
{
	struct vroom_qpair *qp = new_qpair(c, depth);
	int ret;

	*out = NULL;
	if (!qp)
		return vroom_fail_on(c->name, ENOMEM, "out of memory");
	check_numa_node(c);
	qp->qid = (uint16_t)take_qid(c);
	if (!qp->qid) {
		vroom_ctrlr_reclaim(c);
		qp->qid = (uint16_t)take_qid(c);
	}
	ret = qp->qid ? set_up(qp)
		      : vroom_fail_on(c->name, ENOSPC,
				      "all %u I/O queue pairs are in use; run fewer jobs on it",
				      c->qpairs);
	if (!ret) {
		vroom_lock(&c->shared->lock);
		qp->cold->next = c->first_qpair;
		c->first_qpair = qp;
		vroom_unlock(&c->shared->lock);
		*out = qp;
		return 0;
	}
	vroom_qpair_disconnect_interrupt(qp);
	if (qp->qid)
		__atomic_store_n(&c->shared->qpair_owner[qp->qid], 0, __ATOMIC_RELEASE);
	release(qp, !vroom_ctrlr_failed(c));
	return ret;
}

void vroom_qpair_destroy(struct vroom_qpair *qp)
{
	struct vroom_qpair **at;
	struct vroom_ctrlr *c;
	int ret;

	if (!qp)
		return;
	c = qp->ctrlr;
	at = &c->first_qpair;
	vroom_lock(&c->shared->lock);
	ret = delete_queue_locked(c, NVME_ADMIN_DELETE_SQ, qp->qid);
	if (!ret)
		ret = delete_queue_locked(c, NVME_ADMIN_DELETE_CQ, qp->qid);
	if (!ret)
		c->shared->qpair_owner[qp->qid] = 0;
	while (*at && *at != qp)
		at = &(*at)->cold->next;
	if (*at)
		*at = qp->cold->next;
	vroom_unlock(&c->shared->lock);
	vroom_qpair_disconnect_interrupt(qp);
	/* Memory that a failed controller may write to is kept back by the pool. */
	release(qp, !ret || vroom_space_suspect(&c->space));
}
