/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * I/O queue pairs: creation and deletion, and the parts of the I/O path that need more than
 * vroom_qpair.h: PRP lists, buffers outside DMA memory, requests larger than a command may
 * be, deadlines and the end of a controller.
 */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "core/internal.h"

/* A deadline is this many ticks of the queue pair's epoch. */
#define DEADLINE_TICKS	    8
#define ALIVE_INTERVAL_MS   100
#define CSTS_INTERVAL_MS    1000
#define YIELDS_PER_LOOK	    8
#define CALLS_PER_YIELD_MAX 64
#define LOOK_MS		    4
#define CALLS_PER_LOOK_MAX  4096
/* Queue pairs that vroom_wait() takes. */
#define WAIT_MAX 64

/* A request that takes several commands. */
struct vroom_split {
	struct vroom_io io;
	uint64_t submitted; /* blocks */
	unsigned outstanding;
	uint16_t status; /* the first that was not success */
};

/* Data on its way between a buffer that the controller cannot reach and DMA memory. */
struct vroom_bounce {
	void *mem;
	size_t capacity;
	void *user; /* where data goes at completion, or NULL */
	size_t bytes;
};

struct vroom_qpair_cold {
	struct vroom_bounce *bounce; /* by command identifier */
	size_t *list_pages;	     /* by command identifier */
	/* vroom_poll_idle(): how often it was called, and how often it does what */
	uint64_t idle_calls, yields;
	unsigned calls_per_yield, calls_per_look, calls_since_look;
	uint64_t last_look;
	long switches; /* involuntary, of this thread, at the last look */
	uint64_t tick_ms;
	uint64_t next_tick;
	uint64_t next_alive;
	uint64_t next_csts;
	struct vroom_pacing pacing; /* of doorbells that trap */
	int eventfd;		    /* signalled by the completion queue's interrupt; -1: none */
};

/* --- the end of a queue pair ------------------------------------------------------------ */

static const char *opcode_name(uint8_t opcode)
{
	switch (opcode) {
	case NVME_CMD_FLUSH: return "flush";
	case NVME_CMD_WRITE: return "write";
	case NVME_CMD_READ: return "read";
	case NVME_CMD_COMPARE: return "compare";
	case NVME_CMD_WRITE_ZEROES: return "write zeroes";
	case NVME_CMD_DSM: return "dataset management";
	case NVME_CMD_VERIFY: return "verify";
	default: return "command";
	}
}

/* The longest outstanding command, in words. */
static void describe_oldest(const struct vroom_qpair *qp, char *text, size_t size)
{
	const struct vroom_slot *oldest = NULL;

	for (uint32_t cid = 0; cid < qp->depth; cid++) {
		const struct vroom_slot *slot = &qp->slots[cid];

		if (slot->busy && (!oldest || (uint8_t)(qp->epoch - slot->epoch) >
						      (uint8_t)(qp->epoch - oldest->epoch)))
			oldest = slot;
	}
	if (!oldest)
		snprintf(text, size, "queue %u", qp->qid);
	else if (oldest->nlb)
		snprintf(text, size, "%s of %u blocks at LBA %llu (queue %u, command %u)",
			 opcode_name(oldest->opcode), oldest->nlb, (unsigned long long)oldest->slba,
			 qp->qid, (unsigned)(oldest - qp->slots));
	else
		snprintf(text, size, "%s (queue %u, command %u)", opcode_name(oldest->opcode),
			 qp->qid, (unsigned)(oldest - qp->slots));
}

/*
 * Ends QP with ERR, for good. Recovery (Abort, then a controller reset) would start here:
 * the outstanding commands are all in qp->slots.
 */
static int fail_qpair(struct vroom_qpair *qp, int err)
{
	char command[160];

	describe_oldest(qp, command, sizeof(command));
	vroom_fail(-err, "%s: %s: no completion: %s", qp->ctrlr->address.text, command,
		   vroom_ctrlr_reason(qp->ctrlr));
	qp->error = err;
	return err;
}

