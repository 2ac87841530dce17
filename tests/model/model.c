/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A model checker of I/O queue pairs. `make model`; run.py has the configurations and the mutants.
 *
 * What runs is the driver: vroom_queue.h, vroom_qpair.h, core/qpair.c, request.c, watchdog.c,
 * doorbell.c and, of admin.c, vroom_queues_init(), as they are, compiled with -fsanitize=thread, so
 * that each access is announced by a call (host.c). A controller, the memory between both and what
 * checks them are here.
 *
 * Explored are all reachable states, breadth first: a state is the world (model.h) and, where the
 * host is inside of a function, its stack. The number of commands is not bounded. Tags are taken
 * again, indices wrap, phases flip, until no state is new: what is said of the states holds for
 * runs of any length. Bounded are depth and queue sizes, one split request of SPLIT_PARTS parts at
 * a time, and the choices:
 *	host		submit, ring, poll for one or for all, reset (delete the queue pair, create
 *			it anew, in the same memory), submit a request that is split: in any order
 *	controller	fetches in order; completes in any order, with success or Abort Requested,
 *			as late as it likes; writes an entry's data and its last word in two steps;
 *			looks at doorbells whenever it likes; with --sleep falls asleep until it
 *			is kicked, in the steps in which the emulator does
 *	memory		a doorbell store of the host's arrives at any time later
 *
 * Two memory models. x86-TSO: stores arrive in order, loads are in order. Weak, as on ARM: a store
 * arrives in any order with others (but those to the same word), except that a store-release comes
 * after all before it; a load may return what was there at any time after the last load-acquire
 * before it; a plain load may happen after later stores, but not after a store-release. Address and
 * control dependencies order nothing here although they do on ARM: what holds here holds there.
 * Compilers are in so far as it is compiled code that runs, with one set of options.
 *
 * Fewer steps than there are, with the same findings:
 *  - A store to a submission queue entry is written at once, and its slot is then "dirty" until a
 *    doorbell store that it is ordered before arrives. Only the controller reads the entry, between
 *    the doorbell's arrival and its fetch; a slot that is dirty, or stored to, in that time is a
 *    fault whether or not the controller would have looked before or after the store. So any order
 *    of arrival that matters is one that is reported.
 *  - Stale loads: a plain load that may return something old is given POISON, which no check lets
 *    pass; a load of the last word returns what is there now, as an older value would only be that
 *    of a host that was faster, which is explored as well. Likewise late loads: a doorbell store
 *    that loads may come after marks the slots that it gives back, and writing to these is a fault.
 *  - The host is left only at loads of completion queue entries that the controller could write to
 *    before the host does anything: nothing that others do has an influence on the steps in
 *    between, nor these on them, but for stores, which wait in the buffer anyway. With --sleep also
 *    at loads of needs_kick and before doorbell stores, for there is a barrier to come in between.
 *  - That the controller works with doorbells that it read long ago is no step of its own: the
 *    indices only grow, so that it does late what it could do early.
 *  - A new command has the tag that goes with the slot at the head of the free list: to the driver
 *    tags are names, and which is which makes no difference.
 *  - With --eager, doorbell stores arrive at once: for queues whose states are too many otherwise.
 *    The host reads nothing that shows whether one has arrived (but needs_kick, so not with
 *    --sleep), and a controller that has seen it can still do all that it could before. Mutants are
 *    judged with it and without, and are to be found both ways.
 *  - Words that have been read, or have lost their meaning, are overwritten with POISON. So states
 *    that differ only in rubbish are one, and who uses rubbish is found out.
 *
 * Checked: entries are fetched whole, once, and as submitted; none is stored to while it is the
 * controller's; doorbells say something new and nothing wrong; no completion is written over one
 * that was not read; the completion queue always has room for all that is outstanding; each tag
 * comes back once, with the result and status that the controller gave to its command; submission
 * fails when all slots are taken and only then; free slots are all in the list, once; nothing of a
 * deleted queue is taken for something; and from every state what is outstanding can come to an end
 * without another submission, which is how a lost command, doorbell or kick shows.
 *
 * States are told apart by a 64-bit hash: with 10^7 of them a run misses one with a probability of
 * 3 in a million.
 *
 * Not here: the admin queue (a queue is created and deleted in one step), the end of a queue pair
 * (deadlines, fail_qpair()), interrupts, data and PRP lists.
 */
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/core.h"
#include "model.h"

