/* SPDX-License-Identifier: BSD-3-Clause */
/* What the core's files share. */
#ifndef VROOM_CORE_H
#define VROOM_CORE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/base.h"
#include "transport/transport.h"
#include "vroom.h"
#include "vroom_qpair.h"

/*
 * Memory that controllers reach. A space is what one controller sees: stretches of memory, each at
 * an IOVA. A pool is a few large regions of shared memory and an allocator over them; each region
 * is in the spaces of all controllers that use the pool. Forked processes share both, and a kill at
 * any instruction is survived: each change becomes valid by one store. What a failed ("suspect")
 * controller may still write to is, once freed, kept back until all controllers of its pool are
 * known to be off.
 */
#define VROOM_MAX_MAPPINGS 256 /* of a space, over all processes */
#define VROOM_MAX_RANGES   1024
#define VROOM_MAX_REGIONS  32 /* of a pool, in one process; each is larger than the one before */
#define VROOM_MAX_SPACES   64 /* that reach a pool */
#define VROOM_DMA_UNIT	   4096ul      /* of allocation, and the least alignment */
#define VROOM_DMA_MAX	   (1ul << 42) /* in one piece: units are counted in 32 bits */
#define VROOM_HUGE_SHIFT   21u	       /* physical memory is contiguous by pages of 2 MiB */
#define VROOM_HUGE_PAGE	   (1ul << VROOM_HUGE_SHIFT)

/* A stretch that the controller was told of. */
struct vroom_dma_mapping {
	uint64_t iova;
	uint64_t bytes; /* 0: unused */
	pid_t creator;
	uint32_t file; /* number of its name, 0: none; see vroom_dma_space.prefix */
};

struct vroom_dma_space_shared {
	pthread_mutex_t lock;
	int suspect; /* the controller may write where it likes until it is known to be off */
	uint32_t next_file;
	struct vroom_dma_mapping mapping[VROOM_MAX_MAPPINGS];
};

struct vroom_dma_space {
	struct vroom_transport *transport;
	const char *name; /* of the controller, for messages */
	/*
	 * Of files in hugetlbfs; "" where addresses are not physical. Where they are, pages must
	 * outlive a killed process, by names that the controller's next owner removes.
	 */
	char prefix[32];
	struct vroom_dma_space_shared *shared;
	struct vroom_dma_range range[VROOM_MAX_RANGES]; /* in no order */
	unsigned ranges;
};

int vroom_space_init(struct vroom_dma_space *s, struct vroom_transport *t, const char *name);
/* Forgets everything. Files with names are removed if REMOVE; the controller must be off then. */
void vroom_space_free(struct vroom_dma_space *s, bool remove);

/* Removes files with names, FILE or all (0); the controller must be off. Bytes that they had. */
uint64_t vroom_space_remove_files(const struct vroom_dma_space *s, uint32_t file);

/* Makes MAP's memory reachable; file: 0, or its number among the space's names. */
int vroom_space_map(struct vroom_dma_space *s, struct vroom_dma_map *map, uint32_t file);
/* Takes the memory at VA, mapped as one, away again. -ENOENT: it is not mapped. */
int vroom_space_unmap(struct vroom_dma_space *s, const void *va, size_t bytes);
/* Takes away what dead processes had mapped. Nothing may use it any more. */
void vroom_space_unmap_dead(struct vroom_dma_space *s);

/* The range around VA; -EFAULT: the controller does not see it. */
int vroom_space_find(struct vroom_dma_space *s, const void *va, struct vroom_dma_range *out);
/* Does the controller see any of BYTES at VA? */
bool vroom_space_overlaps(struct vroom_dma_space *s, const void *va, size_t bytes);
/* Where the controller sees VA, which must be memory of its own (queues, lists). */
uint64_t vroom_space_iova(struct vroom_dma_space *s, const void *va);

void vroom_space_set_suspect(struct vroom_dma_space *s, bool suspect);
bool vroom_space_suspect(const struct vroom_dma_space *s);

struct vroom_dma_region {
	void *base;
	size_t bytes;
	int fd;
	unsigned page_shift;
	uint32_t file;	 /* number of its name in the space of the pool's owner */
	uint64_t *block; /* shared, by unit: what begins there; see dma_pool.c */
};

