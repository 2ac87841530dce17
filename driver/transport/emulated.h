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
	int report_fd; /* what it says before it serves */
};

/* Runs `vroom emulate` for ADDR and returns a socket to it, or a negative errno. A file is created,
 * or extended to FILE_BYTES. */
int vroom_emulated_start(const struct vroom_address *addr, uint64_t file_bytes,
			 struct vroom_emulated *out);

/* The handshake failed with RET: puts the process' own words in vroom_error(), if it has any. */
int vroom_emulated_why(const struct vroom_emulated *e, const struct vroom_address *addr, int ret);

/* Kills the process, from any that inherited E. 0 once it has ended; NAME is for the error line. */
int vroom_emulated_kill(const struct vroom_emulated *e, const char *name);

/* Forgets the process. END: all have closed its socket; it is waited for, and killed in the end. */
void vroom_emulated_close(const struct vroom_emulated *e, bool end);

#endif
