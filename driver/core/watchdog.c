/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What polling does beside reaping: it gives way to others who need the processor, keeps deadlines,
 * and sees when a controller has gone. A poll that finds nothing reads the processor's counter, and
 * when that has gone on far enough it comes here; the clock, which is a device in some guests, is
 * read every few milliseconds, or at once when polls are far apart.
 */
#include <sched.h>
#include <sys/resource.h>

#include "core/core.h"

/* A deadline is this many ticks, so it is kept to an eighth. */
#define DEADLINE_TICKS 8
/*
 * Time goes on by at most these from one look to the next: a process that did not run looks thrice
 * before it believes a command late, for its controller may not have run either.
 */
#define TICKS_AT_ONCE	  4
#define ALIVE_INTERVAL_MS 100
#define CSTS_INTERVAL_MS  1000
/* Units of the processor's counter between two looks at nothing: a microsecond or some. */
#if defined(__x86_64__)
#define LOOK_TICKS 2048
#else
#define LOOK_TICKS 32
#endif
#define LOOKS_FAR_APART	    64 /* polls are, when so many looks would have fitted in between */
#define YIELDS_PER_LOOK	    8
#define CALLS_PER_YIELD_MAX 64
#define CLOCK_MS	    4
#define CALLS_PER_CLOCK_MAX 4096
#define RINGS_PER_CLOCK_MAX 64 /* head doorbells between two looks at a busy queue */

void vroom_watchdog_init(struct vroom_qpair *qp)
{
	struct vroom_watchdog *w = &qp->cold->watchdog;
	const struct vroom_opts *opts = &qp->ctrlr->opts;
	uint64_t now = vroom_now_ms();

	w->tick_ms = VROOM_MAX(opts->io_timeout_ms / DEADLINE_TICKS, 1u);
	w->ticks = DEADLINE_TICKS;
	w->long_ticks = (uint32_t)VROOM_MAX(
		vroom_round_up(opts->long_timeout_ms, w->tick_ms) / w->tick_ms, DEADLINE_TICKS);
	w->next_tick_ms = now + w->tick_ms;
	w->next_csts_ms = now + CSTS_INTERVAL_MS;
	w->last_clock_ms = now;
	w->calls_per_yield = w->calls_per_clock = w->rings_per_clock = 1;
	qp->deadline = w->deadline_tick + w->ticks + 1;
	qp->look_ticks = LOOK_TICKS;
	qp->rings_to_look = 1;
}

static const char *opcode_name(uint8_t opcode)
{
	static const char *const names[] = {
		[NVME_CMD_FLUSH] = "flush",
		[NVME_CMD_WRITE] = "write",
		[NVME_CMD_READ] = "read",
		[NVME_CMD_COMPARE] = "compare",
		[NVME_CMD_VERIFY] = "verify",
		[NVME_CMD_DSM] = "dataset management",
		[NVME_CMD_WRITE_ZEROES] = "write zeroes",
	};

	return opcode < VROOM_LENGTH(names) && names[opcode] ? names[opcode] : "command";
}

/* The command whose deadline is the first, or NULL when none is outstanding. */
static const struct vroom_slot *first_deadline(const struct vroom_qpair *qp)
{
	const struct vroom_slot *first = NULL;

	for (const struct vroom_slot *s = qp->slots; s < qp->slots + qp->depth; s++)
		if (s->state != VROOM_SLOT_FREE &&
		    (!first || (int32_t)(s->deadline - first->deadline) < 0))
			first = s;
	return first;
}

void vroom_qpair_end(struct vroom_qpair *qp, int err)
{
	qp->error = err;
	qp->look_ticks = 0;
	vroom_qpair_block(qp);
}

/*
 * Says "read of 8 blocks at LBA 128 (queue 1, command 3): no completion: ...". Recovery, by Abort
 * and then a controller reset, would start here: qp->slots has the commands.
 */
