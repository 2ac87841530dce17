/* SPDX-License-Identifier: BSD-3-Clause */
/* Kills processes at every instruction of a function. */
#ifndef KILL_H
#define KILL_H

#include <stdbool.h>

/* How many instructions a function that is stepped through may have, loops unrolled. */
#define KILL_MAX_STEPS (1u << 18)

/*
 * Calls FN(ARG) in a child once, step by step, to learn its instructions; then, for each of these
 * (in loops: for the first times that it is met), in another child that SIGKILL ends just before
 * that instruction. AFTER(ARG) is called in this process after each. STRIDE: only each so manieth
 * instruction (every one with UNIT_THOROUGH in the environment). Those inside the fake are left
 * out.
 *
 * Returns how many children were killed; some may get to the end, where the path differs from the
 * first one's. 0: this machine cannot be stepped by a process itself (not x86-64).
 */
unsigned kill_everywhere(void (*fn)(void *arg), void (*after)(void *arg), void *arg,
			 unsigned stride);

/* FN in a child to its end, which must be good. */
void in_child(void (*fn)(void *arg), void *arg);

#endif