int vroom_bad_completion(struct vroom_qpair *qp, uint16_t cid)
{
	qp->error = vroom_fail(EPROTO,
			       "%s: queue %u: the controller completed command %u, which "
			       "is not outstanding; it is broken or another program drives it too",
			       qp->ctrlr->address.text, qp->qid, cid);
	return vroom_ctrlr_mark_failed(qp->ctrlr, qp->error);
}

/*
 * Offers the processor to somebody who may need it more: the emulated controller, or another
 * job. Where jobs are scheduled in groups (a session each, as fio's jobs are), yielding
 * reaches only the own group; so when others do compete for this processor, which shows
 * in involuntary switches, sleep for as short as the timer allows. With a processor to
 * itself a thread never sleeps, and yields ever more seldom.
 */
static void give_way(struct vroom_qpair_cold *cold)
{
	struct timespec shortest = { .tv_nsec = 1000 };
	struct rusage usage;

	if (++cold->idle_calls % cold->calls_per_yield)
		return;
	sched_yield();
	if (++cold->yields % YIELDS_PER_LOOK)
		return;
	getrusage(RUSAGE_THREAD, &usage);
	if (usage.ru_nivcsw != cold->switches) {
		clock_nanosleep(CLOCK_MONOTONIC, 0, &shortest, NULL);
		cold->calls_per_yield = 1;
	} else if (cold->calls_per_yield < CALLS_PER_YIELD_MAX) {
		cold->calls_per_yield *= 2;
	}
	cold->switches = usage.ru_nivcsw;
}

/* Deadlines, and whether the controller is still there: 0, or QP's end. */
static int look_after(struct vroom_qpair *qp, uint64_t now)
{
	struct vroom_qpair_cold *cold = qp->cold;
	struct vroom_ctrlr *c = qp->ctrlr;
	int ret = 0;

	if (qp->free_count == qp->depth)
		return 0;
	if (now >= cold->next_tick) {
		cold->next_tick = now + cold->tick_ms;
		qp->epoch++;
		for (uint32_t cid = 0; cid < qp->depth && !ret; cid++)
			if (qp->slots[cid].busy &&
			    (uint8_t)(qp->epoch - qp->slots[cid].epoch) > DEADLINE_TICKS)
				ret = vroom_fail(ETIMEDOUT,
						 "the deadline of %u ms has passed; the "
						 "controller is stuck",
						 c->opts.io_timeout_ms);
		if (ret)
			vroom_ctrlr_mark_failed(c, ret);
	}
	if (!ret)
		ret = vroom_ctrlr_failed(c);
	if (!ret && now >= cold->next_csts) {
		cold->next_csts = now + CSTS_INTERVAL_MS;
		ret = vroom_ctrlr_health(c);
	} else if (!ret && now >= cold->next_alive) {
		cold->next_alive = now + ALIVE_INTERVAL_MS;
		ret = c->transport->ops->alive(c->transport);
		if (ret)
			vroom_ctrlr_mark_failed(c, ret);
	}
	return ret ? fail_qpair(qp, ret) : 0;
}

/* Called every VROOM_IDLE_POLLS polls, IDLE where the last one found nothing. */
int vroom_poll_idle(struct vroom_qpair *qp, bool idle)
{
	struct vroom_qpair_cold *cold = qp->cold;
	uint64_t now;

	if (qp->error)
		return qp->error;
	if (idle)
		give_way(cold);
	if (++cold->calls_since_look < cold->calls_per_look)
		return 0;
	/* Every LOOK_MS or so: to read the clock takes microseconds where it is a device. */
	now = vroom_now_ms();
	if (now < cold->last_look + LOOK_MS && cold->calls_per_look < CALLS_PER_LOOK_MAX)
		cold->calls_per_look *= 2;
	else if (now > cold->last_look + 2 * LOOK_MS && cold->calls_per_look > 1)
		cold->calls_per_look /= 2;
	cold->last_look = now;
	cold->calls_since_look = 0;
	return look_after(qp, now);
}

