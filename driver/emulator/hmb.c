/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The host memory buffer of an emulated drive (Base 5.27.1.10). The drive needs none, so it does
 * with the memory what shows a host's mistakes: fills it, and looks whether all of it is as it was
 * when it is taken back.
 */
#include <stdio.h>
#include <string.h>

#include "emulator/emulator.h"

#define FILLING 0xd7

/* The next piece of the buffer, or NULL: it is nothing that the host has mapped. */
static uint8_t *piece(struct emu *e, uint64_t list, uint32_t index, uint64_t *bytes)
{
	struct nvme_hmb_descriptor d, *at;

	at = emu_memory(e, list + index * sizeof(d), sizeof(d), false);
	if (!at)
		return NULL;
	memcpy(&d, at, sizeof(d));
	*bytes = (uint64_t)d.size * e->page_size;
	if (!d.size || (d.address & (e->page_size - 1)))
		return NULL;
	return emu_memory(e, d.address, *bytes, true);
}

/* Calls for all pieces: fills them, or counts the bytes that are no more as they were filled. */
static bool visit(struct emu *e, const struct emu_hmb *h, bool fill, uint64_t *changed)
{
	uint64_t total = 0, bytes;

	for (uint32_t i = 0; i < h->pieces; i++) {
		uint8_t *memory = piece(e, h->list, i, &bytes);

		if (!memory)
			return false;
		total += bytes;
		if (fill)
			memset(memory, FILLING, bytes);
		for (uint64_t at = 0; !fill && at < bytes; at++)
			*changed += memory[at] != FILLING;
	}
	return total == (uint64_t)h->pages * e->page_size;
}

uint32_t emu_set_host_memory(struct emu *e, const struct nvme_sqe *sqe)
{
	struct emu_hmb asked = {
		.pages = sqe->cdw12,
		.list = (uint64_t)sqe->cdw14 << 32 | sqe->cdw13,
		.pieces = sqe->cdw15,
	};
	uint64_t changed = 0;

	if (!(sqe->cdw11 & NVME_HMB_ENABLE)) {
		if (e->hmb.pieces && (!visit(e, &e->hmb, false, &changed) || changed))
			fprintf(stderr,
				"vroom emulate: %llu bytes of the host memory buffer were "
				"changed\n",
				(unsigned long long)changed);
		e->hmb = (struct emu_hmb){ 0 };
		return changed ? NVME_SC_INTERNAL_ERROR | EMU_DNR : 0;
	}
	if (e->hmb.pieces)
		return NVME_SC_SEQUENCE_ERROR | EMU_DNR;
	if (!asked.pieces || (asked.list & 15) || !visit(e, &asked, true, &changed))
		return NVME_SC_INVALID_FIELD | EMU_DNR;
	e->hmb = asked;
	return 0;
}
