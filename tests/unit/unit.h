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

#define run(tests) cmocka_run_group_tests_name(__FILE__, tests, NULL, NULL)

#endif