struct vroom_dma_pool_shared {
	pthread_mutex_t lock;
	bool tainted; /* a suspect controller has gone without being known to be off */
};

struct vroom_dma_pool {
	struct vroom_dma_pool_shared *shared;
	const struct vroom_dma_space *owner;
	struct vroom_dma_space *space[VROOM_MAX_SPACES];
	unsigned spaces;
	struct vroom_dma_region region[VROOM_MAX_REGIONS];
	unsigned regions;
};

/* A pool whose regions are for OWNER, and others that vroom_pool_share() adds. */
int vroom_pool_init(struct vroom_dma_pool *p, struct vroom_dma_space *owner);
void vroom_pool_free(struct vroom_dma_pool *p);

/* Lets SPACE reach all regions, now and later. */
int vroom_pool_share(struct vroom_dma_pool *p, struct vroom_dma_space *space);
/* SPACE is about to go, and known to be OFF or not. */
void vroom_pool_unshare(struct vroom_dma_pool *p, const struct vroom_dma_space *space, bool off);

/* Adds a region that holds an allocation of BYTES at ALIGN. */
int vroom_pool_grow(struct vroom_dma_pool *p, size_t bytes, size_t align);
/* Is there room for BYTES in one piece? */
bool vroom_pool_has_room(struct vroom_dma_pool *p, size_t bytes);

/* BYTES aligned to ALIGN, a power of two, or NULL: there is no room. Belongs to this process. */
void *vroom_pool_alloc(struct vroom_dma_pool *p, size_t bytes, size_t align);
void vroom_pool_free_memory(struct vroom_dma_pool *p, void *mem);
/* Frees what dead processes had. Their queue pairs must have been deleted. */
void vroom_pool_free_dead(struct vroom_dma_pool *p);

/*
 * Physical Region Page entries and lists (Base 4.1.1). PRP1 names the first page, from any offset
 * on; with two pages in all PRP2 names the second, with more it names a list of them. A list holds
 * VROOM_PRP_LIST_ENTRIES at most, so it never goes on in another: commands are not larger.
 */
#define VROOM_PRP_LIST_BYTES   4096u
#define VROOM_PRP_LIST_ENTRIES (VROOM_PRP_LIST_BYTES / sizeof(uint64_t))

/* A list being written. */
struct vroom_prps {
	size_t page_size;
	struct vroom_dma_range range; /* where memory was found last, or is likely to be found */
	uint64_t *list;		      /* VROOM_PRP_LIST_ENTRIES long */
	uint64_t prp1;
	uint64_t second; /* the second entry, which the list begins with if there is a third */
	unsigned pages;
	bool open; /* the last page ended before its end: nothing can follow */
};

/* Begins a list in LIST for pages of PAGE_SIZE bytes. */
void vroom_prp_begin(struct vroom_prps *p, size_t page_size, uint64_t *list);

/*
 * Adds BYTES at VA. 0; -EFAULT: SPACE does not see all of it; -EINVAL: PRP entries cannot describe
 * it (alignment, or a hole between pieces); -E2BIG: the list is full.
 */
int vroom_prp_add(struct vroom_prps *p, struct vroom_dma_space *space, const void *va,
		  size_t bytes);

/* PRP2, with the list at LIST_IOVA. */
uint64_t vroom_prp_second(const struct vroom_prps *p, uint64_t list_iova);

/*
 * Doorbells that take more than a store: messages, sleeping controllers, traps of an emulator. A
 * trap calls it under a lock that it holds for some microseconds after a completion: who rings at
 * once sleeps until the lock is free, who rings late finds the emulator asleep. The moment in
 * between is searched for: the holdoff is varied a step at a time, and the direction kept while
 * holding and ringing together get cheaper. Only with next to nothing in flight: else the emulator
 * is awake.
 */

/* The search for a trap's best moment; times in ticks. */
struct vroom_holdoff {
	uint64_t hold;	   /* to wait before a doorbell write */
	uint64_t quickest; /* write so far */
	uint64_t cost;	   /* of holding and writing since the last step */
	uint64_t last_cost;
	unsigned rings; /* since the last step */
	bool longer;	/* the direction of the next step */
	/* to know when one command is in flight */
	const struct vroom_sq *sq;
	const struct vroom_cq *cq;
	uint32_t last_tail, last_head, in_flight;
};