struct config config = { .depth = 2, .entries = 3, .max_states = 20000000 };

/* Steps, by number: the host's first. */
enum {
	STEP_GO_ON = OPS,
	STEP_FETCH,
	STEP_POST,
	STEP_SLEEP,
	STEP_ARRIVE,
	STEP_BEGIN_POST = STEP_ARRIVE + BUFFER_MAX, /* + 2 * which + aborted */
	STEPS = STEP_BEGIN_POST + 2 * (DEPTH_MAX + 1),
};

#define ABORTED (NVME_SC_ABORT_REQUESTED << NVME_STATUS_SC_SHIFT)

/* --- commands -------------------------------------------------------------------------------- */

static const struct vroom_ns ns = { .nsid = 7, .lba_size = 4096, .lba_shift = 12 };

static uint64_t slba_of(unsigned command)
{
	if (command < SPLIT)
		return (command + UINT64_C(1)) << 32 | (command + 1) << 8;
	return (UINT64_C(9) << 32) + (uint64_t)(command - SPLIT) * NVME_RW_MAX_NLB;
}

static void *tag_of(unsigned command)
{
	return (void *)(uintptr_t)(0x1000 + command);
}

static uint64_t result_of(unsigned command)
{
	return (command + 1) * UINT64_C(0x1000100010001);
}

void describe_command(struct vroom_io *io, unsigned command)
{
	void *buf = (void *)(uintptr_t)((command + 1) << 20);

	if (command < SPLIT)
		vroom_prep_read(io, &ns, buf, slba_of(command), 2, tag_of(command));
	else
		vroom_prep_write_zeroes(io, &ns, slba_of(SPLIT),
					(SPLIT_PARTS - 1) * NVME_RW_MAX_NLB + 1, tag_of(SPLIT));
}

/* The command that the controller finds in ENTRY, whole and as it should be; else COMMANDS_MAX. */
static unsigned recognize(const uint64_t *entry)
{
	uint64_t want[8];
	struct vroom_io io;

	for (unsigned command = 0; command < COMMANDS_MAX; command++) {
		describe_command(&io, command);
		if (command >= SPLIT) {
			nvme_sqe_set_slba(&io.sqe, slba_of(command));
			nvme_sqe_set_nlb(&io.sqe,
					 command == COMMANDS_MAX - 1 ? 1 : NVME_RW_MAX_NLB);
		} else {
			io.sqe.prp1 = (uintptr_t)io.buf;
			io.sqe.prp2 = io.sqe.prp1 + 4096;
		}
		io.sqe.cid = (uint16_t)(entry[0] >> 16);
		memcpy(want, &io.sqe, sizeof(want));
		if (!memcmp(want, entry, sizeof(want)))
			return command;
	}
	return COMMANDS_MAX;
}

/* --- the host's stores arrive ---------------------------------------------------------------- */

static unsigned distance(unsigned from, unsigned to, unsigned size)
{
	return (to + size - from) % size;
}

static void tail_arrives(const struct store *s)
{
	unsigned new = distance(w.sq_head, s->value, w.sq_size);

	if (new <= distance(w.sq_head, w.tail, w.sq_size))
		violated("doorbell", "tail %u after %u says nothing new, or takes something back",
			 s->value, w.tail);
	w.tail = s->value;
	for (unsigned i = 0; i < new; i++)
		if (w.dirty & 1 << (w.sq_head + i) % w.sq_size)
			violated("sq torn", "tail %u arrives before the entry in slot %u", s->value,
				 (w.sq_head + i) % w.sq_size);
}

/* BEFORE stores came before it and have not arrived. */
static void head_arrives(const struct store *s, unsigned before)
{
	unsigned given = distance(w.head, s->value, w.cq_size);

	if (!given || given > distance(w.head, w.cq_tail, w.cq_size))
		violated("doorbell", "head %u after %u gives nothing back, or what is not there",
			 s->value, w.head);
	for (unsigned i = 0; i < given && config.weak && !s->release; i++) {
		uint16_t bit = (uint16_t)(1 << (w.head + i) % w.cq_size);

		w.loose |= bit;
		for (unsigned j = 0; j < before; j++)
			w.buffer[j].clears &= (uint16_t)~bit;
	}
	w.head = s->value;
}

