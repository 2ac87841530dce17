/* SPDX-License-Identifier: BSD-3-Clause */
/* I/O queue pairs, as qpair.c, request.c, watchdog.c and wait.c share them. */
#ifndef VROOM_CORE_QPAIR_H
#define VROOM_CORE_QPAIR_H

#include "core/ctrlr.h"
#include "core/doorbell.h"
#include "vroom_qpair.h"

/* A request that takes several commands: its parts go out as there are slots for them. */
struct vroom_request {
	struct vroom_io io;
	uint64_t submitted;   /* blocks */
	uint64_t part_blocks; /* of a part, at most */
	unsigned outstanding; /* parts */
	uint16_t status;      /* the first that was not success */
};

/* What vroom_poll() does beside reaping; watchdog.c. */
struct vroom_watchdog {
	uint64_t tick_ms;      /* milliseconds of a deadline tick */
	uint32_t tick;	       /* now */
	uint32_t ticks;	       /* of a command's deadline */
	uint32_t long_ticks;   /* of commands that may work on a whole drive */
	uint64_t next_tick_ms; /* when it advances */
	uint64_t next_alive_ms, next_csts_ms;
	/* looks at the clock: when the last was, and how many events lie between two */
	uint64_t last_clock_ms, last_busy_ms;
	unsigned calls_per_clock, calls_since_clock; /* of vroom_poll_idle() */
	unsigned rings_per_clock;		     /* of a busy queue's head doorbell */
	/* giving way: yields of this many calls, and what they were good for */
	uint64_t calls, yields;
	unsigned calls_per_yield;
	long switches; /* involuntary, of this thread, at the last look */
};

/* A walk over a request's memory: an iovec's, or one piece. */
struct vroom_walk {
	char *at; /* the piece at hand */
	size_t bytes;
	const struct iovec *iov; /* where the next begins, OFFSET bytes into it */
	uint64_t offset;
	uint64_t left; /* bytes, behind the piece at hand */
};

/* What a slot has beside what the hot path uses. */
struct vroom_slot_cold {
	struct vroom_request *request; /* set: the command is a part of this larger request */
	void *bounce; /* DMA memory that data is copied through, kept by the slot */
	size_t bounce_bytes;
	struct vroom_walk copy_to; /* from there at completion, if anything is left of it */
};

struct vroom_qpair_cold {
	struct vroom_qpair *next;      /* of the controller's, in this process */
	struct vroom_slot_cold *slots; /* by command identifier */
	struct vroom_kick kicks[2];    /* of submission and completion queue */
	struct vroom_holdoff holdoff;
	struct vroom_watchdog watchdog;
	struct vroom_request *splitting; /* the one whose parts are not all submitted */
	uint32_t held_slot;  /* first of the free slots that are held back while blocked */
	int32_t slack;	     /* of the completion queue, while blocked */
	char *lists;	     /* DMA memory: VROOM_PRP_LIST_BYTES a slot; NULL: not needed yet */
	size_t bounce_bytes; /* DMA memory that all slots keep for copies */
	int eventfd;	     /* signalled by the completion queue's interrupt; -1: none */
};

/* Sets a window that no address is in, until one is found. */
static inline void vroom_qpair_forget_window(struct vroom_qpair *qp)
{
	qp->window.base = UINTPTR_MAX / 2;
	qp->window.bytes = 2 * qp->ctrlr->page_size;
}

/* Holds all free slots back: nothing is submitted, and each poll comes to vroom_poll_rest(). */
void vroom_qpair_block(struct vroom_qpair *qp);
void vroom_qpair_unblock(struct vroom_qpair *qp);
/* Moves slots that were freed since to those that are held back. */
void vroom_qpair_hold_back(struct vroom_qpair *qp);
/* The opcode and blocks that a slot's command names. */
static inline uint8_t vroom_slot_opcode(const struct vroom_slot *slot)
{
	return (uint8_t)(slot->what >> 24);
}

static inline uint32_t vroom_slot_blocks(const struct vroom_slot *slot)
{
	return slot->what & 0xffffff;
}

/* Commands that may work on a whole drive have a deadline of their own. */
static inline bool vroom_is_long(uint8_t opcode)
{
	return opcode != NVME_CMD_READ && opcode != NVME_CMD_WRITE && opcode != NVME_CMD_COMPARE;
}

/* As vroom_qpair.deadline, for those. */
static inline uint32_t vroom_long_deadline(const struct vroom_watchdog *w)
{
	return w->tick + w->long_ticks + 1;
}

/*
 * request.c: takes the entry whose last word is LAST. 1: *DONE is filled in; 0: there is nothing to
 * hand out; negative: QP's end.
 */
int vroom_complete(struct vroom_qpair *qp, uint32_t last, struct vroom_completion *done);
/* Submits parts of the request that is being split, as many as there are slots for. */
void vroom_request_continue(struct vroom_qpair *qp);
/* Frees the slots' requests and memory; the controller has let go of them. */
void vroom_request_free_all(struct vroom_qpair *qp);

/* wait.c: the interrupt of the queue pair's completion queue. */
int vroom_qpair_connect_interrupt(struct vroom_qpair *qp);
void vroom_qpair_disconnect_interrupt(struct vroom_qpair *qp);

/* watchdog.c */
void vroom_watchdog_init(struct vroom_qpair *qp);
/* Ends QP with ERR, for good: nothing is submitted any more, and each poll returns ERR. */
void vroom_qpair_end(struct vroom_qpair *qp, int err);
/* The same, and adds what was not completed to the reason in vroom_error(). Returns ERR. */
int vroom_qpair_fail(struct vroom_qpair *qp, int err);
/* Deadlines, and whether the controller is still there: 0, or QP's end. NOW: milliseconds. */
int vroom_check_deadlines(struct vroom_qpair *qp, uint64_t now);

#endif
