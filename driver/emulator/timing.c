/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A simple model of a drive's timing: a fixed latency for reads and for writes, a number of
 * channels that each serve one command at a time, caps on commands and bytes a second, and a
 * buffer for writes that is emptied more slowly than it is filled. A command is executed at once;
 * only its completion waits, in a heap by due time.
 */

#include "base/base.h"
#include "emulator/emulator.h"

int emu_timing_init(struct emu *e)
{
	if (!e->opts.timing.channels)
		return 0;
	e->channel_free_ns = calloc(e->opts.timing.channels, sizeof(*e->channel_free_ns));
	return e->channel_free_ns ? 0 : -ENOMEM;
}

/* The channel that is free first. */
static uint64_t *first_channel(struct emu *e)
{
	uint64_t *best = &e->channel_free_ns[0];

	for (unsigned i = 1; i < e->opts.timing.channels; i++)
		if (e->channel_free_ns[i] < *best)
			best = &e->channel_free_ns[i];
	return best;
}

/* Takes AMOUNT from a budget of PER_SECOND; returns when it has been earned. */
static double take(double *next_ns, double amount, double per_second, double now_ns)
{
	if (per_second <= 0)
		return 0;
	*next_ns = (*next_ns > now_ns ? *next_ns : now_ns) + amount / per_second * 1e9;
	return *next_ns;
}

/*
 * Puts BYTES into the write buffer, out of which the drive moves data all the time. Returns
 * when there is room for them.
 */
static double fill_buffer(struct emu *e, uint64_t bytes, uint64_t now_ns)
{
	const struct emu_timing *t = &e->opts.timing;
	double drained = (double)(now_ns - e->buffer_seen_ns) / 1e9 * t->drain_bandwidth;
	double over;

	e->buffer_seen_ns = now_ns;
	e->buffered_bytes = e->buffered_bytes > drained ? e->buffered_bytes - drained : 0;
	e->buffered_bytes += (double)bytes;
	over = e->buffered_bytes - (double)t->write_buffer;
	return over > 0 ? (double)now_ns + over / t->drain_bandwidth * 1e9 : 0;
}

void emu_timing_deallocated(struct emu *e, uint64_t bytes)
{
	e->buffered_bytes =
		e->buffered_bytes > (double)bytes ? e->buffered_bytes - (double)bytes : 0;
}

uint64_t emu_timing_due(struct emu *e, bool write, uint64_t bytes, uint64_t now_ns)
{
	const struct emu_timing *t = &e->opts.timing;
	uint64_t latency = write ? t->write_latency_ns : t->read_latency_ns;
	uint64_t due = now_ns + latency;
	double slot, byte;

	if (e->channel_free_ns) {
		uint64_t *channel = first_channel(e);

		due = (*channel > now_ns ? *channel : now_ns) + latency;
		*channel = due;
	}
	slot = take(&e->next_slot_ns[write], 1, write ? t->write_iops : t->read_iops,
		    (double)now_ns);
	byte = take(&e->next_byte_ns[write], (double)bytes,
		    write ? t->write_bandwidth : t->read_bandwidth, (double)now_ns);
	if (slot < byte)
		slot = byte;
	if (write && t->write_buffer) {
		double room = fill_buffer(e, bytes, now_ns);

		if (slot < room)
			slot = room;
	}
	return slot > (double)due ? (uint64_t)slot : due;
}

static void swap(struct emu_pending *a, struct emu_pending *b)
{
	struct emu_pending t = *a;

	*a = *b;
	*b = t;
}

static void sift_down(struct emu *e, unsigned at)
{
	for (;;) {
		unsigned least = at, left = 2 * at + 1, right = left + 1;

		if (left < e->nr_pending && e->pending[left].due_ns < e->pending[least].due_ns)
			least = left;
		if (right < e->nr_pending && e->pending[right].due_ns < e->pending[least].due_ns)
			least = right;
		if (least == at)
			return;
		swap(&e->pending[at], &e->pending[least]);
		at = least;
	}
}

int emu_pending_push(struct emu *e, const struct emu_pending *p)
{
	unsigned at = e->nr_pending;

	if (at == e->max_pending) {
		unsigned max = e->max_pending ? 2 * e->max_pending : 256;
		struct emu_pending *grown = realloc(e->pending, max * sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		e->pending = grown;
		e->max_pending = max;
	}
	e->pending[e->nr_pending++] = *p;
	while (at && e->pending[(at - 1) / 2].due_ns > e->pending[at].due_ns) {
		swap(&e->pending[at], &e->pending[(at - 1) / 2]);
		at = (at - 1) / 2;
	}
	return 0;
}

bool emu_pending_post(struct emu *e, uint64_t *next_ns)
{
	bool any = false;

	*next_ns = 0;
	if (!e->nr_pending)
		return false;
	for (uint64_t now = vroom_now_ns(); e->nr_pending; any = true) {
		const struct emu_pending *first = &e->pending[0];

		if (first->due_ns > now || !emu_post(e, first->sq->cq, &first->cqe)) {
			*next_ns = first->due_ns;
			return any;
		}
		e->pending[0] = e->pending[--e->nr_pending];
		sift_down(e, 0);
	}
	return any;
}

bool emu_pending_remove(struct emu *e, const struct emu_sq *sq, int cid, bool abort)
{
	unsigned kept = 0, before = e->nr_pending;

	for (unsigned i = 0; i < before; i++) {
		struct emu_pending p = e->pending[i];

		if (p.sq != sq || (cid >= 0 && p.cqe.cid != cid)) {
			e->pending[kept++] = p;
			continue;
		}
		if (abort) {
			p.cqe.status = NVME_SC_ABORT_REQUESTED << NVME_STATUS_SC_SHIFT;
			emu_post(e, p.sq->cq, &p.cqe);
		}
	}
	e->nr_pending = kept;
	for (unsigned i = kept / 2; i-- > 0;)
		sift_down(e, i);
	return kept != before;
}