void arrive(unsigned index)
{
	struct store s = w.buffer[index];

	memmove(&w.buffer[index], &w.buffer[index + 1], (--w.buffered - index) * sizeof(*w.buffer));
	memset(&w.buffer[w.buffered], 0, sizeof(*w.buffer));
	w.dirty &= (uint8_t)~s.before;
	w.loose &= (uint16_t)~s.clears;
	if (s.head)
		head_arrives(&s, index);
	else
		tail_arrives(&s);
}

void arrive_all(void)
{
	while (w.buffered)
		arrive(0);
}

static bool may_arrive(unsigned index)
{
	if (index && (!config.weak || w.buffer[index].release))
		return false;
	for (unsigned i = 0; i < index; i++)
		if (w.buffer[i].head == w.buffer[index].head)
			return false;
	return true;
}

/* --- the controller -------------------------------------------------------------------------- */

static bool has_room(void)
{
	return w.cq_size && (unsigned)(w.cq_tail + 1) % w.cq_size != w.head;
}

bool is_writable(unsigned slot)
{
	unsigned ahead = distance(w.cq_tail, slot, w.cq_size);

	if (w.posting && !ahead)
		return true;
	if (ahead < distance(w.cq_tail, w.head + w.cq_size - 1, w.cq_size))
		return true;
	for (unsigned i = 0; i < w.buffered; i++)
		if (w.buffer[i].head &&
		    ahead < distance(w.cq_tail, w.buffer[i].value + w.cq_size - 1, w.cq_size))
			return true;
	return false;
}

static void fetch(void)
{
	uint64_t *entry = w.sq[w.sq_head];
	unsigned command = recognize(entry), cid = (unsigned)(entry[0] >> 16) & 0xffff, i;

	if (command == COMMANDS_MAX)
		violated("sq stale",
			 "what was fetched from slot %u is no command that was submitted",
			 w.sq_head);
	else if (command < SPLIT ? w.life[command] != SUBMITTED
				 : !w.splitting || w.life[command] != FREE)
		violated("sq stale", "command %u is fetched from slot %u once more", command,
			 w.sq_head);
	if (cid >= config.depth)
		violated("cid", "command identifier %u", cid);
	if (fault)
		return;
	for (i = 0; i < w.fetches && w.fetched[i].cid < cid; i++)
		;
	if (i < w.fetches && w.fetched[i].cid == cid)
		violated("cid", "command identifier %u is taken", cid);
	memmove(&w.fetched[i + 1], &w.fetched[i], (w.fetches++ - i) * sizeof(*w.fetched));
	w.fetched[i] = (struct fetched){ (uint8_t)command, (uint8_t)cid };
	w.life[command] = FETCHED;
	for (i = 0; i < 8; i++)
		entry[i] = POISON;
	w.sq_head = (uint8_t)((w.sq_head + 1) % w.sq_size);
}

/* Writes all but the last word. */
static void begin_post(unsigned which, bool aborted)
{
	struct nvme_cqe *cqe = &w.cq[w.cq_tail];
	uint16_t bit = (uint16_t)(1 << w.cq_tail);
	uint64_t result = result_of(w.fetched[which].command);

	if ((w.unread[0] | w.unread[1] | w.unread[3]) & bit)
		violated("cq overwritten", "slot %u was given back before it was read", w.cq_tail);
	if (w.loose & bit)
		violated("cq overwritten", "slot %u may be read after it was given back",
			 w.cq_tail);
	w.post = w.fetched[which];
	w.post_status = aborted ? ABORTED : 0;
	w.posting = 1;
	memmove(&w.fetched[which], &w.fetched[which + 1],
		(--w.fetches - which) * sizeof(*w.fetched));
	memset(&w.fetched[w.fetches], 0, sizeof(*w.fetched));
	cqe->dw0 = (uint32_t)result;
	cqe->dw1 = (uint32_t)(result >> 32);
	if (config.weak) {
		w.stale[0] |= bit;
		w.stale[1] |= bit;
	}
}

static void end_post(void)
{
	struct nvme_cqe *cqe = &w.cq[w.cq_tail];
	uint16_t bit = (uint16_t)(1 << w.cq_tail);

	cqe->cid = w.post.cid;
	cqe->status = w.post_status | w.phase;
	w.unread[0] |= bit;
	w.unread[1] |= bit;
	w.unread[3] |= bit;
	w.posted[w.cq_tail] = w.post.command;
	w.life[w.post.command] = POSTED;
	w.status[w.post.command] = w.post_status;
	w.posting = w.post_status = 0;
	memset(&w.post, 0, sizeof(w.post));
	w.cq_tail = (uint8_t)((w.cq_tail + 1) % w.cq_size);
	if (!w.cq_tail)
		w.phase ^= 1;
}

