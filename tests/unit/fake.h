/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A transport and a controller in this process, for tests of the driver's core.
 *
 * The controller does nothing by itself. Admin commands are carried out when the admin doorbell is
 * rung (or, with opts.lazy_admin, by fake_run_admin()); I/O commands are fetched and completed by
 * the functions below, in the order that a test wants. All of its state is in shared memory, so it
 * outlives processes that are killed; what they were doing inside the fake counts as done.
 *
 * It checks the driver against the specification as it goes. What is wrong is in fake.fault, and
 * fake_close() fails a test that did not ask for it.
 */
#ifndef FAKE_H
#define FAKE_H

#include <pthread.h>

#include "core/ctrlr.h"
#include "vroom.h"

#define FAKE_QPAIRS    16
#define FAKE_ENTRIES   65536u
#define FAKE_FRAGMENTS 8192
#define FAKE_MAPS      512

struct fake_opts {
	unsigned queue_entries; /* CAP.MQES + 1; 0: 1024 */
	unsigned page_shift;	/* log2 of CAP.MPSMIN's pages; 0: 12 */
	unsigned mdts;		/* as in Identify Controller; 0: no limit */
	unsigned lba_shift;	/* 0: 9 */
	uint64_t blocks;	/* 0: 32768 */
	unsigned dstrd;
	unsigned qpairs; /* 0: FAKE_QPAIRS */
	bool messages;	 /* doorbells are not mapped */
	bool scattered;	 /* a page's IOVA says nothing of the next one's */
	bool pins;
	bool lazy_admin;   /* admin commands wait for fake_run_admin() */
	unsigned io_ms;	   /* vroom_opts.io_timeout_ms; and so on */
	unsigned long_ms;  /* same */
	unsigned admin_ms; /* same */
};

struct fake_queue {
	uint32_t sq_size, cq_size; /* 0: there is none */
	struct nvme_sqe *sq;
	struct nvme_cqe *cq;
	uint32_t sq_head, cq_tail, phase;
	/* fetched and not completed: held[first..last) */
	uint32_t first, last;
	struct nvme_sqe held[2 * FAKE_ENTRIES];
	bool in_use[FAKE_ENTRIES]; /* by command identifier */
};

struct fake_map {
	uint64_t iova, bytes; /* bytes 0: it is gone */
	bool live;
};

/* A stretch of one map's: VA at IOVA. */
struct fake_fragment {
	uint64_t iova;
	uint64_t bytes; /* 0: it is gone */
	char *va;
};

struct fake {
	struct vroom_transport base;
	struct fake_opts opts;
	pthread_mutex_t lock; /* of maps */
	uint64_t cap, asq, acq;
	uint32_t cc, csts, aqa;
	uint32_t doorbell[1024];
	uint32_t message[1024]; /* what was written by message */
	uint32_t sleeps;	/* needs_kick */
	struct fake_map map[FAKE_MAPS];
	struct fake_fragment fragment[FAKE_FRAGMENTS];
	unsigned maps, fragments;
	uint64_t next_iova, random;
	/* what tests look at */
	unsigned mapped, unmapped; /* calls */
	unsigned cq_full;	   /* completions that found no room */
	unsigned sq_rings, cq_rings;
	unsigned admin_commands;
	unsigned zeroed, deallocated; /* blocks */
	unsigned closed;
	bool dead;	  /* alive() says so */
	int map_fails_in; /* N > 0: the Nth dma_map from now on fails */
	int stray_cid;	  /* >= 0: the next admin completion is preceded by one of this */
	uint8_t faulted;  /* fault[] is set */
	char fault[256];
	uint32_t in_fake;
	unsigned char *disk;
	struct fake_queue q[FAKE_QPAIRS + 1];
};

/* A fake, and it opened by the driver. */
struct fake *fake_new(const struct fake_opts *opts);
int fake_bring_up(struct fake *f, struct vroom_ctrlr **out);
struct vroom_ctrlr *fake_open(struct fake *f); /* a failure ends the test */
/* vroom_close(), then fails the test if the driver had done something wrong. */
void fake_close(struct fake *f, struct vroom_ctrlr *c);
void fake_free(struct fake *f);
struct vroom_ns fake_ns(const struct fake *f);

/* Non-zero while this process is inside the fake: a kill then would be no fault of the driver's. */
extern _Thread_local volatile uint32_t fake_inside;

/* Huge pages that are free, to this process; at first none. */
extern size_t fake_huge_bytes;

/* Carries admin commands out whose doorbell was rung. */
void fake_run_admin(struct fake *f);
/* Fetches what was rung of queue QID. How many commands are held now. */
unsigned fake_fetch(struct fake *f, unsigned qid);
unsigned fake_held(const struct fake *f, unsigned qid);
struct nvme_sqe *fake_held_sqe(struct fake *f, unsigned qid, unsigned i);
/* Carries out the Ith of these and posts its completion. False: the queue is full. */
bool fake_complete(struct fake *f, unsigned qid, unsigned i);
/* Posts STATUS (type << 8 | code) for the Ith instead, and moves no data. */
bool fake_refuse(struct fake *f, unsigned qid, unsigned i, unsigned status);
/* Posts whatever completion. */
bool fake_post(struct fake *f, unsigned qid, uint16_t cid, uint64_t result, uint16_t status);
/* Fetches and completes everything, in order. How many. */
unsigned fake_run(struct fake *f, unsigned qid);
/* The same in a random order. */
unsigned fake_run_shuffled(struct fake *f, unsigned qid);

/*
 * A walk over PRP entries by the book (Base 4.1.1), which shares no code with the driver. Calls
 * EACH with every stretch in order; false, and fault[] set: the entries are wrong.
 */
bool fake_walk(struct fake *f, const struct nvme_sqe *sqe, uint64_t bytes,
	       void (*each)(void *arg, char *va, size_t bytes), void *arg);
/* VA of BYTES at IOVA in one piece, or NULL and a fault. */
void *fake_va(struct fake *f, uint64_t iova, uint64_t bytes);

uint64_t fake_random(uint64_t *state);

#endif
