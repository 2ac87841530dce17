/* SPDX-License-Identifier: BSD-3-Clause */
/* One owner a function: a lock file names the process that drives it. */
#ifndef VROOM_OWNER_H
#define VROOM_OWNER_H

/*
 * Makes this process, and those that it forks, the owner of the function: *FD holds the lock
 * until it is closed everywhere. -EBUSY names the owner's pid.
 */
int vroom_device_lock(const char *bdf, int *fd);

/* 0 when nobody owns the function; -EBUSY, and vroom_error() names the pid. */
int vroom_device_owner(const char *bdf);

#endif
