/* SPDX-License-Identifier: BSD-3-Clause */
/* What a user may write as the name of a controller (docs/addresses.md). */
#ifndef VROOM_ADDRESS_H
#define VROOM_ADDRESS_H

#include <limits.h>
#include <stdint.h>

enum vroom_address_kind {
	VROOM_ADDRESS_FILE,   /* a plain file, there or to be created: emulated controller */
	VROOM_ADDRESS_MEMORY, /* emu-mem */
	VROOM_ADDRESS_NULL,   /* emu-null */
	VROOM_ADDRESS_SOCKET, /* somebody's vfio-user controller */
	VROOM_ADDRESS_PCI,    /* a PCI function, or a kernel device name */
};

struct vroom_address {
	enum vroom_address_kind kind;
	char text[PATH_MAX];	/* as written */
	char path[PATH_MAX];	/* file or socket; of a PCI function 0000:04:00.0 */
	char options[PATH_MAX]; /* "lba=4096,mdts=64K": for the emulated controller */
	uint32_t nsid;		/* of ,ns=N or /dev/nvme0nN; 0 when not given */
};

/* Splits TEXT; says what is wrong in vroom_error(). 0 or -EINVAL, -EISDIR, -ENODEV, ... */
int vroom_address_parse(const char *text, struct vroom_address *out);

#endif
