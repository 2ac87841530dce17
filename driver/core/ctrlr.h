/* SPDX-License-Identifier: BSD-3-Clause */
/* A controller, as the core's files share it. */
#ifndef VROOM_CORE_CTRLR_H
#define VROOM_CORE_CTRLR_H

#include <pthread.h>
#include <sys/types.h>

#include "core/admin.h"
#include "core/dma.h"
#include "transport/transport.h"
#include "vroom.h"

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

#endif
