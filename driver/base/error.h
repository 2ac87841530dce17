/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Errors: functions return 0 or a negative errno, and whoever finds out what is wrong leaves one
 * line for the user: what failed, on which device, what to do. The line is the thread's own.
 */
#ifndef VROOM_ERROR_H
#define VROOM_ERROR_H

/* Sets the line, without a newline. Returns -ERR. ARGUMENTS may lie in the line that was. */
int vroom_fail(int err, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same with "DEVICE: " in front. */
int vroom_fail_on(const char *device, int err, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* The last line of this thread, "" if there was none; vroom.h declares it for programs. */
const char *vroom_error(void) __attribute__((visibility("default")));

#endif
