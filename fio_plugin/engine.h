/* SPDX-License-Identifier: GPL-2.0-only */
/* What the files of the engine share: its options, and the controllers that are open. */
#ifndef VROOM_FIO_ENGINE_H
#define VROOM_FIO_ENGINE_H

#include "config-host.h"
#include "fio.h"
#include "optgroup.h"

#include "vroom.h"

/* The engine's options; fio fills one in per job. */
struct engine_options {
	void *pad;               /* fio takes an option at offset 0 for one that is not stored */
	unsigned int io_timeout; /* seconds */
	unsigned int readfua;
	unsigned int writefua;
	unsigned int ignored;    /* options of the kernel's engines go here */
	char *ignored_text;
};

extern struct fio_option vroom_fio_options[];

/* A controller that this fio uses; opened in the parent and inherited by forked jobs. */
struct target {
	struct target *next;
	char *key; /* of vroom_address_key() */
	struct vroom_ctrlr *ctrlr;
};

/*
 * The target that FILE of TD names, opened if it was not. Memory for all jobs and the size
 * of a plain file for all jobs are settled by the first one that asks. *NS is filled in.
 * NULL: vroom_error() says why.
 */
struct target *target_get(struct thread_data *td, const struct fio_file *file,
			  struct vroom_ns *ns);

/* Whose memory I/O buffers come from: the first target. NULL before there is one. */
struct target *target_memory(void);

/* Shuts down what this process opened. */
void target_close_all(void);

#endif
