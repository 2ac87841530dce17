/* SPDX-License-Identifier: BSD-3-Clause */
/* What the parts of the model checker share; model.c says what it explores. */
#ifndef MODEL_H
#define MODEL_H

#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>

#include "vroom.h"

#define SQ_MAX	    5
#define CQ_MAX	    16
#define DEPTH_MAX   4
#define BUFFER_MAX  12
#define ARENA_BYTES 2048
#define STACK_BYTES (64u << 10)
#define QID	    1
/* Commands by index: plain ones from 0 on, then the parts of a request that is split. */
#define SPLIT	     DEPTH_MAX
#define SPLIT_PARTS  3
#define COMMANDS_MAX (SPLIT + SPLIT_PARTS)
/* What nobody may take for anything: left where words have been read for the last time. */
#define POISON UINT64_C(0xdeaddeaddeaddead)

struct config {
	unsigned depth, entries; /* entries: CAP.MQES + 1, which bounds both queues */
	bool weak;		 /* the memory model: ARM-like, else x86-TSO */
	bool aborts, split, sleep, no_barrier;
	bool eager; /* doorbell stores arrive at once */
	uint32_t max_states;
};

enum op { OP_SUBMIT, OP_RING, OP_POLL_ONE, OP_POLL_ALL, OP_RESET, OP_SPLIT, OPS };

/* Of a command, as seen from outside of the driver. */
enum life { FREE, SUBMITTED, FETCHED, POSTED, TAKEN };

/* A store of the host's to a doorbell that the controller does not see yet. */
struct store {
	uint8_t head;	 /* of the completion queue, else the tail of the submission queue */
	uint8_t release; /* with which order */
	uint16_t clears; /* mask of completion queue slots whose loads it comes after */
	uint8_t value;
	uint8_t before; /* mask of submission queue slots whose stores it comes after */
};

struct fetched {
	uint8_t command, cid;
};

/*
 * A state, all of it but the host's stack. Everything in here is a function of what happened; what
 * has no meaning any more is overwritten, so that equal states look equal.
 */
struct world {
	/* memory and doorbells, as the controller sees them */
	uint64_t sq[SQ_MAX][8];
	struct nvme_cqe cq[CQ_MAX];
	uint8_t tail, head;
	uint8_t needs_kick;
	/* the host's stores on their way there */
	struct store buffer[BUFFER_MAX];
	uint8_t buffered;
	uint8_t dirty; /* mask of submission queue slots with stores that may be on their way */
	uint8_t issued_head;
	/* masks of completion queue slots */
	uint16_t unread[4]; /* by word: what was posted there has not been read */
	uint16_t stale[2];  /* by word: a load may still return what was there before */
	uint16_t loose;	    /* given back by a store that does not wait for the host's loads */
	/* the controller */
	uint8_t sq_size, cq_size; /* 0: does not exist */
	uint8_t sq_head, cq_tail, phase, fetches;
	struct fetched fetched[DEPTH_MAX + 1];
	uint8_t posting; /* the entry at its tail is being written */
	struct fetched post;
	uint8_t post_status;
	uint8_t posted[CQ_MAX]; /* which command's completion */
	uint8_t asleep;		/* 1: says so, 2: after its barrier, 3: sleeps */
	/* what is outstanding, and with which status it was completed */
	uint8_t life[COMMANDS_MAX], status[COMMANDS_MAX];
	uint8_t splitting;
	/* the host */
	uint8_t mid; /* it waits for a load inside of OP */
	uint8_t op;
	int8_t ret;
	uint16_t frame; /* bytes of stack in use then */
	jmp_buf env;
	struct vroom_completion out[DEPTH_MAX + 2];
	struct vroom_qpair *qp;
	uint8_t queues_allocated;
	struct {
		uint16_t at, bytes;
	} chunk[6];
	uint8_t chunks;
	_Alignas(64) char arena[ARENA_BYTES];
};

extern struct world w;
extern struct config config;
extern _Alignas(64) char host_stack[STACK_BYTES];
extern const char *fault; /* the property that does not hold, or NULL */
extern char fault_detail[160];

/* Says that a property does not hold. From the host's side it does not return. */
void violated(const char *property, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* host.c: lets the host begin OP, or go on, up to its next load that others have a say in. */
void host_step(enum op op);
void host_init(void);
/* Slot of the completion queue that the controller may write to before the host does anything. */
bool is_writable(unsigned slot);
/* model.c: the doorbell store at INDEX arrives. */
void arrive(unsigned index);
void arrive_all(void);
/* The controller is told of commands, or the host has returned: is there room for them? */
void check_room(void);
void describe_command(struct vroom_io *io, unsigned command);

/* api.c, which is instrumented: the inline functions under test. */
int api_submit(struct vroom_qpair *qp, const struct vroom_io *io);
void api_ring(struct vroom_qpair *qp);
int api_poll(struct vroom_qpair *qp, struct vroom_completion *out, int max);

#endif
