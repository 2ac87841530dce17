/* SPDX-License-Identifier: BSD-3-Clause */
/* Sizes as people write them. */
#ifndef VROOM_EMULATOR_SIZE_H
#define VROOM_EMULATOR_SIZE_H

#include <stdbool.h>
#include <stdint.h>

/* "4096", "64K", "1G", "0x100" as bytes; false when TEXT is not a size. */
bool vroom_parse_size(const char *text, uint64_t *out);

#endif
