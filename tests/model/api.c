/* SPDX-License-Identifier: BSD-3-Clause */
/* The inline functions under test, compiled with -fsanitize=thread as the driver's files are. */
#include "model.h"

int api_submit(struct vroom_qpair *qp, const struct vroom_io *io)
{
	return vroom_submit(qp, io);
}

void api_ring(struct vroom_qpair *qp)
{
	vroom_ring(qp);
}

int api_poll(struct vroom_qpair *qp, struct vroom_completion *out, int max)
{
	return vroom_poll(qp, out, max);
}
