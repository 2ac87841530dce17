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

/* Long lines lose their middle, which is of a long name; the reason comes last. */
static void set_line(const char *device, const char *colon, const char *format, va_list args)
{
	const size_t head = sizeof(error_line) / 4, tail = sizeof(error_line) - head - 3;
	char line[3 * PATH_MAX]; /* two names, each as long as can be, and words */
	int n = snprintf(line, sizeof(line), "%s%s", device, colon);
	size_t bytes;

	vsnprintf(line + n, sizeof(line) - (size_t)n, format, args);
	bytes = strlen(line) + 1;
	if (bytes <= sizeof(error_line))
		memcpy(error_line, line, bytes);
	else
		snprintf(error_line, sizeof(error_line), "%.*s...%s", (int)head, line,
			 line + bytes - tail);
}

int vroom_fail(int err, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	set_line("", "", format, args);
	va_end(args);
	return -err;
}

int vroom_fail_on(const char *device, int err, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	set_line(device, ": ", format, args);
	va_end(args);
	return -err;
}
