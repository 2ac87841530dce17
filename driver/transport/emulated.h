/* SPDX-License-Identifier: BSD-3-Clause */
/* Starting and ending the emulated controller that serves a file, memory or nothing. */
#ifndef VROOM_EMULATED_H
#define VROOM_EMULATED_H

#include <stdint.h>
#include <sys/types.h>

#include "transport/address.h"

struct vroom_emulated {
	pid_t pid;     /* 0: none */
	pid_t parent;  /* who may wait for it */
	int socket;    /* connected to it; the caller closes it */
	int report_fd; /* what it says before it serves, while starting */
};

/* Runs `vroom emulate` for ADDR on one end of a socket pair. A file is created, or extended
 * to FILE_BYTES, by it. */
int vroom_emulated_start(const struct vroom_address *addr, uint64_t file_bytes,
			 struct vroom_emulated *out);

/* The handshake failed with RET: puts the process' own words in vroom_error(). */
int vroom_emulated_why(struct vroom_emulated *e, const struct vroom_address *addr, int ret);

/* Waits for the process, whose socket has been closed; kills it when it does not end. */
void vroom_emulated_end(struct vroom_emulated *e);

#endif