/* Is there a completion to reap? */
static bool has_completion(const struct vroom_qpair *qp)
{
	return (__atomic_load_n(&qp->cq[qp->cq_head].status, __ATOMIC_ACQUIRE) & 1) == qp->phase;
}

/*
 * Hands over what was submitted, and all that was reaped: a controller may hold an interrupt
 * back while it believes that the last one is still being served.
 */
static void prepare_to_sleep(struct vroom_qpair *qp)
{
	vroom_ring(qp);
	if (!qp->cq_unrung)
		return;
	qp->cq_unrung = 0;
	vroom_doorbell(qp, qp->cq_doorbell, qp->cq_head);
}

int vroom_wait(struct vroom_qpair *const *qps, unsigned count, unsigned timeout_ms)
{
	uint64_t end = vroom_now_ms() + timeout_ms;
	struct pollfd fds[WAIT_MAX];
	eventfd_t value;

	if (count > WAIT_MAX)
		return vroom_fail(EINVAL, "vroom_wait: at most %d queue pairs at once", WAIT_MAX);
	for (unsigned i = 0; i < count; i++) {
		if (qps[i]->cold->eventfd < 0)
			return vroom_fail(EINVAL, "%s: was opened without interrupts",
					  qps[i]->ctrlr->address.text);
		fds[i] = (struct pollfd){ .fd = qps[i]->cold->eventfd, .events = POLLIN };
		prepare_to_sleep(qps[i]);
	}
	for (;;) {
		uint64_t now = vroom_now_ms();
		int ret;

		for (unsigned i = 0; i < count; i++) {
			eventfd_read(fds[i].fd, &value);
			if (has_completion(qps[i]))
				return 1;
		}
		if (now >= end)
			return 0;
		/* Wakes now and then to look at deadlines and at the controller. */
		ret = poll(fds, count, (int)VROOM_MIN(end - now, (uint64_t)ALIVE_INTERVAL_MS));
		for (unsigned i = 0; i < count && ret == 0; i++)
			ret = look_after(qps[i], vroom_now_ms());
		if (ret < 0 && errno != EINTR)
			return ret;
	}
}

void vroom_doorbell_slow(struct vroom_qpair *qp, volatile uint32_t *doorbell, uint32_t value)
{
	if (doorbell == qp->sq_doorbell && vroom_ctrlr_traps(qp->ctrlr))
		vroom_pacing_ring(&qp->cold->pacing, qp->ctrlr, doorbell, value);
	else
		vroom_ctrlr_ring_slow(qp->ctrlr, doorbell, value);
}

/* --- submission -------------------------------------------------------------------------- */

/* DMA memory of at least BYTES for command CID, kept by it until the queue pair goes. */
static struct vroom_bounce *get_bounce(struct vroom_qpair *qp, uint16_t cid, size_t bytes)
{
	struct vroom_bounce *b = &qp->cold->bounce[cid];

	if (b->capacity >= bytes)
		return b;
	vroom_dma_free(qp->ctrlr, b->mem);
	b->capacity = 0;
	b->mem = vroom_dma_alloc(qp->ctrlr, bytes, 0);
	if (!b->mem)
		return NULL;
	b->capacity = bytes;
	return b;
}

static int get_list(struct vroom_qpair *qp, uint16_t cid, unsigned pages)
{
	struct vroom_slot *slot = &qp->slots[cid];

	if (qp->cold->list_pages[cid] >= pages)
		return 0;
	vroom_dma_free(qp->ctrlr, slot->list);
	qp->cold->list_pages[cid] = 0;
	slot->list = vroom_dma_alloc(qp->ctrlr, pages * qp->page_size, qp->page_size);
	if (!slot->list)
		return -ENOMEM;
	qp->cold->list_pages[cid] = pages;
	return 0;
}

/* Posts one command whose data may lie anywhere; a free slot is there. */
static int post_command(struct vroom_qpair *qp, const struct vroom_io *io,
			struct vroom_split *split)
{
	uint16_t cid = qp->free_slots[qp->free_count - 1]; /* the one vroom_post() will take */
	struct vroom_ctrlr *c = qp->ctrlr;
	struct vroom_bounce *bounce = NULL;
	uint64_t prp1 = 0, prp2 = 0;
	struct vroom_dma_window w;
	struct vroom_slot *slot;
	void *data = io->buf;

