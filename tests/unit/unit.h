/* SPDX-License-Identifier: BSD-3-Clause */
/* What the unit tests share: cmocka, and what it lacks. */
#ifndef UNIT_H
#define UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

/*
 * A promise that is known not to be kept. The test is skipped with the reason, and fails as soon as
 * the promise is kept, so that this mark goes.
 */
#define expected_failure(kept, why)                                        \
	do {                                                               \
		if (kept)                                                  \
			fail_msg("is kept now; take the mark away: " why); \
		print_message("# expected failure: " why "\n");            \
		skip();                                                    \
	} while (0)

#define run(tests) cmocka_run_group_tests_name(__FILE__, tests, NULL, NULL)

#endif
