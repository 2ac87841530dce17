/* SPDX-License-Identifier: BSD-3-Clause */
/* Sleeping until a controller interrupts; beside the I/O path, by who has polled in vain. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/size.h"
#include "core/qpair.h"

#define WAIT_MAX	 64  /* queue pairs at once */
#define LOOK_INTERVAL_MS 100 /* at deadlines and at the controller */

/* An eventfd that the queue pair's own MSI-X vector signals. */
int vroom_qpair_connect_interrupt(struct vroom_qpair *qp)
{
	struct vroom_transport *t = qp->ctrlr->transport;

	if (!t->ops->set_irq || qp->qid >= t->vectors)
		return vroom_fail_on(qp->ctrlr->name, ENOSPC,
				     "only %u MSI-X vectors; wait=poll, or fewer jobs", t->vectors);
	qp->cold->eventfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (qp->cold->eventfd < 0)
		return vroom_fail_on(qp->ctrlr->name, errno, "eventfd: %s", strerror(errno));
	return t->ops->set_irq(t, qp->qid, qp->cold->eventfd);
}

void vroom_qpair_disconnect_interrupt(struct vroom_qpair *qp)
{
	struct vroom_transport *t = qp->ctrlr->transport;

	if (qp->cold->eventfd < 0)
		return;
	t->ops->set_irq(t, qp->qid, -1);
	close(qp->cold->eventfd);
	qp->cold->eventfd = -1;
}

/*
 * Hands over what was submitted, and all that was reaped: a controller may hold an interrupt
 * back while it believes that the last one is still being served.
 */
static void prepare_to_sleep(struct vroom_qpair *qp)
{
	vroom_ring(qp);
	if (qp->cq.left != qp->cq.slack)
		vroom_cq_ring(&qp->cq);
}

/* Sleeps for MS at most, unless there are completions already: 1 for these, 0, or an error. */
static int sleep_once(struct vroom_qpair *const *qps, struct pollfd *fds, unsigned count, int ms)
{
	eventfd_t value;
	int ret = 0;

	for (unsigned i = 0; i < count; i++) {
		eventfd_read(fds[i].fd, &value);
		if (!vroom_cq_empty(&qps[i]->cq))
			return 1;
	}
	if (poll(fds, count, ms) < 0 && errno != EINTR)
		return vroom_fail_on(qps[0]->ctrlr->name, errno, "poll: %s", strerror(errno));
	for (unsigned i = 0; i < count && !ret; i++)
		if (vroom_cq_empty(&qps[i]->cq))
			ret = vroom_check_deadlines(qps[i], vroom_now_ms());
	return ret;
}

int vroom_wait(struct vroom_qpair *const *qps, unsigned count, unsigned timeout_ms)
{
	uint64_t now = vroom_now_ms(), end = now + timeout_ms;
	struct pollfd fds[WAIT_MAX];
	int ret = 0;

	if (!count || count > WAIT_MAX)
		return vroom_fail(EINVAL, "vroom_wait: 1 to %d queue pairs at once", WAIT_MAX);
	for (unsigned i = 0; i < count; i++) {
		if (qps[i]->error)
			return qps[i]->error;
		if (qps[i]->cold->eventfd < 0)
			return vroom_fail_on(qps[i]->ctrlr->name, EINVAL,
					     "opened without interrupts");
		fds[i] = (struct pollfd){ .fd = qps[i]->cold->eventfd, .events = POLLIN };
		prepare_to_sleep(qps[i]);
	}
	for (; !ret; now = vroom_now_ms()) {
		uint64_t left = end > now ? end - now : 0;

		ret = sleep_once(qps, fds, count, (int)VROOM_MIN(left, LOOK_INTERVAL_MS));
		if (!left)
			break;
	}
	return ret;
}
