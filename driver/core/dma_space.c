/* SPDX-License-Identifier: BSD-3-Clause */
/* What a controller sees of memory. */
#include <dirent.h>
#include <hugetlbfs.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "core/core.h"

/* IOVAs begin above what 32-bit devices and interrupt messages use. */
#define IOVA_FIRST (1ull << 32)

int vroom_space_init(struct vroom_dma_space *s, struct vroom_transport *t, const char *name)
{
	int ret = vroom_share(name, sizeof(*s->shared), (void **)&s->shared);

	if (ret)
		return ret;
	s->transport = t;
	s->name = name;
	snprintf(s->prefix, sizeof(s->prefix), "%s", t->pool ? t->pool : "");
	s->shared->next_file = 1;
	return vroom_lock_init(&s->shared->lock);
}

void vroom_space_free(struct vroom_dma_space *s, bool remove)
{
	if (!s->shared)
		return;
	if (remove)
		vroom_space_remove_files(s, 0);
	munmap(s->shared, sizeof(*s->shared));
	s->shared = NULL;
}

/* Removes the files of DIR whose name is PREFIX.FILE, or PREFIX.N if FILE is 0. Their bytes. */
static uint64_t remove_files_in(DIR *dir, const char *prefix, uint32_t file)
{
	const size_t length = strlen(prefix);
	struct dirent *entry;
	uint64_t bytes = 0;
	struct stat st;

	while ((entry = readdir(dir))) {
		const char *name = entry->d_name;

		if (strncmp(name, prefix, length) || name[length] != '.' ||
		    (file && strtoul(name + length + 1, NULL, 10) != file))
			continue;
		if (!fstatat(dirfd(dir), name, &st, 0) && !unlinkat(dirfd(dir), name, 0))
			bytes += (uint64_t)st.st_size;
	}
	return bytes;
}

uint64_t vroom_space_remove_files(const struct vroom_dma_space *s, uint32_t file)
{
	uint64_t bytes = 0;

	for (unsigned shift = 21; s->prefix[0] && shift <= 30; shift += 9) { /* 2 MiB and 1 GiB */
		const char *path = hugetlbfs_find_path_for_size(1l << shift);
		DIR *dir = path ? opendir(path) : NULL;

		if (!dir)
			continue;
		bytes += remove_files_in(dir, s->prefix, file);
		closedir(dir);
	}
	return bytes;
}

/* The lowest IOVA with BYTES free behind it, and a huge page's alignment. The lock is held. */
static uint64_t find_iova(const struct vroom_dma_space_shared *sh, size_t bytes)
{
	const struct vroom_dma_mapping *m = sh->mapping;
	uint64_t iova = IOVA_FIRST;

	while (m < sh->mapping + VROOM_MAX_MAPPINGS) {
		if (m->bytes && iova < m->iova + m->bytes && m->iova < iova + bytes) {
			iova = vroom_round_up(m->iova + m->bytes, VROOM_HUGE_PAGE);
			m = sh->mapping; /* from the start: mappings are in no order */
		} else {
			m++;
		}
	}
	return iova;
}

static int add_ranges(struct vroom_dma_space *s, const struct vroom_dma_map *map)
{
	size_t page = 1ul << map->page_shift, pages = map->bytes >> map->page_shift;
	struct vroom_dma_range *w = NULL;

	for (size_t i = 0; i < pages; i++) {
		uintptr_t va = (uintptr_t)map->va + i * page;
		uint64_t delta = map->page_iova[i] - va;

		if (w && delta == w->delta) {
			w->bytes += page;
			continue;
		}
		if (s->ranges == VROOM_MAX_RANGES)
			return vroom_fail_on(s->name, ENOMEM, "memory is in more than %d pieces",
					     VROOM_MAX_RANGES);
		w = &s->range[s->ranges];
		*w = (struct vroom_dma_range){ .base = va, .bytes = page, .delta = delta };
		/* Release: who forks at this instant copies a list that is whole. */
		__atomic_store_n(&s->ranges, s->ranges + 1, __ATOMIC_RELEASE);
	}
	return 0;
}

static void remove_ranges(struct vroom_dma_space *s, const void *va, size_t bytes)
{
	for (unsigned i = s->ranges; i-- > 0;) {
		if (s->range[i].base - (uintptr_t)va >= bytes)
			continue;
		s->range[i] = s->range[s->ranges - 1];
		__atomic_store_n(&s->ranges, s->ranges - 1, __ATOMIC_RELEASE);
	}
}

/*
 * Tells the controller, and then forgets it: a kill in between makes the next one tell it again, or
 * of what it was never told (-ENOENT).
 */