	if (io->bytes) {
		unsigned pages;

		if (vroom_dma_translate(c, data, &w) || ((uintptr_t)data & 3) ||
		    (uintptr_t)data - w.base + io->bytes > w.bytes) {
			bounce = get_bounce(qp, cid, io->bytes);
			if (!bounce)
				return -ENOMEM;
			bounce->bytes = io->bytes;
			bounce->user = io->to_host ? data : NULL;
			data = bounce->mem;
			if (!io->to_host)
				memcpy(data, io->buf, io->bytes);
		} else {
			qp->dma = w;
		}
		pages = vroom_prp_list_pages(c, vroom_dma_iova(c, data) & (c->page_size - 1),
					     io->bytes);
		if (pages && get_list(qp, cid, pages))
			return -ENOMEM;
		vroom_prp_build(c, data, io->bytes, qp->slots[cid].list, &prp1, &prp2);
	}
	slot = vroom_post(qp, io, prp1, prp2);
	slot->split = split;
	slot->bounce = bounce;
	slot->slow = split || bounce;
	return 0;
}

/* Blocks that one command of the kind of IO can name or move. */
static uint64_t blocks_per_command(const struct vroom_qpair *qp, const struct vroom_io *io)
{
	if (!io->bytes)
		return NVME_RW_MAX_NLB;
	return VROOM_MIN(qp->max_transfer >> io->lba_shift, (uint64_t)NVME_RW_MAX_NLB);
}

/*
 * Submits parts of the split request, as many as there are slots for; the completion of a
 * part calls it again. Where memory runs out it gives up the rest: the request then ends
 * with an error when the parts under way have completed.
 */
static void continue_split(struct vroom_qpair *qp)
{
	struct vroom_split *split = qp->splitting;

	while (split->submitted < split->io.nlb && qp->free_count) {
		uint64_t nlb = VROOM_MIN(split->io.nlb - split->submitted,
					 blocks_per_command(qp, &split->io));
		uint64_t slba = ((uint64_t)split->io.sqe.cdw11 << 32 | split->io.sqe.cdw10) +
				split->submitted;
		struct vroom_io part = split->io;

		part.sqe.cdw10 = (uint32_t)slba;
		part.sqe.cdw11 = (uint32_t)(slba >> 32);
		part.sqe.cdw12 = (part.sqe.cdw12 & ~NVME_RW_NLB_MASK) | (uint32_t)(nlb - 1);
		part.nlb = nlb;
		if (part.bytes) {
			part.buf = (char *)part.buf + (split->submitted << part.lba_shift);
			part.bytes = nlb << part.lba_shift;
		}
		if (post_command(qp, &part, split)) {
			split->submitted = split->io.nlb;
			split->status = NVME_SC_INTERNAL_ERROR << NVME_STATUS_SC_SHIFT;
			break;
		}
		split->outstanding++;
		split->submitted += nlb;
	}
	if (split->submitted == split->io.nlb)
		qp->splitting = NULL;
}

int vroom_submit_slow(struct vroom_qpair *qp, const struct vroom_io *io)
{
	struct vroom_split *split;
	int ret;

	if (io->lba_shift && io->nlb > blocks_per_command(qp, io)) {
		split = calloc(1, sizeof(*split));
		if (!split)
			return vroom_fail(ENOMEM, "%s: out of memory", qp->ctrlr->address.text);
		split->io = *io;
		qp->splitting = split; /* vroom_submit() lets nobody in while there is one */
		continue_split(qp);
		if (!split->outstanding) {
			free(split);
			return vroom_fail(ENOMEM, "%s: no DMA memory for a transfer of %llu bytes",
					  qp->ctrlr->address.text, (unsigned long long)io->bytes);
		}
		return 0;
	}
	if (io->bytes > qp->max_transfer)
		return vroom_fail(EINVAL,
				  "%s: a command of %llu bytes is larger than the "
				  "controller's limit of %llu and cannot be split",
				  qp->ctrlr->address.text, (unsigned long long)io->bytes,
				  (unsigned long long)qp->max_transfer);
	ret = post_command(qp, io, NULL);
	if (ret)
		return vroom_fail(-ret, "%s: no DMA memory for a transfer of %llu bytes",
				  qp->ctrlr->address.text, (unsigned long long)io->bytes);
	return 0;
}

