/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/error.h"

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
	char line[sizeof(error_line)];
	va_list args;

	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	memcpy(error_line, line, sizeof(line));
	return -err;
}