static int unmap_locked(struct vroom_dma_space *s, struct vroom_dma_mapping *m)
{
	const struct vroom_transport_ops *ops = s->transport->ops;
	int ret = ops->dma_unmap ? ops->dma_unmap(s->transport, m->iova, m->bytes) : 0;

	if (ret && ret != -ENOENT)
		return ret;
	if (m->file)
		vroom_space_remove_files(s, m->file);
	m->bytes = 0;
	return 0;
}

static int map_locked(struct vroom_dma_space *s, struct vroom_dma_map *map, uint32_t file)
{
	struct vroom_dma_mapping *m = s->shared->mapping, *end = m + VROOM_MAX_MAPPINGS;
	int ret;

	while (m < end && m->bytes)
		m++;
	if (m == end)
		return vroom_fail_on(s->name, ENOMEM, "%d stretches of memory are mapped already",
				     VROOM_MAX_MAPPINGS);
	map->iova = find_iova(s->shared, map->bytes);
	/* Noted before the controller is told, so that a kill in between leaves none unnoted. */
	*m = (struct vroom_dma_mapping){ .iova = map->iova, .creator = getpid(), .file = file };
	__atomic_store_n(&m->bytes, map->bytes, __ATOMIC_RELEASE);
	ret = s->transport->ops->dma_map(s->transport, map);
	if (ret) {
		m->bytes = 0;
		return ret;
	}
	m->iova = map->iova;
	ret = add_ranges(s, map);
	if (ret) {
		remove_ranges(s, map->va, map->bytes);
		unmap_locked(s, m);
	}
	return ret;
}

int vroom_space_map(struct vroom_dma_space *s, struct vroom_dma_map *map, uint32_t file)
{
	int ret;

	map->page_iova = calloc(map->bytes >> map->page_shift, sizeof(*map->page_iova));
	if (!map->page_iova)
		return vroom_fail_on(s->name, ENOMEM, "out of memory");
	vroom_lock(&s->shared->lock);
	ret = map_locked(s, map, file);
	vroom_unlock(&s->shared->lock);
	free(map->page_iova);
	return ret;
}

int vroom_space_unmap(struct vroom_dma_space *s, const void *va, size_t bytes)
{
	struct vroom_dma_mapping *m = s->shared->mapping, *end = m + VROOM_MAX_MAPPINGS;
	struct vroom_dma_range w;
	int ret = -ENOENT;

	if (vroom_space_find(s, va, &w))
		return ret;
	vroom_lock(&s->shared->lock);
	while (m < end && (m->bytes != bytes || m->iova != (uintptr_t)va + w.delta))
		m++;
	if (m < end)
		ret = unmap_locked(s, m);
	if (!ret)
		remove_ranges(s, va, bytes);
	vroom_unlock(&s->shared->lock);
	return ret;
}

void vroom_space_unmap_dead(struct vroom_dma_space *s)
{
	struct vroom_dma_mapping *m = s->shared->mapping, *end = m + VROOM_MAX_MAPPINGS;

	vroom_lock(&s->shared->lock);
	for (; m < end && !s->shared->suspect; m++)
		if (m->bytes && !vroom_process_alive(m->creator))
			unmap_locked(s, m);
	vroom_unlock(&s->shared->lock);
}

/* The range that has any of BYTES at VA, or NULL. The lock is held. */
static const struct vroom_dma_range *range_at(const struct vroom_dma_space *s, const void *va,
					      size_t bytes)
{
	for (const struct vroom_dma_range *w = s->range; w < s->range + s->ranges; w++)
		if ((uintptr_t)va < w->base + w->bytes && w->base < (uintptr_t)va + bytes)
			return w;
	return NULL;
}

int vroom_space_find(struct vroom_dma_space *s, const void *va, struct vroom_dma_range *out)
{
	const struct vroom_dma_range *w;

	vroom_lock(&s->shared->lock);
	w = range_at(s, va, 1);
	*out = w ? *w : (struct vroom_dma_range){ 0 };
	vroom_unlock(&s->shared->lock);
	return w ? 0 : -EFAULT;
}

bool vroom_space_overlaps(struct vroom_dma_space *s, const void *va, size_t bytes)
{
	bool overlaps;

	vroom_lock(&s->shared->lock);
	overlaps = range_at(s, va, bytes);
	vroom_unlock(&s->shared->lock);
	return overlaps;
}

uint64_t vroom_space_iova(struct vroom_dma_space *s, const void *va)
{
	struct vroom_dma_range w;

	if (vroom_space_find(s, va, &w))
		abort(); /* a bug: VA is not from the controller's own memory */
	return (uintptr_t)va + w.delta;
}

void vroom_space_set_suspect(struct vroom_dma_space *s, bool suspect)
{
	__atomic_store_n(&s->shared->suspect, suspect, __ATOMIC_SEQ_CST);
}

bool vroom_space_suspect(const struct vroom_dma_space *s)
{
	return __atomic_load_n(&s->shared->suspect, __ATOMIC_SEQ_CST);
}
