/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * vroom: a userspace NVMe driver. This header is all that a program includes.
 *
 *	vroom_open()            bring a controller up, by address
 *	vroom_namespace()       what a namespace looks like
 *	vroom_dma_alloc()       memory that the controller can reach
 *	vroom_qpair_create()    an I/O queue pair, owned by one thread
 *	vroom_prep_read()...    describe a command (a pure function)
 *	vroom_submit()          place it in the submission queue
 *	vroom_ring()            one doorbell for all that was submitted
 *	vroom_poll()            reap completions, each with its tag
 *
 * The last four are inline, in vroom_qpair.h. examples/hello.c is a whole program.
 *
 * Errors: functions return 0 or a negative errno; vroom_error() then says in one line
 * what failed, on which device, and what to do. NVMe status words are passed on untouched.
 *
 * Threads and processes: a controller may be used by several threads, and by processes
 * forked after vroom_open(); its functions take a lock shared among them. A queue pair
 * belongs to the one thread that uses it and takes no lock.
 *
 * Ownership: who creates destroys. vroom_close() in the process that called vroom_open()
 * shuts the controller down; in a forked process it only lets go.
 */
#ifndef VROOM_H
#define VROOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vroom_nvme.h"
#include "vroom_qpair.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* The version of the library, as vroom.pc and `vroom --version` have it. */
#define VROOM_VERSION "0.2.0"

struct vroom_ctrlr;

/* What vroom_open() may be told; zero everywhere is a good start. */
struct vroom_opts {
	/* sizeof(struct vroom_opts), or 0 for that of this header: so that it can grow. */
	size_t size;
	/* Milliseconds that a command may take before its queue pair fails; 0: 30000. */
	unsigned io_timeout_ms;
	/*
	 * The same for commands that may work on a whole drive: flush, deallocate, write zeroes,
	 * and vroom_prep_raw()'s; 0: ten times io_timeout_ms.
	 */
	unsigned long_timeout_ms;
	/* Milliseconds for admin commands and for the transport's own messages; 0: 30000. */
	unsigned admin_timeout_ms;
	/* A plain file as address: at least this many bytes long, created or extended (sparse). */
	uint64_t file_bytes;
	/* Bytes of DMA memory to have ready before any fork, in one piece; more is added on demand.
	 */
	size_t dma_bytes;
	/* I/O queue pairs to ask for; 0: 128. The controller may grant fewer. */
	unsigned qpairs;
	/* Completions raise interrupts, so that vroom_wait() can sleep; polling works as well. */
	bool interrupts;
	/* "pci" or "vfio" for a PCI function; NULL: what fits the driver that has the device. */
	const char *transport;
	/* A drive that asks for a host memory buffer (Base 5.27.1.10) gets none. */
	bool no_host_memory;
	/* Told, in one line, of what is no error but worth knowing; NULL: stderr is. */
	void (*notice)(void *arg, const char *line);
	void *notice_arg;
};

/*
 * Splits ADDRESS: KEY names the controller, the same for any way to write it; *NSID the
 * namespace, 0 when not said; *PATH (may be NULL) the plain file behind it, or "".
 * KEY and PATH hold VROOM_ADDRESS_MAX bytes. Errors as vroom_open()'s.
 */
#define VROOM_ADDRESS_MAX 8192
int vroom_address_key(const char *address, char *key, uint32_t *nsid, char *path);

/*
 * What vroom_open() calls. -EPROTO: this program was compiled with the headers of another release
 * of the library, whose inline functions do not fit.
 */
int vroom_open_abi(unsigned abi, size_t opts_size, const char *address,
		   const struct vroom_opts *opts, struct vroom_ctrlr **out);

/*
 * Opens the controller at ADDRESS (docs/addresses.md): checks CAP, disables and enables
 * the controller, identifies it and asks for queues (Base 3.5.1). *out is the caller's
 * until vroom_close(). OPTS may be NULL.
 * Errors: -ENOENT no such target, -EACCES, -EBUSY in use, -EINVAL bad address, -ENODEV not
 * an NVMe controller or gone, -ETIMEDOUT no answer in time, -EIO it refused a step.
 */
static inline int vroom_open(const char *address, const struct vroom_opts *opts,
			     struct vroom_ctrlr **out)
{
	return vroom_open_abi(VROOM_ABI, sizeof(struct vroom_opts), address, opts, out);
}

/*
 * Lets go of CTRLR; in the process that opened it, notifies the controller of a normal
 * shutdown first (Base 3.6.1). Queue pairs must have been destroyed. NULL is fine.
 */
void vroom_close(struct vroom_ctrlr *ctrlr);

/* What the controller said of itself. Pointers live as long as the controller. */
struct vroom_ctrlr_info {
	const char *address;		/* as it was opened */
	const char *transport;		/* "vfio-user", "vfio" or "pci" */
	const struct nvme_id_ctrlr *id; /* Identify Controller */
	uint64_t cap;			/* CAP register */
	uint32_t vs;			/* VS register */
	unsigned max_queue_entries;	/* CAP.MQES + 1 */
	unsigned max_qpairs;		/* I/O queue pairs granted */
	size_t max_transfer;		/* bytes a single command moves at most */
	size_t page_size;		/* bytes, CC.MPS */
	bool doorbells_mapped;		/* doorbells are plain stores */
	uint32_t nsid;			/* of the address' ,ns=N; 0: it names none */
	size_t host_memory;		/* bytes lent as host memory buffer */
};
void vroom_ctrlr_info(const struct vroom_ctrlr *ctrlr, struct vroom_ctrlr_info *out);

