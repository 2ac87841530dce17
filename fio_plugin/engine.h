/* SPDX-License-Identifier: GPL-2.0-only */
/* What the files of the engine share: its options, and the controllers that are open. */
#ifndef VROOM_FIO_ENGINE_H
#define VROOM_FIO_ENGINE_H

#include "config-host.h"
#include "fio.h"
#include "optgroup.h"

#include "vroom.h"

/* How a job waits for completions when it has nothing else to do. */
enum wait_mode {
	WAIT_POLL,	/* looks at the completion queue, over and over */
	WAIT_INTERRUPT, /* sleeps until the controller interrupts */
	WAIT_HYBRID,	/* looks for as long as an interrupt costs, then sleeps */
};

/* The engine's options; fio fills one in per job. */
struct engine_options {
	void *pad;		    /* fio takes an option at offset 0 for one that is not stored */
	unsigned int io_timeout;    /* seconds */
	unsigned int flush_timeout; /* seconds; 0: ten times io_timeout */
	unsigned int wait;	    /* enum wait_mode */
	char *transport;
	unsigned int readfua;
	unsigned int writefua;
	unsigned int ignored; /* options of the kernel's engines go here */
	char *ignored_text;
};

extern struct fio_option vroom_fio_options[];

/* A controller that this fio uses; opened in the parent and inherited by forked jobs. */
struct target {
	struct target *next;
	char *key; /* of vroom_address_key() */
	struct vroom_ctrlr *ctrlr;
	unsigned io_timeout_ms; /* that it was opened with */
};

/*
 * Finds the target that FILE of TD names, opening it if it was not, and fills in *NS. The
 * first one that asks settles the memory for all jobs, and the size of a plain file: what
 * the jobs say, BYTES at least. Returns 0 or a negative errno; vroom_error() says why.
 */
int target_get(struct thread_data *td, const struct fio_file *file, uint64_t bytes,
	       struct target **target, struct vroom_ns *ns);

/* Whose memory I/O buffers come from: the first target. NULL before there is one. */
struct target *target_memory(void);

/* Once, when fio loads the engine. */
void target_init(void);

/* Shuts down what this process opened. */
void target_close_all(void);

#endif
