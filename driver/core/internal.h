/* SPDX-License-Identifier: BSD-3-Clause */
/* The core's own view of a controller: what its files share and nobody else sees. */
#ifndef VROOM_INTERNAL_H
#define VROOM_INTERNAL_H

#include <pthread.h>
#include <stdarg.h>
#include <sys/types.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/lock.h"
#include "base/mmio.h"
#include "base/size.h"
#include "transport/address.h"
#include "transport/transport.h"
#include "vroom.h"

#define VROOM_DEFAULT_TIMEOUT_MS 30000
#define VROOM_DEFAULT_QPAIRS	 128
#define VROOM_MAX_QPAIRS	 1024
#define VROOM_MAX_REGIONS	 16
#define VROOM_MAX_EXTENTS	 16384
/* Room for the doorbells of a controller that does not let them be mapped. */
#define VROOM_TRAPPED_BYTES (64ul << 20)
/* DMA memory is contiguous by this much, even where addresses are physical. */
#define VROOM_GRANULE_SHIFT 21u
#define VROOM_GRANULE	    (1ul << VROOM_GRANULE_SHIFT)
/* One command never moves more than this, so that its PRP lists stay small. */
#define VROOM_MAX_TRANSFER (16u << 20)

struct vroom_dma_region {
	void *base;
	size_t bytes;
	int fd;
	unsigned granule_shift;
	uint64_t *iova;
	bool shared;
};

/* An allocated stretch of a DMA region. */
struct vroom_extent {
	uint32_t region;
	pid_t owner;
	uint64_t offset;
	uint64_t bytes;
};

/*
 * What all processes that use a controller share: the admin queue's state, who owns which
 * queue pair, and the bookkeeping of DMA memory. A process that dies inside is survived:
 * the mutex is robust and every step leaves the state usable.
 */
struct vroom_shared {
	pthread_mutex_t lock;
	int failing;	   /* somebody is about to set the next two */
	int failed;	   /* negative errno once the controller is beyond use */
	char failure[256]; /* and why, in words */
	int hinted;	   /* that a job runs far from the device */
	uint16_t admin_cid;
	uint32_t admin_tail;
	uint32_t admin_head;
	uint32_t admin_phase;
	pid_t qpair_owner[VROOM_MAX_QPAIRS + 1]; /* by queue identifier; 0: free */
	uint64_t next_iova;
	uint64_t reserved; /* bytes promised by vroom_dma_reserve() */
	uint32_t regions;
	uint32_t extents;
	struct vroom_extent extent[VROOM_MAX_EXTENTS]; /* sorted by region, then offset */
};

struct vroom_ctrlr {
	struct vroom_transport *transport;
	struct vroom_shared *shared;
	struct vroom_address address;
	struct vroom_opts opts;
	pid_t opener;
	char pool[32]; /* of transport->pool, which it outlives; "": none */
	/* Regions that this process has mapped, by their shared index; base NULL: not here. */
	struct vroom_dma_region region[VROOM_MAX_REGIONS];
	/* admin queue pair, in DMA memory */
	struct nvme_sqe *admin_sq;
	struct nvme_cqe *admin_cq;
	volatile uint32_t *admin_sq_doorbell;
	volatile uint32_t *admin_cq_doorbell;
	void *admin_buffer;
	volatile uint32_t *trapped_doorbells; /* doorbells that are messages have an address here */
	const volatile uint32_t *admin_sleeping;
	unsigned admin_entries;
	bool admin_ready;
	/* what the controller said */
	uint64_t cap;
	uint32_t vs;
	uint32_t cc;
	size_t page_size;
	size_t max_transfer;
	unsigned qpairs;
	struct nvme_id_ctrlr id;
};