static int fail_qpair(struct vroom_qpair *qp, int err)
{
	const struct vroom_slot *slot = first_deadline(qp);
	const char *name = qp->ctrlr->name, *reason = vroom_ctrlr_reason(qp->ctrlr);
	char blocks[64] = "";

	if (qp->error)
		return qp->error;
	if (slot && vroom_slot_blocks(slot))
		snprintf(blocks, sizeof(blocks), " of %u blocks at LBA %llu",
			 vroom_slot_blocks(slot), (unsigned long long)slot->slba);
	if (slot)
		vroom_fail_on(name, -err, "%s%s (queue %u, command %u): no completion: %s",
			      opcode_name(vroom_slot_opcode(slot)), blocks, qp->qid,
			      (unsigned)(slot - qp->slots), reason);
	else
		vroom_fail_on(name, -err, "queue %u: no completion: %s", qp->qid, reason);
	vroom_qpair_end(qp, err);
	return err;
}

/*
 * Lets time go on. A command's deadline is a tick further off until the first look after its
 * submission, from which its time counts: nobody knows how long before that it was submitted.
 */
static void advance(struct vroom_qpair *qp, uint32_t ticks)
{
	struct vroom_watchdog *w = &qp->cold->watchdog;

	for (struct vroom_slot *s = qp->slots; s < qp->slots + qp->depth; s++)
		if (s->deadline == qp->deadline || s->deadline == vroom_long_deadline(w))
			s->deadline += ticks - 1;
	w->deadline_tick += ticks;
	qp->deadline = w->deadline_tick + w->ticks + 1;
}

/* Has the controller completed command CID, and only nobody reaped that yet? */
static bool is_completed(const struct vroom_qpair *qp, uint32_t cid)
{
	struct vroom_cq cq = qp->cq; /* to look ahead of it */

	while (!vroom_cq_empty(&cq)) {
		if (cq.entries[cq.head].cid == cid)
			return true;
		cq.head = vroom_cq_next(&cq, cq.head);
	}
	return false;
}

static int check_slots(struct vroom_qpair *qp, uint64_t now)
{
	struct vroom_watchdog *w = &qp->cold->watchdog;
	const struct vroom_opts *opts = &qp->ctrlr->opts;
	const struct vroom_slot *first;
	bool is_long;
	int ret;

	if (now < w->next_tick_ms)
		return 0;
	advance(qp, (uint32_t)VROOM_MIN((now - w->next_tick_ms) / w->tick_ms + 1, TICKS_AT_ONCE));
	w->next_tick_ms = now + w->tick_ms;
	first = first_deadline(qp);
	if ((int32_t)(w->deadline_tick - first->deadline) <= 0 ||
	    is_completed(qp, (uint32_t)(first - qp->slots)))
		return 0;
	ret = vroom_ctrlr_health(qp->ctrlr); /* there may be a better reason */
	if (ret)
		return ret;
	is_long = vroom_is_long(vroom_slot_opcode(first));
	vroom_fail(ETIMEDOUT, "the deadline of %u ms has passed; the controller is stuck",
		   is_long ? opts->long_timeout_ms : opts->io_timeout_ms);
	return vroom_ctrlr_mark_failed(qp->ctrlr, -ETIMEDOUT);
}

int vroom_check_deadlines(struct vroom_qpair *qp, uint64_t now)
{
	struct vroom_watchdog *w = &qp->cold->watchdog;
	struct vroom_ctrlr *c = qp->ctrlr;
	int ret;

	if (qp->error)
		return qp->error;
	if (!first_deadline(qp)) {
		w->next_tick_ms = VROOM_MAX(w->next_tick_ms, now);
		return 0;
	}
	ret = check_slots(qp, now);
	if (!ret)
		ret = vroom_ctrlr_failed(c);
	if (!ret && now >= w->next_csts_ms) {
		w->next_csts_ms = now + CSTS_INTERVAL_MS;
		ret = vroom_ctrlr_health(c);
	} else if (!ret && now >= w->next_alive_ms) {
		w->next_alive_ms = now + ALIVE_INTERVAL_MS;
		ret = c->transport->ops->alive(c->transport);
		if (ret)
			vroom_ctrlr_mark_failed(c, ret);
	}
	return ret ? fail_qpair(qp, ret) : 0;
}