/* --- completion --------------------------------------------------------------------------- */

int vroom_complete_slow(struct vroom_qpair *qp, struct vroom_slot *slot, uint16_t status,
			struct vroom_completion *out)
{
	struct vroom_split *split = slot->split;
	int finished = 1;

	if (slot->bounce && slot->bounce->user && !status)
		memcpy(slot->bounce->user, slot->bounce->mem, slot->bounce->bytes);
	slot->split = NULL;
	slot->bounce = NULL;
	slot->slow = false;
	slot->busy = false;
	qp->free_slots[qp->free_count++] = (uint16_t)(slot - qp->slots);
	if (split) {
		split->outstanding--;
		if (status && !split->status)
			split->status = status;
	}
	if (qp->splitting) {
		continue_split(qp);
		vroom_ring(qp);
	}
	if (split) {
		finished = !split->outstanding && split->submitted == split->io.nlb;
		out->status = split->status;
		if (finished)
			free(split);
	}
	return finished;
}

/* --- creation and deletion ------------------------------------------------------------------ */

static int delete_queue_locked(struct vroom_ctrlr *c, uint8_t opcode, unsigned qid)
{
	struct nvme_sqe sqe = { .opcode = opcode, .cdw10 = qid };

	return vroom_admin_locked(c, &sqe, NULL, 0, false, NULL);
}

void vroom_qpair_reclaim_locked(struct vroom_ctrlr *c)
{
	struct vroom_shared *s = c->shared;

	for (unsigned qid = 1; qid <= c->qpairs; qid++) {
		pid_t owner = s->qpair_owner[qid];

		if (!owner || owner == c->opener || vroom_process_alive(owner))
			continue;
		/* Deleted first: until then the controller may write to its memory. */
		delete_queue_locked(c, NVME_ADMIN_DELETE_SQ, qid);
		delete_queue_locked(c, NVME_ADMIN_DELETE_CQ, qid);
		s->qpair_owner[qid] = 0;
	}
	for (uint32_t i = 0; i < s->extents;) {
		pid_t owner = s->extent[i].owner;

		if (owner == c->opener || vroom_process_alive(owner)) {
			i++;
			continue;
		}
		vroom_dma_reclaim_locked(c, owner);
		i = 0;
	}
}

/* A free queue identifier, now owned by this process; 0 when all are taken. */
static unsigned take_qid(struct vroom_ctrlr *c)
{
	struct vroom_shared *s = c->shared;
	unsigned qid = 0;

	vroom_lock(&s->lock);
	for (int tries = 0; tries < 2 && !qid; tries++) {
		for (unsigned i = 1; i <= c->qpairs && !qid; i++)
			if (!s->qpair_owner[i])
				qid = i;
		if (!qid)
			vroom_qpair_reclaim_locked(c);
	}
	if (qid)
		s->qpair_owner[qid] = getpid();
	vroom_unlock(&s->lock);
	return qid;
}