/* How a doorbell is rung where a store is not enough. */
struct vroom_kick {
	struct vroom_transport *transport;
	uint32_t offset; /* of the register in BAR0 */
	uint32_t word;	 /* what stands for it where the register is written by the transport */
	bool message;	 /* it is */
	struct vroom_holdoff *holdoff; /* of a submission queue whose doorbell traps, or NULL */
};

/*
 * Sets DB up as the doorbell of queue QID (PCIe 3.1.2), with KICK, which stays as long as DB is
 * used. DSTRD: CAP's. TRAPS: a mapped register is written by the transport all the same.
 * -ENOTSUP: BAR0 ends before it.
 */
int vroom_doorbell_init(struct vroom_doorbell *db, struct vroom_kick *kick,
			struct vroom_transport *t, unsigned qid, bool completion, unsigned dstrd,
			bool traps);

/*
 * The admin queue: one command at a time, under the lock that all processes of a controller share.
 * Who finds that more was submitted than completed inherits it from a process that died, and waits
 * for those completions first.
 */
struct vroom_ctrlr;
#define VROOM_ADMIN_ENTRIES 32u	  /* of either queue: a power of two, for counters run over */
#define VROOM_ADMIN_BYTES   8192u /* that a command moves at most: two pages */

struct vroom_admin_shared {
	uint32_t submitted; /* commands since it was enabled; stored before the doorbell */
	uint32_t completed; /* completions that were taken */
};

struct vroom_admin {
	struct vroom_sq sq;
	struct vroom_cq cq;
	struct vroom_kick kicks[2];
	void *buffer; /* VROOM_ADMIN_BYTES of DMA memory, aligned to as many: contiguous */
	struct vroom_admin_shared *shared;
};

/*
 * Memory and doorbells of queue pair QID (0: the admin queue), whose sizes are set. KICKS, of
 * submission and completion queue, stay as long as those are used. TRAPS: see
 * vroom_doorbell_init().
 */
int vroom_queues_init(struct vroom_ctrlr *c, unsigned qid, struct vroom_sq *sq, struct vroom_cq *cq,
		      struct vroom_kick kicks[2], bool traps);

/* Queues and buffer; the controller is disabled. */
int vroom_admin_init(struct vroom_ctrlr *c);

/* vroom_admin() for a caller who has the controller's lock. */
int vroom_admin_locked(struct vroom_ctrlr *c, const struct nvme_sqe *sqe, void *buf, size_t bytes,
		       struct nvme_cqe *cqe);

/* Identify (Base 5.17) into the NVME_IDENTIFY_BYTES at BUF. */
int vroom_admin_identify(struct vroom_ctrlr *c, uint8_t cns, uint32_t nsid, void *buf);

/* Set Features (Base 5.27). */
int vroom_admin_set_feature(struct vroom_ctrlr *c, uint8_t feature, const uint32_t cdw11_to_15[5],
			    struct nvme_cqe *cqe);

/* A controller, as the core's files share it. */
#define VROOM_MAX_QPAIRS     1024
#define VROOM_HMB_MAX_PIECES 64u

/* Host Memory Buffer (Base 5.27.1.10): memory that a drive without DRAM of its own asks for. */
struct vroom_hmb {
	size_t bytes; /* that the controller uses; 0: none */
	struct nvme_hmb_descriptor *list;
	void *piece[VROOM_HMB_MAX_PIECES];
	unsigned pieces;
};

/*
 * What all processes that use a controller share. A process that dies inside is survived: locks
 * are robust, and every step leaves the state usable.
 */
struct vroom_ctrlr_shared {
	pthread_mutex_t lock;
	pthread_mutex_t failure_lock; /* for who sets the next two */
	int failed;		      /* negative errno once the controller is beyond use */
	char failure[256];	      /* and why, in words; there before FAILED is */
	int hinted;		      /* that a job runs far from the device */
	struct vroom_admin_shared admin;
	pid_t qpair_owner[VROOM_MAX_QPAIRS + 1]; /* by queue identifier; 0: free */
};

