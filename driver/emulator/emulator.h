/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The emulated NVMe controller: a vfio-user server (server.c) around a controller
 * (ctrlr.c: registers, queues and the poll loop; admin.c, io.c: commands), namespaces
 * (ns.c), the client's memory (memory.c) and a model of a drive's timing (timing.c).
 *
 * One thread does all. It trusts nothing that a client wrote: an entry is copied before it
 * is looked at, and every address is checked against the client's mappings.
 */
#ifndef VROOM_EMULATOR_H
#define VROOM_EMULATOR_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "vroom_nvme.h"

#define EMU_MAX_NS	  16
#define EMU_MAX_QUEUES	  256
#define EMU_MAX_REGIONS	  256
#define EMU_ADMIN_ENTRIES 4096
#define EMU_ERROR_LOG	  64
#define EMU_AER_LIMIT	  4
#define EMU_LBA_FORMATS	  2 /* 512 and 4096 bytes */

enum emu_ns_kind { EMU_NS_FILE, EMU_NS_MEMORY, EMU_NS_NULL };

struct emu_ns {
	enum emu_ns_kind kind;
	int fd; /* file */
	char path[PATH_MAX];
	uint8_t *memory; /* memory: zero where deallocated */
	uint64_t bytes;
	uint64_t blocks;
	uint8_t lba_shift;
	bool read_only;
	uint8_t uuid[16];
};

/* How a drive takes its time; all zero: as fast as we can. Nanoseconds. */
struct emu_timing {
	uint64_t read_latency_ns;
	uint64_t write_latency_ns;
	unsigned channels; /* commands served at the same time; 0: any number */
	double read_iops;  /* caps; 0: none */
	double write_iops;
	double read_bandwidth; /* bytes a second */
	double write_bandwidth;
	uint64_t write_buffer;	/* bytes that are written fast (an SLC cache); 0: any number */
	double drain_bandwidth; /* bytes a second that the buffer is emptied by, always */
};

enum emu_fault_kind {
	EMU_FAULT_NONE,
	EMU_FAULT_DROP,	 /* command N never completes */
	EMU_FAULT_FATAL, /* at command N: CSTS.CFS, and silence */
	EMU_FAULT_EXIT,	 /* at command N: the process ends */
	EMU_FAULT_CID,	 /* command N completes with a wrong identifier */
	EMU_FAULT_ERROR, /* LBA N cannot be read: Unrecovered Read Error */
};

struct emu_options {
	const char *socket_path; /* listen here, or */
	int socket_fd;		 /* serve this connected socket and end with it; -1: none */
	int report_fd;		 /* where a failure to start is said; -1: standard error */
	uint64_t extend;	 /* a file that is shorter is made this long */
	uint64_t mdts;		 /* bytes, 4096 * 2^n; 0: no limit */
	unsigned queues;	 /* I/O queue pairs */
	unsigned queue_entries;	 /* CAP.MQES + 1 */
	unsigned dstrd;
	unsigned mpsmin;
	bool mmap;    /* doorbells may be mapped */
	bool vwc;     /* volatile write cache */
	uint64_t hmb; /* bytes of host memory that the drive asks for */
	const char *serial;
	struct emu_timing timing;
	enum emu_fault_kind fault;
	uint64_t fault_at;
	struct emu_ns ns[EMU_MAX_NS];
	unsigned nr_ns;
};

/* A stretch of the client's memory. */
struct emu_region {
	uint64_t iova;
	uint64_t bytes;
	char *va; /* NULL: announced without a file to map */
	bool writeable;
};

struct emu_cq {
	struct nvme_cqe *entries; /* NULL: no such queue */
	uint32_t size, tail, head;
	uint16_t id, vector, users;
	uint8_t phase;
	bool interrupts, notify;
};

struct emu_sq {
	const struct nvme_sqe *entries; /* NULL: no such queue */
	struct emu_cq *cq;
	uint32_t size, head;
	uint16_t id;
	bool stopped; /* its doorbell was given nonsense */
};

/* A command whose completion waits for its time. */
struct emu_pending {
	uint64_t due_ns;
	struct emu_sq *sq;
	struct nvme_cqe cqe;
};

/* The host memory that the drive was lent. */
struct emu_hmb {
	uint64_t list; /* of descriptors */
	uint32_t pieces, pages;
};

struct emu_counters {
	uint64_t reads, writes, read_bytes, written_bytes, errors, shutdowns;
};

struct emu {
	struct emu_options opts;
	/* properties */
	uint64_t cap, asq, acq;
	uint32_t cc, csts, aqa, intms;
	/* BAR0's mapped part: doorbells, then the page of the sleep word */
	char *bar0;
	int bar0_fd;
	size_t bar0_bytes, area_bytes, sleep_word_offset;
	volatile uint32_t *sleep_word;
	size_t page_size;
	/* queues by identifier, 0 is the admin queue; active lists those to poll */
	struct emu_sq sq[EMU_MAX_QUEUES + 1];
	struct emu_cq cq[EMU_MAX_QUEUES + 1];
	struct emu_sq *active[EMU_MAX_QUEUES + 1];
	unsigned nr_active, nr_cqs;
	bool frozen; /* fatal status: nothing is processed until a reset */
	/* client memory */
	struct emu_region region[EMU_MAX_REGIONS];
	unsigned nr_regions;
	struct emu_region *last_region;
	struct iovec *iov; /* of the command at hand */
	unsigned max_iov;
	void *scratch; /* for compare and verify */
	size_t scratch_bytes;
	/* admin state */
	uint16_t aer_cid[EMU_AER_LIMIT];
	unsigned nr_aer;
	uint32_t features[256];
	struct nvme_error_log errors[EMU_ERROR_LOG]; /* newest first */
	struct emu_counters count;
	struct emu_hmb hmb;
	/* timing */
	struct emu_pending *pending; /* binary heap by due time */
	unsigned nr_pending, max_pending;
	uint64_t *channel_free_ns;
	double next_slot_ns[2], next_byte_ns[2]; /* read, write */
	double buffered_bytes;			 /* in the write buffer at buffer_seen_ns */
	uint64_t buffer_seen_ns;
	uint64_t commands;		/* I/O commands fetched */
	int irq_fd[EMU_MAX_QUEUES + 1]; /* by vector; -1: none */
	unsigned nr_irqs;
};