/* Create I/O Completion Queue, then Submission Queue (Base 5.4, 5.5). */
static int create_queues(struct vroom_qpair *qp)
{
	struct vroom_ctrlr *c = qp->ctrlr;
	struct nvme_sqe cq = {
		.opcode = NVME_ADMIN_CREATE_CQ,
		.prp1 = vroom_dma_iova(c, qp->cq),
		.cdw10 = (qp->cq_size - 1) << NVME_CREATE_QSIZE_SHIFT | qp->qid,
		.cdw11 = NVME_CREATE_PC,
	};
	struct nvme_sqe sq = {
		.opcode = NVME_ADMIN_CREATE_SQ,
		.prp1 = vroom_dma_iova(c, qp->sq),
		.cdw10 = (qp->sq_size - 1) << NVME_CREATE_QSIZE_SHIFT | qp->qid,
		.cdw11 = (uint32_t)qp->qid << NVME_CREATE_HIGH16_SHIFT | NVME_CREATE_PC,
	};
	struct nvme_sqe undo = { .opcode = NVME_ADMIN_DELETE_CQ, .cdw10 = qp->qid };
	int ret;

	/* Queue pair N has vector N; the admin queue, which is polled, has the first. */
	if (qp->cold->eventfd >= 0)
		cq.cdw11 |= (uint32_t)qp->qid << NVME_CREATE_HIGH16_SHIFT | NVME_CREATE_IEN;
	ret = vroom_admin(c, &cq, NULL, 0, false, NULL);
	if (ret)
		return ret;
	ret = vroom_admin(c, &sq, NULL, 0, false, NULL);
	if (ret)
		vroom_admin(c, &undo, NULL, 0, false, &(struct nvme_cqe){ 0 });
	return ret;
}

/* Alignment by which a queue of BYTES lies within one granule: it must be contiguous. */
static size_t queue_align(const struct vroom_ctrlr *c, size_t bytes)
{
	size_t align = c->page_size;

	while (align < bytes)
		align *= 2;
	return align;
}

/* An eventfd that the queue pair's own MSI-X vector signals. */
static int connect_interrupt(struct vroom_qpair *qp)
{
	struct vroom_transport *t = qp->ctrlr->transport;

	if (qp->qid >= t->vectors)
		return vroom_fail(
			ENOSPC,
			"%s: the controller has %u MSI-X vectors, one of them for the admin "
			"queue; use wait=poll, or fewer jobs",
			qp->ctrlr->address.text, t->vectors);
	qp->cold->eventfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (qp->cold->eventfd < 0)
		return vroom_fail(errno, "%s: eventfd: %s", qp->ctrlr->address.text,
				  strerror(errno));
	return t->ops->set_irq(t, qp->qid, qp->cold->eventfd);
}

static void disconnect_interrupt(struct vroom_qpair *qp)
{
	struct vroom_transport *t = qp->ctrlr->transport;

	if (qp->cold->eventfd < 0)
		return;
	t->ops->set_irq(t, qp->qid, -1);
	close(qp->cold->eventfd);
	qp->cold->eventfd = -1;
}

static int allocate(struct vroom_qpair *qp)
{
	struct vroom_ctrlr *c = qp->ctrlr;
	size_t sq = qp->sq_size * sizeof(struct nvme_sqe),
	       cq = qp->cq_size * sizeof(struct nvme_cqe);

	qp->slots = aligned_alloc(64, qp->depth * sizeof(*qp->slots));
	qp->free_slots = calloc(qp->depth, sizeof(*qp->free_slots));
	qp->cold->bounce = calloc(qp->depth, sizeof(*qp->cold->bounce));
	qp->cold->list_pages = calloc(qp->depth, sizeof(*qp->cold->list_pages));
	qp->sq = vroom_dma_alloc(c, sq, queue_align(c, sq));
	qp->cq = vroom_dma_alloc(c, cq, queue_align(c, cq));
	if (!qp->slots || !qp->free_slots || !qp->cold->bounce || !qp->cold->list_pages ||
	    !qp->sq || !qp->cq)
		return vroom_fail(ENOMEM, "%s: no memory for a queue pair of depth %u",
				  c->address.text, qp->depth);
	memset(qp->slots, 0, qp->depth * sizeof(*qp->slots));
	memset(qp->sq, 0, sq);
	memset(qp->cq, 0, cq); /* phase tags start at 0 (Base 3.3.3.2) */
	for (uint32_t i = 0; i < qp->depth; i++)
		qp->free_slots[qp->free_count++] = (uint16_t)(qp->depth - 1 - i);
	return 0;
}

