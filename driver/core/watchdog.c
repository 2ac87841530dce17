/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What polling does beside reaping: it gives way to others who need the processor, keeps deadlines,
 * and sees when a controller has gone.
 *
 * Time costs nothing while there are completions. A poll that finds none reads the processor's
 * counter, and when that has gone on far enough it comes here; the clock itself, which is a device
 * in some guests, is read every few milliseconds, or at once when polls are far apart.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/size.h"
#include "core/qpair.h"

/* A deadline is this many ticks, so it is kept to an eighth. */
#define DEADLINE_TICKS 8
/*
 * Time goes on by so many ticks from one look to the next, however long that was: a process that
 * did not run looks thrice before it believes a command late, for its controller may not have run
 * either.
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
/* Polls are far apart when so many looks would have fitted in between. */
#define LOOKS_FAR_APART	    64
#define YIELDS_PER_LOOK	    8
#define CALLS_PER_YIELD_MAX 64
#define CLOCK_MS	    4
#define CALLS_PER_CLOCK_MAX 4096
/* Head doorbells between two looks at a busy queue. */
#define RINGS_PER_CLOCK_MAX 64

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
	qp->deadline = w->tick + w->ticks + 1;
	qp->look_ticks = LOOK_TICKS;
	qp->rings_to_look = 1;
}

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

/* The command whose deadline is the first, or NULL when none is outstanding. */
static const struct vroom_slot *first_deadline(const struct vroom_qpair *qp)
{
	const struct vroom_slot *first = NULL;

	for (uint32_t cid = 0; cid < qp->depth; cid++) {
		const struct vroom_slot *slot = &qp->slots[cid];

		if (slot->state != VROOM_SLOT_FREE &&
		    (!first || (int32_t)(slot->deadline - first->deadline) < 0))
			first = slot;
	}
	return first;
}

/* "read of 8 blocks at LBA 128 (queue 1, command 3)" */
static void describe(const struct vroom_qpair *qp, const struct vroom_slot *slot, char *text,
		     size_t size)
{
	unsigned cid = slot ? (unsigned)(slot - qp->slots) : 0;

	if (!slot)
		snprintf(text, size, "queue %u", qp->qid);
	else if (vroom_slot_blocks(slot))
		snprintf(text, size, "%s of %u blocks at LBA %llu (queue %u, command %u)",
			 opcode_name(vroom_slot_opcode(slot)), vroom_slot_blocks(slot),
			 (unsigned long long)slot->slba, qp->qid, cid);
	else
		snprintf(text, size, "%s (queue %u, command %u)",
			 opcode_name(vroom_slot_opcode(slot)), qp->qid, cid);
}

/*
 * Recovery, by Abort and then a controller reset, would start here: the outstanding commands are
 * all in qp->slots.
 */
int vroom_qpair_fail(struct vroom_qpair *qp, int err)
{
	char command[160];

	if (qp->error)
		return qp->error;
	describe(qp, first_deadline(qp), command, sizeof(command));
	vroom_fail_on(qp->ctrlr->name, -err, "%s: no completion: %s", command,
		      vroom_ctrlr_reason(qp->ctrlr));
	qp->error = err;
	qp->look_ticks = 0;
	vroom_qpair_block(qp);
	return err;
}

/* --- deadlines ------------------------------------------------------------------------------- */

/*
 * Lets time go on. The deadline of a command is one tick further off until the first look after its
 * submission, from which its time counts: nobody knows how long before that it was submitted.
 */
static void advance(struct vroom_qpair *qp, uint32_t ticks)
{
	struct vroom_watchdog *w = &qp->cold->watchdog;

	for (uint32_t cid = 0; cid < qp->depth; cid++) {
		struct vroom_slot *slot = &qp->slots[cid];

		if (slot->deadline == qp->deadline || slot->deadline == vroom_long_deadline(w))
			slot->deadline += ticks - 1;
	}
	w->tick += ticks;
	qp->deadline = w->tick + w->ticks + 1;
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

	if (now < w->next_tick_ms)
		return 0;
	advance(qp, (uint32_t)VROOM_MIN((now - w->next_tick_ms) / w->tick_ms + 1, TICKS_AT_ONCE));
	w->next_tick_ms = now + w->tick_ms;
	first = first_deadline(qp);
	if ((int32_t)(w->tick - first->deadline) <= 0 ||
	    is_completed(qp, (uint32_t)(first - qp->slots)))
		return 0;
	vroom_fail(ETIMEDOUT, "the deadline of %u ms has passed; the controller is stuck",
		   vroom_is_long(vroom_slot_opcode(first)) ? opts->long_timeout_ms
							   : opts->io_timeout_ms);
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
	return ret ? vroom_qpair_fail(qp, ret) : 0;
}

/* --- looks --------------------------------------------------------------------------------- */

/*
 * Offers the processor to somebody who may need it more: the emulated controller, or another
 * job. Where jobs are scheduled in groups (a session each, as fio's jobs are), yielding
 * reaches only the own group; so when others do compete for this processor, which shows
 * in involuntary switches, sleep for as short as the timer allows. With a processor to
 * itself a thread never sleeps, and yields ever more seldom.
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

/* Of PER events between two looks at the clock, which came after SINCE milliseconds: more, or
 * fewer. */
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
		if (n < 0)
			return n;
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
		vroom_qpair_hold_back(qp); /* nobody gets what was freed on the inlined path */
	else if (qp->blocked)
		vroom_request_continue(qp);
	return !count && qp->error ? qp->error : count;
}
