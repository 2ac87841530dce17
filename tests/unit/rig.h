/* SPDX-License-Identifier: BSD-3-Clause */
/* A controller with one queue pair, and data that is nowhere the same. */
#ifndef RIG_H
#define RIG_H

#include "fake.h"
#include "unit.h"

struct rig {
	struct fake *f;
	struct vroom_ctrlr *c;
	struct vroom_qpair *qp;
	struct vroom_ns ns;
};

void rig_begin(struct rig *r, const struct fake_opts *opts, unsigned depth);
void rig_end(struct rig *r);

/* Rings, completes (in a random order if SHUFFLED) and polls until nothing happens any more. */
int rig_drain(struct rig *r, struct vroom_completion *done, int max, bool shuffled);
/* Submits IO and drains: its completion's status. Any failure ends the test. */
unsigned rig_do(struct rig *r, const struct vroom_io *io);

/* DMA memory of BYTES; a failure ends the test. */
void *rig_alloc(struct rig *r, size_t bytes);

void fill(void *buf, size_t bytes, unsigned seed);
/* The first byte that is not as fill() made it, or BYTES. */
size_t wrong_at(const void *buf, size_t bytes, unsigned seed);
#define assert_filled(buf, bytes, seed) assert_int_equal(wrong_at(buf, bytes, seed), bytes)

#endif