/*
 * Offers the processor to others. Where jobs are scheduled in groups (a session each, as fio's
 * are), yielding reaches only the own group; so when others compete, which shows in involuntary
 * switches, sleep for as short as the timer allows. Alone, a thread never sleeps, and yields ever
 * more seldom.
 */
static void give_way(struct vroom_watchdog *w)
{
	struct timespec shortest = { .tv_nsec = 1000 };
	struct rusage usage;

	if (++w->calls % w->calls_per_yield)
		return;
	sched_yield();
	if (++w->yields % YIELDS_PER_LOOK)
		return;
	getrusage(RUSAGE_THREAD, &usage);
	if (usage.ru_nivcsw != w->switches) {
		clock_nanosleep(CLOCK_MONOTONIC, 0, &shortest, NULL);
		w->calls_per_yield = 1;
	} else if (w->calls_per_yield < CALLS_PER_YIELD_MAX) {
		w->calls_per_yield *= 2;
	}
	w->switches = usage.ru_nivcsw;
}

/* How many events lie between two looks: more or fewer than PER, which took SINCE milliseconds. */
static unsigned adapt(unsigned per, uint64_t since, unsigned max)
{
	if (since < CLOCK_MS)
		return VROOM_MIN(2 * per, max);
	return since > 2 * CLOCK_MS ? VROOM_MAX(per / 2, 1u) : per;
}

/* Reads the clock, every CLOCK_MS or so: that takes microseconds where it is a device. */
static int look_at_clock(struct vroom_qpair *qp)
{
	struct vroom_watchdog *w = &qp->cold->watchdog;
	uint64_t now = vroom_now_ms();

	w->calls_per_clock = adapt(w->calls_per_clock, now - w->last_clock_ms, CALLS_PER_CLOCK_MAX);
	w->last_clock_ms = now;
	w->calls_since_clock = 0;
	return vroom_check_deadlines(qp, now);
}

/* An empty poll, LOOK_TICKS or more after the last one that came here; NOW in those units. */
int vroom_poll_idle(struct vroom_qpair *qp, uint64_t now)
{
	struct vroom_watchdog *w = &qp->cold->watchdog;
	uint64_t since = now - qp->last_look;

	if (qp->error)
		return qp->error;
	qp->last_look = now;
	if (since > LOOKS_FAR_APART * qp->look_ticks)
		return look_at_clock(qp);
	give_way(w);
	return ++w->calls_since_clock < w->calls_per_clock ? 0 : look_at_clock(qp);
}

/* A queue that is never found empty is looked at now and then, when its head doorbell is rung. */
static void look_while_busy(struct vroom_qpair *qp)
{
	struct vroom_watchdog *w = &qp->cold->watchdog;
	uint64_t now = vroom_now_ms();

	w->rings_per_clock = adapt(w->rings_per_clock, now - w->last_busy_ms, RINGS_PER_CLOCK_MAX);
	w->last_busy_ms = now;
	qp->rings_to_look = w->rings_per_clock;
	vroom_check_deadlines(qp, now);
}

/*
 * The part of vroom_poll() that it does not inline: commands that take more than handing out their
 * tag, the head doorbell, and what happens once in many completions. COUNT entries of MAX have been
 * taken and are not accounted for yet; the next goes to OUT.
 */
int vroom_poll_rest(struct vroom_qpair *qp, struct vroom_completion *out, int max, int count)
{
	struct vroom_cq *cq = &qp->cq;
	int taken = count;

	while (count < max) {
		uint32_t last = vroom_cq_peek(cq, &cq->entries[cq->head]);
		int n;

		if (last & NVME_CQE_PHASE)
			break;
		n = vroom_complete(qp, last, out);
		if (n < 0) /* said after what is in hand */
			break;
		count += n;
		out += n;
		taken++;
		cq->head = vroom_cq_next(cq, cq->head);
	}
	cq->left -= taken;
	if (cq->left < 0) {
		vroom_cq_ring(cq);
		if (--qp->rings_to_look == 0)
			look_while_busy(qp);
	}
	/* What waits for slots goes on now that entries were given back for its completions. */
	if (qp->error)
		vroom_qpair_block(qp);
	else if (qp->blocked)
		vroom_request_continue(qp);
	return count ? count : qp->error;
}
