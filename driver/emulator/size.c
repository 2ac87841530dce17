/* SPDX-License-Identifier: BSD-3-Clause */
#include "emulator/size.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

bool vroom_parse_size(const char *text, uint64_t *out)
{
	static const char units[] = "KMGTP";
	char *end;
	const char *unit;
	unsigned long long value;

	errno = 0;
	value = strtoull(text, &end, 0);
	if (end == text || errno || !isdigit((unsigned char)text[0]))
		return false;
	if (*end) {
		unit = strchr(units, toupper((unsigned char)*end));
		if (!unit || (end[1] && strcasecmp(end + 1, "B") && strcasecmp(end + 1, "iB")))
			return false;
		for (const char *u = units; u <= unit; u++) {
			if (value > ULLONG_MAX / 1024)
				return false;
			value *= 1024;
		}
	}
	*out = value;
	return true;
}