/*
 * The active namespaces in rising order: fills up to MAX of NSIDS, returns how many there
 * are, or a negative errno. Source: the active namespace list (Base 5.17.2.2).
 */
int vroom_namespaces(struct vroom_ctrlr *ctrlr, uint32_t *nsids, int max);

/*
 * Identifies namespace NSID (0: the address' own) into *out, a plain value with no owner.
 * RAW may be NULL, else receives the 4096 bytes of Identify Namespace.
 * Errors: -ENXIO no such active namespace, -ENOTSUP a format that vroom cannot use.
 */
int vroom_namespace(struct vroom_ctrlr *ctrlr, uint32_t nsid, struct vroom_ns *out,
		    struct nvme_id_ns *raw);

/*
 * Makes sure that BYTES of DMA memory can be allocated in one piece. Call it before forking: memory
 * added later by a forked process can be reached by that process and the controller only.
 */
int vroom_dma_reserve(struct vroom_ctrlr *ctrlr, size_t bytes);

/*
 * Lets CTRLR reach the DMA memory that OWNER has now, so that a buffer from one can be used
 * with both. OWNER's must outlive CTRLR's use of it.
 */
int vroom_dma_share(struct vroom_ctrlr *ctrlr, struct vroom_ctrlr *owner);

/*
 * BYTES (at least 1) of memory that CTRLR can reach, aligned to ALIGN (a power of two; 0: a page),
 * or NULL with vroom_error(). Pages of 4 KiB are the unit. Shared with processes forked later.
 * Contents are undefined. It belongs to the process that asked; when that has ended it is freed.
 * Free it, after its last command has completed, from any process. What a controller that failed
 * may still write to is not handed out again before that one is known to be off.
 */
void *vroom_dma_alloc(struct vroom_ctrlr *ctrlr, size_t bytes, size_t align);
void vroom_dma_free(struct vroom_ctrlr *ctrlr, void *mem);

/*
 * Lets CTRLR reach BYTES of the caller's own memory at MEM, both multiples of 4096: buffers in it
 * are not copied then. FD is what MEM maps from FD_OFFSET on, MAP_SHARED (a memfd, a file in
 * hugetlbfs), for controllers in other processes (vfio-user); -1 does for vfio. For this process,
 * and those that it forks later. The memory must stay until vroom_dma_unregister(). Errors:
 * -EINVAL, -ENOTSUP the transport cannot (pci: addresses are physical), -ENOMEM.
 */
int vroom_dma_register(struct vroom_ctrlr *ctrlr, void *mem, size_t bytes, int fd,
		       uint64_t fd_offset);
/* -ENOENT: it was not registered so. Commands on it must have completed. */
int vroom_dma_unregister(struct vroom_ctrlr *ctrlr, void *mem, size_t bytes);

/*
 * Creates an I/O queue pair that holds DEPTH commands, or as many as CAP.MQES allows
 * (see vroom_qpair_depth()). Creation and deletion are admin commands (Base 5.4, 5.5).
 * Errors: -ENOSPC the controller has no more queue pairs, -ENOMEM, -EIO, -ETIMEDOUT.
 */
int vroom_qpair_create(struct vroom_ctrlr *ctrlr, unsigned depth, struct vroom_qpair **out);

/* Deletes the queues and frees QP. Commands still outstanding are dropped. NULL is fine. */
void vroom_qpair_destroy(struct vroom_qpair *qp);

/*
 * Sleeps until one of the COUNT queue pairs QPS may have completions to reap, or TIMEOUT_MS
 * have passed. Their controllers must have been opened with vroom_opts.interrupts. Commands
 * that were not rung are. Returns 1, 0 after the time-out, or a negative errno like vroom_poll().
 */
int vroom_wait(struct vroom_qpair *const *qps, unsigned count, unsigned timeout_ms);

/*
 * Runs one admin command and waits for it. SQE's cid, prp1 and prp2 are filled in. BUF may
 * lie anywhere (up to 8192 bytes are copied through DMA memory); which way they go is in the
 * opcode's bits 1:0 (Base 3.3.3.1). CQE may be NULL. Returns 0 when the command completed, whatever
 * its status: look at cqe->status; with CQE NULL an unsuccessful status is -EIO.
 */
int vroom_admin(struct vroom_ctrlr *ctrlr, const struct nvme_sqe *sqe, void *buf, size_t bytes,
		struct nvme_cqe *cqe);

/* Words for a status: "LBA Out of Range (00h/80h)". Valid until the thread calls again. */
const char *vroom_status_str(uint16_t status);

/* A positive errno that fits STATUS: ENOSPC for Capacity Exceeded, ...; 0 for success. */
int vroom_status_errno(uint16_t status);

/* The last failure of this thread in one line, without a newline; "" if none. */
const char *vroom_error(void);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop

#endif