static bool has_work(void)
{
	return w.tail != w.sq_head || w.posting || (w.fetches && has_room());
}

/* As driver/emulator/server.c does: says that it will sleep, membarrier(), looks again, sleeps. */
static void fall_asleep(void)
{
	switch (w.asleep) {
	case 0: w.needs_kick = 1; break;
	case 1:
		if (!config.no_barrier)
			arrive_all();
		break;
	case 2:
		if (has_work()) {
			w.needs_kick = w.asleep = 0;
			return;
		}
	}
	w.asleep++;
}

/* --- what is checked when a function of the driver's has returned ----------------------------- */

static unsigned slots_taken(void)
{
	unsigned taken = 0;

	for (uint32_t cid = 0; w.qp && cid < w.qp->depth; cid++)
		taken += w.qp->slots[cid].state != VROOM_SLOT_FREE;
	return taken;
}

/* What vroom_poll() promises: the completion queue is never full for the controller. */
void check_room(void)
{
	unsigned taken = slots_taken(), unrung;

	unrung = w.qp ? distance(w.issued_head, w.qp->cq.head, w.cq_size) : 0;
	if (taken + unrung > w.cq_size - 1u)
		violated("cq room", "%u outstanding, %u not given back: %u entries are not enough",
			 taken, unrung, w.cq_size);
}

static void check_split(const struct vroom_completion *done)
{
	bool aborted = false, whole = true, known = false;

	for (unsigned part = SPLIT; part < COMMANDS_MAX; part++) {
		if (w.life[part] != FREE && w.life[part] != TAKEN)
			violated("completion", "a request ends before part %u", part - SPLIT);
		aborted |= w.status[part] != 0;
		whole &= w.life[part] == TAKEN;
		known |= w.life[part] == TAKEN && done->result == result_of(part);
		w.life[part] = w.status[part] = 0;
	}
	if (!w.splitting || !known || (!whole && !aborted) ||
	    done->status != (aborted ? ABORTED : 0))
		violated("completion", "of the split request: status %xh, result %llxh",
			 done->status, (unsigned long long)done->result);
	w.splitting = 0;
}

static void check_completions(void)
{
	if (w.ret < 0)
		violated("completion", "vroom_poll() says %d", w.ret);
	for (int i = 0; i < w.ret && !fault; i++) {
		const struct vroom_completion *done = &w.out[i];
		unsigned command = (unsigned)((uintptr_t)done->tag - 0x1000);

		if (command == SPLIT) {
			check_split(done);
			continue;
		}
		if (command >= SPLIT || w.life[command] == FREE) {
			violated("completion", "tag %p, which is not outstanding", done->tag);
			return;
		}
		if (w.life[command] != TAKEN || done->result != result_of(command) ||
		    done->status != w.status[command])
			violated("completion",
				 "command %u with result %llxh and status %xh, not its own",
				 command, (unsigned long long)done->result, done->status);
		w.life[command] = w.status[command] = 0;
	}
	for (unsigned command = 0; command < SPLIT; command++)
		if (w.life[command] == TAKEN)
			violated("lost", "the completion of command %u was not handed out",
				 command);
	memset(w.out, 0, sizeof(w.out));
}

/* Counts the slots from CID on that are free, and leaves nothing of use in them. */
static unsigned check_free(struct vroom_qpair *qp, uint32_t cid, unsigned count)
{
	for (; cid != VROOM_NO_SLOT; count++) {
		struct vroom_slot *slot = &qp->slots[cid];

		if (cid >= qp->depth || count >= qp->depth || slot->state != VROOM_SLOT_FREE) {
			violated("free slots", "%u is in the list of free slots", cid);
			break;
		}
		slot->tag = (void *)(uintptr_t)POISON;
		slot->slba = POISON;
		slot->what = slot->deadline = 0;
		memset(&qp->cold->slots[cid], 0, sizeof(qp->cold->slots[cid]));
		qp->cold->slots[cid].request = (void *)(uintptr_t)POISON;
		cid = slot->next_free;
	}
	return count;
}