struct vroom_ctrlr {
	struct vroom_transport *transport;
	struct vroom_ctrlr_shared *shared;
	struct vroom_address address;
	const char *name; /* the address as written, for messages */
	struct vroom_opts opts;
	pid_t opener;
	struct vroom_dma_space space;
	struct vroom_dma_pool pool;
	struct vroom_ctrlr *lender; /* whose pool it shares, or NULL */
	struct vroom_admin admin;
	struct vroom_qpair *first_qpair; /* of this process */
	struct vroom_hmb hmb;
	bool ready; /* enabled, so that CSTS.RDY is to be expected */
	/* what the controller said */
	uint64_t cap;
	uint32_t vs;
	uint32_t cc;
	size_t page_size;
	size_t max_transfer; /* bytes; its PRP list is one page */
	unsigned qpairs;
	struct nvme_id_ctrlr id;
};

/* The controller that sees memory as SPACE. */
static inline struct vroom_ctrlr *vroom_ctrlr_of(struct vroom_dma_space *space)
{
	return (struct vroom_ctrlr *)(void *)((char *)space - offsetof(struct vroom_ctrlr, space));
}

/*
 * vroom_open() without an address' device: brings up the controller behind T, which is the
 * controller's from then on. C is zero but for address, name, opts and opener.
 */
int vroom_ctrlr_bring_up(struct vroom_ctrlr *c, struct vroom_transport *t);

/* Lends memory if the controller prefers some and there is enough; what cannot be is no error. */
void vroom_hmb_lend(struct vroom_ctrlr *c);
void vroom_hmb_take_back(struct vroom_ctrlr *c);

/* Tells the user, through vroom_opts.notice, of something that is no error. */
void vroom_notice(const struct vroom_ctrlr *c, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/*
 * Is a doorbell write a call into an emulator? Only emulated controllers have the command
 * Doorbell Buffer Config (Base 5.8), and only those on a PCI bus trap.
 */
bool vroom_ctrlr_traps(const struct vroom_ctrlr *c);

/* vroom_error() without the controller's address in front. */
const char *vroom_ctrlr_reason(const struct vroom_ctrlr *c);

/*
 * Marks the controller beyond use, for all processes, by the reason in vroom_error(); the first
 * one's is what everybody says. Memory that it may still write to is kept back from now on.
 * Returns ERR.
 */
int vroom_ctrlr_mark_failed(struct vroom_ctrlr *c, int err);

/* 0, or the error that the controller was marked with, and its reason in vroom_error(). */
int vroom_ctrlr_failed(const struct vroom_ctrlr *c);

/* 0, or what is wrong now: failed before, gone, or fatal status. */
int vroom_ctrlr_health(struct vroom_ctrlr *c);

/* Deletes queue pairs and frees memory of processes that died. The lock is not held. */
void vroom_ctrlr_reclaim(struct vroom_ctrlr *c);

/* I/O queue pairs, as qpair.c, request.c, watchdog.c and wait.c share them. */

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
	uint64_t tick_ms;	/* milliseconds of a deadline tick */
	uint32_t deadline_tick; /* now */
	uint32_t ticks;		/* of a command's deadline */
	uint32_t long_ticks;	/* of commands that may work on a whole drive */
	uint64_t next_tick_ms;	/* when it advances */
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

#define VROOM_NOWHERE (UINTPTR_MAX / 2) /* the base of a range that no address is in */

/* Relaxed: who unregisters memory, in another thread, may set the base to VROOM_NOWHERE. */
static inline void vroom_qpair_set_range(struct vroom_qpair *qp, const struct vroom_dma_range *r)
{
	qp->range.bytes = r->bytes;
	qp->range.delta = r->delta;
	__atomic_store_n(&qp->range.base, r->base, __ATOMIC_RELAXED);
}

/* Holds all free slots back: nothing is submitted, and each poll comes to vroom_poll_rest(). */
void vroom_qpair_block(struct vroom_qpair *qp);
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
	return w->deadline_tick + w->long_ticks + 1;
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
/* Deadlines, and whether the controller is still there: 0, or QP's end. NOW: milliseconds. */
int vroom_check_deadlines(struct vroom_qpair *qp, uint64_t now);

#endif
