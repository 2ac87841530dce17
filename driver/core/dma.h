/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Memory that controllers reach. A space is what one controller sees: stretches of memory, each at
 * an IOVA. A pool is a few large regions of shared memory and an allocator over them; each region
 * is in the spaces of all controllers that use the pool.
 *
 * Forked processes share both, and a kill at any instruction is survived: each change becomes valid
 * by one store. What a failed ("suspect") controller may still write to is, once freed, kept back
 * until all controllers of its pool are known to be off.
 */
#ifndef VROOM_DMA_H
#define VROOM_DMA_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "transport/transport.h"
#include "vroom_qpair.h"

#define VROOM_MAX_MAPPINGS 256 /* of a space, over all processes */
#define VROOM_MAX_WINDOWS  1024
#define VROOM_MAX_REGIONS  32 /* of a pool, in one process; each is larger than the one before */
#define VROOM_MAX_SPACES   64 /* that reach a pool */
#define VROOM_DMA_UNIT	   4096ul      /* of allocation, and the least alignment */
#define VROOM_DMA_MAX	   (1ul << 42) /* in one piece: units are counted in 32 bits */
#define VROOM_HUGE_SHIFT   21u	       /* physical memory is contiguous by pages of 2 MiB */
#define VROOM_HUGE_PAGE	   (1ul << VROOM_HUGE_SHIFT)

/* A stretch that the controller was told of. */
struct vroom_dma_mapping {
	uint64_t iova;
	uint64_t bytes; /* 0: unused */
	pid_t creator;
	uint32_t file; /* number of its name, 0: none; see vroom_dma_space.prefix */
};

struct vroom_dma_space_shared {
	pthread_mutex_t lock;
	int suspect; /* the controller may write where it likes until it is known to be off */
	uint32_t next_file;
	struct vroom_dma_mapping mapping[VROOM_MAX_MAPPINGS];
};

struct vroom_dma_space {
	struct vroom_transport *transport;
	const char *name; /* of the controller, for messages */
	/*
	 * Of files in hugetlbfs; "" where addresses are not physical. Where they are, pages must
	 * outlive a killed process, by names that the controller's next owner removes.
	 */
	char prefix[32];
	struct vroom_dma_space_shared *shared;
	struct vroom_dma_window window[VROOM_MAX_WINDOWS]; /* in no order */
	unsigned windows;
};

int vroom_space_init(struct vroom_dma_space *s, struct vroom_transport *t, const char *name);
/* Forgets everything. Files with names are removed if REMOVE; the controller must be off then. */
void vroom_space_free(struct vroom_dma_space *s, bool remove);

/* Removes files with names, FILE or all (0); the controller must be off. Bytes that they had. */
uint64_t vroom_space_remove_files(const struct vroom_dma_space *s, uint32_t file);

/* Makes MAP's memory reachable; file: 0, or its number among the space's names. */
int vroom_space_map(struct vroom_dma_space *s, struct vroom_dma_map *map, uint32_t file);
/* Takes the memory at VA, mapped as one, away again. -ENOENT: it is not mapped. */
int vroom_space_unmap(struct vroom_dma_space *s, const void *va, size_t bytes);
/* Takes away what dead processes had mapped. Nothing may use it any more. */
void vroom_space_unmap_dead(struct vroom_dma_space *s);

/* The window around VA; -EFAULT: the controller does not see it. */
int vroom_space_find(struct vroom_dma_space *s, const void *va, struct vroom_dma_window *out);
/* Does the controller see any of BYTES at VA? */
bool vroom_space_overlaps(struct vroom_dma_space *s, const void *va, size_t bytes);
/* Where the controller sees VA, which must be memory of its own (queues, lists). */
uint64_t vroom_space_iova(struct vroom_dma_space *s, const void *va);

void vroom_space_set_suspect(struct vroom_dma_space *s, bool suspect);
bool vroom_space_suspect(const struct vroom_dma_space *s);

struct vroom_dma_region {
	void *base;
	size_t bytes;
	int fd;
	unsigned page_shift;
	uint32_t file;	 /* number of its name in the space of the pool's owner */
	uint64_t *block; /* shared, by unit: what begins there; see dma_pool.c */
};

struct vroom_dma_pool_shared {
	pthread_mutex_t lock;
	bool tainted; /* a suspect controller has gone without being known to be off */
};

struct vroom_dma_pool {
	struct vroom_dma_pool_shared *shared;
	const struct vroom_dma_space *owner;
	struct vroom_dma_space *space[VROOM_MAX_SPACES];
	unsigned spaces;
	struct vroom_dma_region region[VROOM_MAX_REGIONS];
	unsigned regions;
};

/* A pool whose regions are for OWNER, and others that vroom_pool_share() adds. */
int vroom_pool_init(struct vroom_dma_pool *p, struct vroom_dma_space *owner);
void vroom_pool_free(struct vroom_dma_pool *p);

/* Lets SPACE reach all regions, now and later. */
int vroom_pool_share(struct vroom_dma_pool *p, struct vroom_dma_space *space);
/* SPACE is about to go, and known to be OFF or not. */
void vroom_pool_unshare(struct vroom_dma_pool *p, const struct vroom_dma_space *space, bool off);

/* Adds a region that holds an allocation of BYTES at ALIGN. */
int vroom_pool_grow(struct vroom_dma_pool *p, size_t bytes, size_t align);
/* Is there room for BYTES in one piece? */
bool vroom_pool_has_room(struct vroom_dma_pool *p, size_t bytes);

/* BYTES aligned to ALIGN, a power of two, or NULL: there is no room. Belongs to this process. */
void *vroom_pool_alloc(struct vroom_dma_pool *p, size_t bytes, size_t align);
void vroom_pool_free_memory(struct vroom_dma_pool *p, void *mem);
/* Frees what dead processes had. Their queue pairs must have been deleted. */
void vroom_pool_free_dead(struct vroom_dma_pool *p);

#endif