static void check_idle(void)
{
	struct vroom_qpair *qp = w.qp;
	unsigned free_slots, outstanding = slots_taken(), plain = 0;

	for (uint32_t cid = 0; cid < qp->depth; cid++)
		if (qp->slots[cid].state != VROOM_SLOT_FREE)
			qp->slots[cid].next_free = 0;
	for (unsigned command = 0; command < SPLIT; command++)
		plain += w.life[command] != FREE;
	free_slots = check_free(qp, qp->free_slot, 0);
	if (qp->blocked)
		free_slots = check_free(qp, qp->cold->held_slot, free_slots);
	if (fault)
		return;
	if (free_slots + outstanding != qp->depth ||
	    (w.splitting ? plain > outstanding : plain != outstanding))
		violated("free slots", "%u free, %u taken, %u commands are outstanding", free_slots,
			 outstanding, plain);
	check_room();
	/* Time is not looked at here. */
	qp->rings_to_look = 1 << 20;
	qp->look_ticks = UINT64_MAX;
}

static void check_submit(unsigned outstanding_before, bool blocked_before)
{
	bool full = outstanding_before == config.depth || blocked_before;

	if (w.ret != (full ? -EAGAIN : 0))
		violated("submit", "it returned %d with %u outstanding", w.ret, outstanding_before);
	if (w.op == OP_SPLIT && w.ret)
		w.splitting = 0;
}

static void host(enum op op)
{
	static unsigned taken;
	static bool blocked;

	if (!w.mid) {
		taken = slots_taken();
		blocked = w.qp && w.qp->blocked;
	}
	host_step(op);
	if (fault || w.mid)
		return;
	switch (w.op) {
	case OP_SPLIT:
	case OP_SUBMIT:
		if (!config.sleep) /* with it a split one may have been left in the middle */
			check_submit(taken, blocked);
		else if (w.ret && w.op == OP_SPLIT)
			w.splitting = 0;
		break;
	case OP_POLL_ONE:
	case OP_POLL_ALL: check_completions(); break;
	case OP_RESET:
		if (w.ret)
			violated("life", "vroom_qpair_create() returned %d", w.ret);
	}
	w.op = 0;
	w.ret = 0;
	if (!fault)
		check_idle();
}

/* --- the search ------------------------------------------------------------------------------ */

static unsigned enabled(uint8_t *steps)
{
	unsigned n = 0;

	if (w.mid)
		steps[n++] = STEP_GO_ON;
	for (unsigned op = 0; op < OPS && !w.mid; op++)
		if (op != OP_SPLIT || (config.split && !w.splitting))
			steps[n++] = (uint8_t)op;
	for (unsigned i = 0; i < w.buffered; i++)
		if (may_arrive(i))
			steps[n++] = (uint8_t)(STEP_ARRIVE + i);
	if (config.sleep && ((w.asleep && w.asleep < 3) || (!w.asleep && !has_work())))
		steps[n++] = STEP_SLEEP;
	if (w.asleep)
		return n;
	if (w.tail != w.sq_head)
		steps[n++] = STEP_FETCH;
	if (w.posting)
		steps[n++] = STEP_POST;
	for (unsigned i = 0; i < w.fetches && !w.posting && has_room(); i++) {
		steps[n++] = (uint8_t)(STEP_BEGIN_POST + 2 * i);
		if (config.aborts)
			steps[n++] = (uint8_t)(STEP_BEGIN_POST + 2 * i + 1);
	}
	return n;
}

static void take(unsigned step)
{
	if (step < OPS)
		host((enum op)step);
	else if (step == STEP_GO_ON)
		host((enum op)w.op);
	else if (step == STEP_FETCH)
		fetch();
	else if (step == STEP_POST)
		end_post();
	else if (step == STEP_SLEEP)
		fall_asleep();
	else if (step < STEP_BEGIN_POST)
		arrive(step - STEP_ARRIVE);
	else
		begin_post((step - STEP_BEGIN_POST) / 2, step & 1);
}
_Static_assert(STEP_BEGIN_POST % 2 == 0, "aborted or not is the lowest bit");

/* States found, by number; 0 is the first. */
static uint64_t *hashes;
static uint32_t *parents, *table, found, table_mask;
static uint8_t *steps_to;
static bool *ends; /* nothing is outstanding, later: that can be reached without new commands */
/* Steps from a state to a state that are not submissions or resets. */
static struct edge {
	uint32_t from, to;
} * edges;
static bool positions[SQ_MAX][CQ_MAX][2]; /* of the controller's in both queues, and its phase */
static size_t edge_count, edge_room, taken_steps;

