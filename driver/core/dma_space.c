/* SPDX-License-Identifier: BSD-3-Clause */
/* What a controller sees of memory. */
#include <dirent.h>
#include <errno.h>
#include <hugetlbfs.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/lock.h"
#include "base/size.h"
#include "core/dma.h"

/* IOVAs begin above what 32-bit devices and interrupt messages use. */
#define IOVA_FIRST (1ull << 32)

int vroom_space_init(struct vroom_dma_space *s, struct vroom_transport *t, const char *name)
{
	s->transport = t;
	s->name = name;
	s->windows = 0;
	snprintf(s->prefix, sizeof(s->prefix), "%s", t->pool ? t->pool : "");
	s->shared = mmap(NULL, sizeof(*s->shared), PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (s->shared == MAP_FAILED) {
		s->shared = NULL;
		return vroom_fail(ENOMEM, "%s: out of memory", name);
	}
	s->shared->next_file = 1;
	return vroom_lock_init(&s->shared->lock);
}

void vroom_space_free(struct vroom_dma_space *s, bool remove)
{
	if (!s->shared)
		return;
	if (remove)
		vroom_space_remove_files(s);
	munmap(s->shared, sizeof(*s->shared));
	s->shared = NULL;
}

/* --- names of files ------------------------------------------------------------------------- */

/* Of huge pages, the sizes that are used. */
static const unsigned huge_shifts[] = { 21, 30 };

static uint64_t remove_in(const struct vroom_dma_space *s, const char *dir)
{
	size_t length = strlen(s->prefix);
	char path[PATH_MAX];
	struct dirent *entry;
	uint64_t bytes = 0;
	struct stat st;
	DIR *d = opendir(dir);

	while (d && (entry = readdir(d))) {
		if (strncmp(entry->d_name, s->prefix, length) || entry->d_name[length] != '.')
			continue;
		snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
		if (stat(path, &st) == 0 && unlink(path) == 0)
			bytes += (uint64_t)st.st_size;
	}
	if (d)
		closedir(d);
	return bytes;
}

uint64_t vroom_space_remove_files(const struct vroom_dma_space *s)
{
	uint64_t bytes = 0;

	for (size_t i = 0; s->prefix[0] && i < VROOM_LENGTH(huge_shifts); i++) {
		const char *dir = hugetlbfs_find_path_for_size(1l << huge_shifts[i]);

		if (dir)
			bytes += remove_in(s, dir);
	}
	return bytes;
}

static void remove_file(const struct vroom_dma_space *s, uint32_t file)
{
	char path[PATH_MAX];

	for (size_t i = 0; file && i < VROOM_LENGTH(huge_shifts); i++) {
		const char *dir = hugetlbfs_find_path_for_size(1l << huge_shifts[i]);

		if (!dir)
			continue;
		snprintf(path, sizeof(path), "%s/%s.%u", dir, s->prefix, file);
		unlink(path);
	}
}

/* --- mappings ----------------------------------------------------------------------------------
 */

/* The lowest IOVA with BYTES free behind it, and a huge page's alignment. The lock is held. */
static uint64_t find_iova(const struct vroom_dma_space_shared *sh, size_t bytes)
{
	uint64_t iova = IOVA_FIRST;

	for (unsigned i = 0; i < VROOM_MAX_MAPPINGS; i++) {
		const struct vroom_dma_mapping *m = &sh->mapping[i];

		if (!m->bytes || iova + bytes <= m->iova || m->iova + m->bytes <= iova)
			continue;
		iova = vroom_round_up(m->iova + m->bytes, VROOM_HUGE_PAGE);
		i = UINT_MAX; /* from the start: mappings are in no order */
	}
	return iova;
}

static struct vroom_dma_mapping *unused_mapping(struct vroom_dma_space_shared *sh)
{
	for (unsigned i = 0; i < VROOM_MAX_MAPPINGS; i++)
		if (!sh->mapping[i].bytes)
			return &sh->mapping[i];
	return NULL;
}

/*
 * Adds a window. Whoever forks at this instant copies a consistent list: the entry is there
 * before the count is.
 */
static int add_window(struct vroom_dma_space *s, const struct vroom_dma_window *w)
{
	if (s->windows == VROOM_MAX_WINDOWS)
		return vroom_fail(ENOMEM, "%s: memory is in more than %d pieces", s->name,
				  VROOM_MAX_WINDOWS);
	s->window[s->windows] = *w;
	__atomic_store_n(&s->windows, s->windows + 1, __ATOMIC_RELEASE);
	return 0;
}

/* Adds the stretches of MAP that are contiguous for the controller. */
static int add_windows(struct vroom_dma_space *s, const struct vroom_dma_map *map)
{
	size_t page = 1ul << map->page_shift, pages = map->bytes >> map->page_shift;
	struct vroom_dma_window w = { 0 };
	int ret = 0;

	for (size_t i = 0; i < pages && !ret; i++) {
		uintptr_t va = (uintptr_t)map->va + i * page;
		uint64_t delta = map->page_iova[i] - va;

		if (w.bytes && delta == w.delta) {
			w.bytes += page;
			continue;
		}
		if (w.bytes)
			ret = add_window(s, &w);
		w = (struct vroom_dma_window){ .base = va, .bytes = page, .delta = delta };
	}
	return ret ? ret : add_window(s, &w);
}

static void remove_windows(struct vroom_dma_space *s, uintptr_t va, size_t bytes)
{
	for (unsigned i = 0; i < s->windows;) {
		if (s->window[i].base - va >= bytes) {
			i++;
			continue;
		}
		s->window[i].bytes = 0;
		s->window[i] = s->window[s->windows - 1];
		__atomic_store_n(&s->windows, s->windows - 1, __ATOMIC_RELEASE);
	}
}

static int map_locked(struct vroom_dma_space *s, struct vroom_dma_map *map, uint32_t file)
{
	struct vroom_dma_mapping *m = unused_mapping(s->shared);
	int ret;

	if (!m)
		return vroom_fail(ENOMEM, "%s: %d stretches of memory are mapped already", s->name,
				  VROOM_MAX_MAPPINGS);
	map->iova = find_iova(s->shared, map->bytes);
	/* Noted before the controller is told, so that a kill in between leaves none unnoted. */
	m->iova = map->iova;
	m->creator = getpid();
	m->file = file;
	__atomic_store_n(&m->bytes, map->bytes, __ATOMIC_RELEASE);
	ret = s->transport->ops->dma_map(s->transport, map);
	if (ret) {
		m->bytes = 0;
		return ret;
	}
	m->iova = map->iova;
	ret = add_windows(s, map);
	if (ret) {
		remove_windows(s, (uintptr_t)map->va, map->bytes);
		if (s->transport->ops->dma_unmap)
			s->transport->ops->dma_unmap(s->transport, m->iova, m->bytes);
		m->bytes = 0;
	}
	return ret;
}

int vroom_space_map(struct vroom_dma_space *s, struct vroom_dma_map *map, uint32_t file)
{
	int ret;

	map->page_iova = calloc(map->bytes >> map->page_shift, sizeof(*map->page_iova));
	if (!map->page_iova)
		return vroom_fail(ENOMEM, "%s: out of memory", s->name);
	vroom_lock(&s->shared->lock);
	ret = map_locked(s, map, file);
	vroom_unlock(&s->shared->lock);
	free(map->page_iova);
	map->page_iova = NULL;
	return ret;
}

/*
 * Tells the controller, and then forgets it: a kill in between makes the next one tell it again, or
 * of what it was never told (-ENOENT).
 */
static int unmap_locked(struct vroom_dma_space *s, struct vroom_dma_mapping *m)
{
	int ret = 0;

	if (s->transport->ops->dma_unmap)
		ret = s->transport->ops->dma_unmap(s->transport, m->iova, m->bytes);
	if (!ret || ret == -ENOENT) {
		ret = 0;
		remove_file(s, m->file);
		m->bytes = 0;
	}
	return ret;
}

int vroom_space_unmap(struct vroom_dma_space *s, const void *va, size_t bytes)
{
	struct vroom_dma_window w;
	int ret = vroom_space_find(s, va, &w);
	uint64_t iova = (uintptr_t)va + w.delta;

	if (ret)
		return -ENOENT;
	ret = -ENOENT;
	vroom_lock(&s->shared->lock);
	for (unsigned i = 0; i < VROOM_MAX_MAPPINGS && ret == -ENOENT; i++) {
		struct vroom_dma_mapping *m = &s->shared->mapping[i];

		if (m->bytes == bytes && m->iova == iova)
			ret = unmap_locked(s, m);
	}
	if (!ret)
		remove_windows(s, (uintptr_t)va, bytes);
	vroom_unlock(&s->shared->lock);
	return ret;
}

void vroom_space_unmap_dead(struct vroom_dma_space *s)
{
	vroom_lock(&s->shared->lock);
	for (unsigned i = 0; i < VROOM_MAX_MAPPINGS; i++) {
		struct vroom_dma_mapping *m = &s->shared->mapping[i];

		if (m->bytes && !s->shared->suspect && !vroom_process_alive(m->creator))
			unmap_locked(s, m);
	}
	vroom_unlock(&s->shared->lock);
}

int vroom_space_find(struct vroom_dma_space *s, const void *va, struct vroom_dma_window *out)
{
	int ret = -EFAULT;

	*out = (struct vroom_dma_window){ 0 };
	vroom_lock(&s->shared->lock);
	for (unsigned i = 0; i < s->windows && ret; i++)
		if ((uintptr_t)va - s->window[i].base < s->window[i].bytes) {
			*out = s->window[i];
			ret = 0;
		}
	vroom_unlock(&s->shared->lock);
	return ret;
}

bool vroom_space_overlaps(struct vroom_dma_space *s, const void *va, size_t bytes)
{
	bool overlaps = false;

	vroom_lock(&s->shared->lock);
	for (unsigned i = 0; i < s->windows; i++)
		overlaps |= (uintptr_t)va < s->window[i].base + s->window[i].bytes &&
			    s->window[i].base < (uintptr_t)va + bytes;
	vroom_unlock(&s->shared->lock);
	return overlaps;
}

uint64_t vroom_space_iova(struct vroom_dma_space *s, const void *va)
{
	struct vroom_dma_window w;

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
