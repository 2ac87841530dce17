/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/error.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char error_line[1024];

const char *vroom_error(void)
{
	return error_line;
}

int vroom_fail(int err, const char *format, ...)
{
	const size_t head = sizeof(error_line) / 4, tail = sizeof(error_line) - head - 3;
	char line[3 * PATH_MAX]; /* two names, each as long as can be, and words */
	va_list args;
	size_t bytes;

	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	bytes = strlen(line) + 1;
	if (bytes > sizeof(error_line)) { /* a long name loses its middle; the reason comes last */
		memset(line + head, '.', 3);
		memmove(line + head + 3, line + bytes - tail, tail);
		bytes = sizeof(error_line);
	}
	memcpy(error_line, line, bytes);
	return -err;
}