struct saved {
	struct saved *next;
	uint32_t number;
	struct world world;
	char frame[];
};

/* Four chains of multiplications, so that a processor works on all of them at once. */
static uint64_t hash_bytes(const void *data, size_t bytes, uint64_t h)
{
	uint64_t chain[4] = { h, h + 1, h + 2, h + 3 };
	const uint64_t *p = data;

	for (size_t i = 0; i < bytes / 8; i++) {
		h = (chain[i & 3] ^ p[i]) * UINT64_C(0x9fb21c651e98df25);
		chain[i & 3] = h ^ h >> 32;
	}
	for (size_t i = 0; i < 4; i++) {
		h = (h ^ chain[i]) * UINT64_C(0x9fb21c651e98df25);
		h ^= h >> 32;
	}
	return h;
}

static size_t frame_bytes(void)
{
	return w.mid ? (w.frame + 7u) & ~7u : 0;
}

/* The number of the state that is now; NEW: it has not been before. */
static uint32_t lookup(uint32_t parent, unsigned step, bool *new)
{
	uint64_t h = hash_bytes(&w, sizeof(w), 1);
	uint32_t at;

	h = hash_bytes(host_stack + STACK_BYTES - frame_bytes(), frame_bytes(), h);
	for (at = (uint32_t)h & table_mask; table[at]; at = (at + 1) & table_mask)
		if (hashes[table[at] - 1] == h)
			break;
	*new = !table[at];
	if (!*new)
		return table[at] - 1;
	hashes[found] = h;
	parents[found] = parent;
	steps_to[found] = (uint8_t)step;
	ends[found] = !w.mid && !w.splitting && w.qp;
	for (unsigned command = 0; command < SPLIT; command++)
		ends[found] &= w.life[command] == FREE;
	positions[w.sq_head][w.cq_tail][w.phase] = true;
	table[at] = ++found;
	return found - 1;
}

static struct saved *save(uint32_t number)
{
	struct saved *s = malloc(sizeof(*s) + frame_bytes());

	if (!s)
		abort();
	s->next = NULL;
	s->number = number;
	s->world = w;
	memcpy(s->frame, host_stack + STACK_BYTES - frame_bytes(), frame_bytes());
	return s;
}

static void load(const struct saved *s)
{
	w = s->world;
	memcpy(host_stack + STACK_BYTES - frame_bytes(), s->frame, frame_bytes());
}

static void add_edge(uint32_t from, uint32_t to)
{
	if (edge_count == edge_room) {
		edge_room = edge_room ? 2 * edge_room : 1 << 16;
		edges = realloc(edges, edge_room * sizeof(*edges));
		if (!edges)
			abort();
	}
	edges[edge_count++] = (struct edge){ from, to };
}

/* A state from which what is outstanding cannot end, however long the host polls; or FOUND. */
static uint32_t find_stuck(void)
{
	bool more = true;

	while (more) {
		more = false;
		for (size_t i = edge_count; i-- > 0;)
			if (!ends[edges[i].from] && ends[edges[i].to])
				more = ends[edges[i].from] = true;
	}
	for (uint32_t i = 0; i < found; i++)
		if (!ends[i])
			return i;
	return found;
}

/* --- telling --------------------------------------------------------------------------------- */

static void print_step(unsigned step)
{
	static const char *const names[] = { "host submits",	   "host rings",
					     "host polls for one", "host polls for all",
					     "queue pair is new",  "host submits a large request",
					     "host goes on",	   "controller fetches",
					     "controller posts",   "controller falls asleep" };
	char text[64];

	if (step < STEP_ARRIVE)
		snprintf(text, sizeof(text), "%s", names[step]);
	else if (step < STEP_BEGIN_POST)
		snprintf(text, sizeof(text), "doorbell store %u arrives", step - STEP_ARRIVE);
	else
		snprintf(text, sizeof(text), "controller begins to post %u%s",
			 (step - STEP_BEGIN_POST) / 2, step & 1 ? ", aborted" : "");
	printf("  %-36s", text);
}