/* dma.c */
int vroom_dma_translate(struct vroom_ctrlr *c, const void *va, struct vroom_dma_window *out);
/* Where the controller sees VA, which must come from vroom_dma_alloc(). */
uint64_t vroom_dma_iova(struct vroom_ctrlr *c, const void *va);
/* Frees what the dead process OWNER had allocated. The lock is held. */
void vroom_dma_reclaim_locked(struct vroom_ctrlr *c, pid_t owner);
void vroom_dma_release_all(struct vroom_ctrlr *c);
/* Removes the files of the pool; the controller must be off. Bytes that they had. */
uint64_t vroom_dma_remove_pool(const struct vroom_ctrlr *c);

/* prp.c */
/* List pages that BYTES at the page offset of IOVA need: 0 when PRP1 and PRP2 do. */
unsigned vroom_prp_list_pages(const struct vroom_ctrlr *c, uint64_t offset_in_page, size_t bytes);
/*
 * Describes BYTES at VA (DMA memory) by PRP entries (Base 4.1.1). LIST, at LIST_IOVA, is
 * DMA memory of vroom_prp_list_pages() pages, contiguous for the controller page by page.
 */
int vroom_prp_build(struct vroom_ctrlr *c, const void *va, size_t bytes, uint64_t *list,
		    uint64_t *prp1, uint64_t *prp2);

/* ctrlr.c */
/* Tells the user, through vroom_opts.notice, of something that is no error. */
void vroom_notice(const struct vroom_ctrlr *c, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/*
 * Is a doorbell write a call into an emulator? Only emulated controllers have the command
 * Doorbell Buffer Config (Base 5.8), and only those on a PCI bus trap.
 */
bool vroom_ctrlr_traps(const struct vroom_ctrlr *c);
/* The doorbell of queue QID; *SLEEPING is what vroom_doorbell() looks at. */
int vroom_ctrlr_doorbell(struct vroom_ctrlr *c, unsigned qid, bool completion,
			 volatile uint32_t **doorbell, const volatile uint32_t **sleeping);
void vroom_ctrlr_ring_slow(struct vroom_ctrlr *c, volatile uint32_t *doorbell, uint32_t value);
/* vroom_error() without the controller's address in front. */
const char *vroom_ctrlr_reason(const struct vroom_ctrlr *c);
/*
 * Marks the controller beyond use, for all processes, by the reason in vroom_error(). The
 * first one to do so decides what everybody says. Returns ERR.
 */
int vroom_ctrlr_mark_failed(struct vroom_ctrlr *c, int err);
/* 0, or the error that the controller was marked with, and its reason in vroom_error(). */
int vroom_ctrlr_failed(const struct vroom_ctrlr *c);
/* 0, or what is wrong now: failed before, gone, or fatal status. */
int vroom_ctrlr_health(struct vroom_ctrlr *c);

/* admin.c */
int vroom_admin_init(struct vroom_ctrlr *c, unsigned entries);
int vroom_admin_locked(struct vroom_ctrlr *c, const struct nvme_sqe *sqe, void *buf, size_t bytes,
		       bool write, struct nvme_cqe *cqe);
int vroom_admin_identify(struct vroom_ctrlr *c, uint8_t cns, uint32_t nsid, void *buf);

/* pacing.c: the search for the moment at which ringing a doorbell costs least. */
struct vroom_pacing {
	uint64_t hold;	   /* ticks to wait before a doorbell write */
	uint64_t quickest; /* ticks of the quickest write so far */
	uint64_t cost;	   /* ticks spent holding and writing since the last step */
	uint64_t last_cost;
	unsigned rings; /* since the last step */
	bool longer;	/* the direction of the next step */
};
/* Rings like vroom_ctrlr_ring_slow(), when the time has come. */
void vroom_pacing_ring(struct vroom_pacing *p, struct vroom_ctrlr *c, volatile uint32_t *doorbell,
		       uint32_t value);

/* qpair.c: deletes queue pairs whose owner died and frees its memory. The lock is held. */
void vroom_qpair_reclaim_locked(struct vroom_ctrlr *c);

#endif
