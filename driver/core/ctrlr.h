/* SPDX-License-Identifier: BSD-3-Clause */
/* A controller, as the core's files share it. */
#ifndef VROOM_CORE_CTRLR_H
#define VROOM_CORE_CTRLR_H

#include <pthread.h>
#include <sys/types.h>

#include "core/admin.h"
#include "core/dma.h"
#include "core/hmb.h"
#include "transport/transport.h"
#include "vroom.h"

#define VROOM_MAX_QPAIRS 1024
/* A command never moves more than this, so that its PRP list is one page. */
#define VROOM_MAX_TRANSFER(page_size) ((page_size)*VROOM_PRP_LIST_ENTRIES)

/*
 * What all processes that use a controller share. A process that dies inside is survived: the
 * mutex is robust, and every step leaves the state usable.
 */
struct vroom_ctrlr_shared {
	pthread_mutex_t lock;
	int failing;	   /* somebody is about to set the next two */
	int failed;	   /* negative errno once the controller is beyond use */
	char failure[256]; /* and why, in words */
	int hinted;	   /* that a job runs far from the device */
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
	struct vroom_hmb hmb;
	bool ready; /* enabled, so that CSTS.RDY is to be expected */
	/* what the controller said */
	uint64_t cap;
	uint32_t vs;
	uint32_t cc;
	size_t page_size;
	size_t max_transfer;
	unsigned qpairs;
	struct nvme_id_ctrlr id;
};

/* The controller that sees memory as SPACE. */
static inline struct vroom_ctrlr *vroom_ctrlr_of(struct vroom_dma_space *space)
{
	return (struct vroom_ctrlr *)(void *)((char *)space - offsetof(struct vroom_ctrlr, space));
}

/*
 * Brings up the controller behind T, which is the controller's from then on: vroom_open() without
 * an address' device. C is zero but for address, name, opts
 * and opener.
 */
int vroom_ctrlr_bring_up(struct vroom_ctrlr *c, struct vroom_transport *t);

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
 * Marks the controller beyond use, for all processes, by the reason in vroom_error(). The
 * first one to do so decides what everybody says. Memory that it may still write to is kept
 * back from now on. Returns ERR.
 */
int vroom_ctrlr_mark_failed(struct vroom_ctrlr *c, int err);

/* 0, or the error that the controller was marked with, and its reason in vroom_error(). */
int vroom_ctrlr_failed(const struct vroom_ctrlr *c);

/* 0, or what is wrong now: failed before, gone, or fatal status. */
int vroom_ctrlr_health(struct vroom_ctrlr *c);

/* Deletes queue pairs and frees memory of processes that died. The lock is not held. */
void vroom_ctrlr_reclaim(struct vroom_ctrlr *c);

#endif