static void print_world(void)
{
	printf("sq %u..%u", w.sq_head, w.tail);
	if (w.qp && w.sq_size)
		printf(" (host %u)  cq %u..%u (host %u)", w.qp->sq.tail, w.head, w.cq_tail,
		       w.qp->cq.head);
	printf("%s ", w.mid ? "  host is inside" : "");
	for (unsigned i = 0; i < w.buffered; i++)
		printf(" [%s=%u]", w.buffer[i].head ? "head" : "tail", w.buffer[i].value);
	for (unsigned i = 0; i < COMMANDS_MAX; i++)
		if (w.life[i])
			printf(" %u:%s", i,
			       (const char *[]){ "", "submitted", "fetched", "posted",
						 "taken" }[w.life[i]]);
	printf("\n");
}

/* Goes from the first state to NUMBER again, and one STEP more, if any. */
static void print_trace(uint32_t number, int step)
{
	uint8_t *path = malloc(found + 1);
	uint32_t n = 0;

	for (uint32_t i = number; i; i = parents[i])
		path[n++] = steps_to[i];
	fault = NULL;
	host_init();
	host(OP_RESET);
	while (n && !fault) {
		print_step(path[--n]);
		take(path[n]);
		print_world();
	}
	if (step >= 0) {
		print_step((unsigned)step);
		take((unsigned)step);
		print_world();
	}
	free(path);
}

static void allocate(void)
{
	table_mask = 1;
	while (table_mask < 2 * config.max_states)
		table_mask *= 2;
	table = calloc(table_mask, sizeof(*table));
	table_mask--;
	hashes = calloc(config.max_states + 64, sizeof(*hashes));
	parents = calloc(config.max_states + 64, sizeof(*parents));
	steps_to = calloc(config.max_states + 64, 1);
	ends = calloc(config.max_states + 64, sizeof(*ends));
	if (!table || !hashes || !parents || !steps_to || !ends)
		abort();
}

/* Returns the number of states, or prints what is wrong and how it came about. */
static int search(void)
{
	struct saved *first, *last, *s;
	uint8_t steps[STEPS];
	uint32_t number;
	unsigned n, at = 0;
	bool new;

	allocate();
	host_init();
	host(OP_RESET);
	if (fault) {
		printf("VIOLATED %s: %s\n", fault, fault_detail);
		return 1;
	}
	first = last = save(lookup(0, 0, &new));
	for (; first && found < config.max_states; s = first, first = s->next, free(s)) {
		load(first);
		n = enabled(steps);
		for (unsigned i = 0; i < n; i++) {
			if (i)
				load(first);
			take(steps[i]);
			taken_steps++;
			if (fault) {
				print_trace(first->number, steps[i]);
				printf("VIOLATED %s: %s (%u states)\n", fault, fault_detail, found);
				return 1;
			}
			number = lookup(first->number, steps[i], &new);
			if (steps[i] != OP_SUBMIT && steps[i] != OP_SPLIT && steps[i] != OP_RESET &&
			    number != first->number)
				add_edge(first->number, number);
			if (new)
				last = last->next = save(number);
		}
	}
	number = first ? found : find_stuck();
	if (number < found) {
		print_trace(number, -1);
		printf("VIOLATED progress: what is outstanding never ends (%u states)\n", found);
		return 1;
	}
	for (size_t i = 0; i < sizeof(positions); i++)
		at += ((bool *)positions)[i];
	printf("%s states=%u steps=%zu positions=%u of %u\n", first ? "INCOMPLETE" : "HOLDS", found,
	       taken_steps, at, 2u * w.sq_size * w.cq_size);
	return first ? 3 : 0;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "depth", 1, NULL, 'd' }, { "entries", 1, NULL, 'e' },
		{ "weak", 0, NULL, 'w' },  { "aborts", 0, NULL, 'a' },
		{ "split", 0, NULL, 's' }, { "sleep", 0, NULL, 'z' },
		{ "max", 1, NULL, 'm' },   { "no-barrier", 0, NULL, 'n' },
		{ "eager", 0, NULL, 'g' }, { 0 }
	};
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1)
		switch (c) {
		case 'd': config.depth = (unsigned)atoi(optarg); break;
		case 'e': config.entries = (unsigned)atoi(optarg); break;
		case 'w': config.weak = true; break;
		case 'a': config.aborts = true; break;
		case 's': config.split = true; break;
		case 'z': config.sleep = true; break;
		case 'g': config.eager = true; break;
		case 'n': config.no_barrier = true; break;
		case 'm': config.max_states = (uint32_t)atoi(optarg); break;
		default: return 2;
		}
	if (config.depth > DEPTH_MAX || config.entries <= config.depth || config.entries > CQ_MAX)
		return 2;
	return search();
}