/* A command was not executed now: its completion comes later, or never. */
#define EMU_NO_COMPLETION UINT32_MAX
#define EMU_DNR		  (1u << 14) /* in status fields without the phase tag: bit 15 of the word */

/* server.c: serves until done. Returns the process' exit status. */
int emu_run(struct emu_options *opts);

/* ctrlr.c */
int emu_ctrlr_init(struct emu *e);
void emu_ctrlr_free(struct emu *e);
void emu_ctrlr_reset(struct emu *e);
uint64_t emu_register_read(struct emu *e, uint64_t offset, unsigned width);
void emu_register_write(struct emu *e, uint64_t offset, uint64_t value, unsigned width);
/* Processes what the doorbells announce; true when there was anything to do. */
bool emu_poll(struct emu *e);
/* True when a doorbell announces work that emu_poll() has not seen. */
bool emu_has_work(const struct emu *e);
/* False when CQ is full. */
bool emu_post(struct emu *e, struct emu_cq *cq, const struct nvme_cqe *cqe);
void emu_async_event(struct emu *e, unsigned type, unsigned info, unsigned log_page);
void emu_fatal(struct emu *e);
/* A queue's doorbell starts at zero. */
void emu_doorbell_clear(struct emu *e, unsigned qid, bool completion);

/* admin.c, io.c: execute a copied entry; status code, or EMU_NO_COMPLETION. */
uint32_t emu_admin(struct emu *e, const struct nvme_sqe *sqe, uint32_t *result);
uint32_t emu_io(struct emu *e, const struct nvme_sqe *sqe);
void emu_features_reset(struct emu *e);
/* hmb.c */
uint32_t emu_set_host_memory(struct emu *e, const struct nvme_sqe *sqe);

/* memory.c */
int emu_memory_map(struct emu *e, uint64_t iova, uint64_t bytes, int fd, uint64_t offset,
		   bool writeable);
int emu_memory_unmap(struct emu *e, uint64_t iova, uint64_t bytes);
void emu_memory_unmap_all(struct emu *e);
/* BYTES of client memory at IOVA, or NULL when they are not all in one mapping. */
void *emu_memory(struct emu *e, uint64_t iova, uint64_t bytes, bool write);
/* Fills e->iov from the command's PRPs; TO_HOST: memory will be written. */
uint32_t emu_map_data(struct emu *e, const struct nvme_sqe *sqe, uint64_t bytes, bool to_host,
		      unsigned *count);
/* Copies between BUF and the memory that the command's PRPs name. */
uint32_t emu_copy_data(struct emu *e, const struct nvme_sqe *sqe, void *buf, uint64_t bytes,
		       bool to_host);

/* ns.c: SPEC is "file=PATH,lba=4096", "mem=1G" or "null=64G". 0, or a line in ERROR. */
int emu_ns_open(struct emu_ns *ns, const char *spec, uint64_t extend, char *error, size_t size);
uint32_t emu_ns_read(struct emu_ns *ns, struct iovec *iov, unsigned count, uint64_t offset);
uint32_t emu_ns_write(struct emu_ns *ns, struct iovec *iov, unsigned count, uint64_t offset,
		      bool durable);
uint32_t emu_ns_zero(struct emu_ns *ns, uint64_t offset, uint64_t bytes, bool deallocate);
uint32_t emu_ns_flush(struct emu_ns *ns);
void emu_ns_format(struct emu_ns *ns, uint8_t lba_shift);

/* timing.c */
static inline bool emu_timing_on(const struct emu_timing *t)
{
	return t->read_latency_ns || t->write_latency_ns || t->read_iops > 0 || t->write_iops > 0 ||
	       t->read_bandwidth > 0 || t->write_bandwidth > 0 || t->write_buffer;
}
int emu_timing_init(struct emu *e);
/* When a command of BYTES that arrives now is done. */
uint64_t emu_timing_due(struct emu *e, bool write, uint64_t bytes, uint64_t now_ns);
/* BYTES were deallocated: they need not leave the write buffer any more. */
void emu_timing_deallocated(struct emu *e, uint64_t bytes);
int emu_pending_push(struct emu *e, const struct emu_pending *p);
/* Posts what is due; the time of the next in *NEXT_NS, 0 for none. True if any was posted. */
bool emu_pending_post(struct emu *e, uint64_t *next_ns);
/* Removes the commands of SQ (all of them with CID < 0); posts Abort Requested if ABORT. */
bool emu_pending_remove(struct emu *e, const struct emu_sq *sq, int cid, bool abort);

#endif
