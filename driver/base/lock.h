/* SPDX-License-Identifier: BSD-3-Clause */
/* Locks in memory that processes share, and whether a process lives. */
#ifndef VROOM_LOCK_H
#define VROOM_LOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/*
 * BYTES of zeroes that processes forked later share, until munmap(). -ENOMEM names DEVICE; *OUT is
 * NULL then.
 */
int vroom_share(const char *device, size_t bytes, void **out);

/* A process-shared robust mutex. Returns 0 or a negative errno. */
int vroom_lock_init(pthread_mutex_t *lock);

/*
 * Takes LOCK. True: its last owner died with it. What it was about to change is then for the
 * caller to finish or undo, so shared state is written in steps of which each leaves it usable.
 */
bool vroom_lock(pthread_mutex_t *lock);
void vroom_unlock(pthread_mutex_t *lock);

/* False once PID has ended, reaped or not. */
bool vroom_process_alive(pid_t pid);

#endif