/* DELETED: the controller has let go of the queues; else their memory stays taken. */
static void release(struct vroom_qpair *qp, bool deleted)
{
	struct vroom_ctrlr *c = qp->ctrlr;

	for (uint32_t i = 0; i < qp->depth && qp->slots && qp->cold->bounce; i++) {
		struct vroom_split *split = qp->slots[i].split;

		if (split && --split->outstanding == 0)
			free(split);
		if (deleted) {
			vroom_dma_free(c, qp->cold->bounce[i].mem);
			vroom_dma_free(c, qp->slots[i].list);
		}
	}
	if (deleted) {
		vroom_dma_free(c, qp->sq);
		vroom_dma_free(c, qp->cq);
	}
	free(qp->slots);
	free(qp->free_slots);
	free(qp->cold->bounce);
	free(qp->cold->list_pages);
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

int vroom_qpair_create(struct vroom_ctrlr *c, unsigned depth, struct vroom_qpair **out)
{
	unsigned entries = (unsigned)NVME_GET(c->cap, NVME_CAP_MQES) + 1;
	struct vroom_qpair *qp = aligned_alloc(64, (sizeof(*qp) + 63) / 64 * 64);
	int ret;

	*out = NULL;
	if (!qp)
		return vroom_fail(ENOMEM, "%s: out of memory", c->address.text);
	memset(qp, 0, sizeof(*qp));
	qp->ctrlr = c;
	qp->cold = calloc(1, sizeof(*qp->cold));
	if (!qp->cold) {
		free(qp);
		return vroom_fail(ENOMEM, "%s: out of memory", c->address.text);
	}
	qp->cold->eventfd = -1;
	qp->cold->calls_per_yield = qp->cold->calls_per_look = 1;
	/* Physical memory is contiguous by huge page only. */
	if (c->transport->pool)
		entries = VROOM_MIN(entries, VROOM_GRANULE / sizeof(struct nvme_sqe));
	/* A queue of n entries is full with n - 1 (Base 3.3.1.5). */
	check_numa_node(c);
	qp->depth = VROOM_MIN(VROOM_MAX(depth, 1u), entries - 1);
	qp->sq_size = qp->depth + 1;
	qp->cq_size = VROOM_MIN(VROOM_MAX(2 * qp->sq_size, 16u), entries);
	qp->cq_slack = qp->cq_size - 1 - qp->depth;
	qp->phase = 1;
	qp->page_size = (uint32_t)c->page_size;
	qp->max_transfer = c->max_transfer;
	qp->cold->tick_ms = VROOM_MAX(c->opts.io_timeout_ms / DEADLINE_TICKS, 1u);
	qp->cold->next_tick = vroom_now_ms() + qp->cold->tick_ms;
	qp->cold->next_csts = vroom_now_ms() + CSTS_INTERVAL_MS;
	qp->qid = (uint16_t)take_qid(c);
	if (!qp->qid) {
		ret = vroom_fail(ENOSPC,
				 "%s: all %u I/O queue pairs of the controller are in use; "
				 "run fewer jobs on it",
				 c->address.text, c->qpairs);
		goto out_release;
	}
	ret = c->opts.interrupts ? connect_interrupt(qp) : 0;
	if (!ret)
		ret = allocate(qp);
	if (ret)
		goto out_qid;
	vroom_dma_translate(c, qp->sq, &qp->dma);
	ret = vroom_ctrlr_doorbell(c, qp->qid, false, &qp->sq_doorbell, &qp->sleeping);
	if (!ret)
		ret = vroom_ctrlr_doorbell(c, qp->qid, true, &qp->cq_doorbell, &qp->sleeping);
	if (!ret)
		ret = create_queues(qp);
	if (ret)
		goto out_qid;
	*out = qp;
	return 0;

out_qid:
	disconnect_interrupt(qp);
	c->shared->qpair_owner[qp->qid] = 0;
out_release:
	release(qp, true);
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
	disconnect_interrupt(qp);
	release(qp, !ret);
}
