/* SPDX-License-Identifier: BSD-3-Clause */
/* Starting and ending the emulated controller that serves a file, memory or nothing. */
#ifndef VROOM_EMULATED_H
#define VROOM_EMULATED_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "transport/address.h"

struct vroom_emulated {
	pid_t pid;     /* 0: none */
	int pidfd;     /* of it; it is not our child */
	int socket;    /* connected to it; the caller closes it */
	int report_fd; /* what it says before it serves */
};

/* Runs `vroom emulate` for ADDR on one end of a socket pair. A file is created, or extended
 * to FILE_BYTES, by it. */
int vroom_emulated_start(const struct vroom_address *addr, uint64_t file_bytes,
			 struct vroom_emulated *out);

/* The handshake failed with RET: puts the process' own words in vroom_error(), if it has any. */
int vroom_emulated_why(struct vroom_emulated *e, const struct vroom_address *addr, int ret);

/* Kills the process, from any that inherited E. 0 once it has ended; NAME is for the error line. */
int vroom_emulated_kill(const struct vroom_emulated *e, const char *name);

/* Forgets the process; END: its socket has been closed by all, and it is waited for until it has
 * ended, and killed when it does not. */
void vroom_emulated_close(struct vroom_emulated *e, bool end);

#endif
