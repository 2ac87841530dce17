/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Host Memory Buffer (Base 5.27.1.10): memory that a drive without DRAM of its own asks for, to
 * keep its tables in; the kernel's driver lends it too.
 */
#ifndef VROOM_HMB_H
#define VROOM_HMB_H

#include <stddef.h>

struct vroom_ctrlr;
struct nvme_hmb_descriptor;

/* As much is lent at most, as by the kernel's driver. */
#define VROOM_HMB_MAX_BYTES  (128ul << 20)
#define VROOM_HMB_MAX_PIECES 64u

struct vroom_hmb {
	size_t bytes; /* that the controller uses; 0: none */
	struct nvme_hmb_descriptor *list;
	void *piece[VROOM_HMB_MAX_PIECES];
	unsigned pieces;
};

/* Lends memory if the controller prefers some and there is enough; what cannot be is no error. */
void vroom_hmb_lend(struct vroom_ctrlr *c);
void vroom_hmb_take_back(struct vroom_ctrlr *c);

#endif
