/* SPDX-License-Identifier: BSD-3-Clause */
/* From the text of an address to what it names. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/error.h"
#include "base/size.h"
#include "emulator/size.h"
#include "pci/names.h"
#include "transport/address.h"
#include "unit.h"
#include "vroom.h"
/* Of the emulated controller, which is not in the library. */

static char dir[] = "/tmp/vroom-unit-XXXXXX";

static void make_socket(const char *path)
{
	struct sockaddr_un name = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	strcpy(name.sun_path, path);
	assert_int_equal(bind(fd, (struct sockaddr *)&name, sizeof(name)), 0);
	close(fd);
}

static int begin(void **state)
{
	(void)state;
	assert_non_null(mkdtemp(dir));
	assert_int_equal(chdir(dir), 0);
	fclose(fopen("file", "w"));
	fclose(fopen("with,comma", "w"));
	fclose(fopen("odd,ns=7", "w"));
	fclose(fopen("host:1", "w"));
	mkdir("empty", 0700);
	mkdir("spdk", 0700);
	mkfifo("fifo", 0600);
	make_socket("socket");
	make_socket("spdk/cntrl");
	return 0;
}

static int end(void **state)
{
	static const char *const names[] = { "file",   "with,comma", "odd,ns=7", "host:1", "fifo",
					     "socket", "spdk/cntrl", "spdk",	 "empty" };

	(void)state;
	for (unsigned i = 0; i < VROOM_LENGTH(names); i++)
		remove(names[i]);
	return chdir("/") || rmdir(dir);
}

struct good {
	const char *text;
	enum vroom_address_kind kind;
	const char *path, *options;
	uint32_t nsid;
};

static void good_ones(void **state)
{
	static const struct good cases[] = {
		{ "file", VROOM_ADDRESS_FILE, "file", "", 0 },
		{ "new", VROOM_ADDRESS_FILE, "new", "", 0 },
		{ "./new", VROOM_ADDRESS_FILE, "./new", "", 0 },
		{ "file,ns=3", VROOM_ADDRESS_FILE, "file", "", 3 },
		{ "file,ns=0x10", VROOM_ADDRESS_FILE, "file", "", 16 },
		{ "file,lba=4096,mdts=64K", VROOM_ADDRESS_FILE, "file", "lba=4096,mdts=64K", 0 },
		{ "file,lba=4096,ns=2,mdts=64K", VROOM_ADDRESS_FILE, "file", "lba=4096,mdts=64K",
		  2 },
		{ "file,ns=2,ns=4", VROOM_ADDRESS_FILE, "file", "", 4 },
		/* file names with commas: the longest that exists */
		{ "with,comma", VROOM_ADDRESS_FILE, "with,comma", "", 0 },
		{ "with,comma,ns=2", VROOM_ADDRESS_FILE, "with,comma", "", 2 },
		{ "odd,ns=7", VROOM_ADDRESS_FILE, "odd,ns=7", "", 0 },
		{ "odd,ns=7,ns=8", VROOM_ADDRESS_FILE, "odd,ns=7", "", 8 },
		{ "odd,ns=8", VROOM_ADDRESS_FILE, "odd", "", 8 },
		{ "new,comma", VROOM_ADDRESS_FILE, "new,comma", "", 0 },
		{ "new,comma,ns=1", VROOM_ADDRESS_FILE, "new,comma", "", 1 },
		{ "new,1=2", VROOM_ADDRESS_FILE, "new,1=2", "", 0 },
		{ "host:1", VROOM_ADDRESS_FILE, "host:1", "", 0 },
		{ "emu-mem", VROOM_ADDRESS_MEMORY, "emu-mem", "", 0 },
		{ "emu-mem,size=1G,ns=2", VROOM_ADDRESS_MEMORY, "emu-mem", "size=1G", 2 },
		{ "emu-null", VROOM_ADDRESS_NULL, "emu-null", "", 0 },
		{ "emu-memory", VROOM_ADDRESS_FILE, "emu-memory", "", 0 },
		{ "socket", VROOM_ADDRESS_SOCKET, "socket", "", 0 },
		{ "socket,ns=2", VROOM_ADDRESS_SOCKET, "socket", "", 2 },
		{ "spdk", VROOM_ADDRESS_SOCKET, "spdk/cntrl", "", 0 },
		{ "spdk,ns=5", VROOM_ADDRESS_SOCKET, "spdk/cntrl", "", 5 },
		{ "0000:fe:1f.7", VROOM_ADDRESS_PCI, "0000:fe:1f.7", "", 0 },
		{ "fe:1f.7", VROOM_ADDRESS_PCI, "0000:fe:1f.7", "", 0 },
		{ "FE:1F.7,ns=9", VROOM_ADDRESS_PCI, "0000:fe:1f.7", "", 9 },
	};

	(void)state;
	for (unsigned i = 0; i < VROOM_LENGTH(cases); i++) {
		const struct good *g = &cases[i];
		struct vroom_address a;
		int ret = vroom_address_parse(g->text, &a);

		if (ret || a.kind != g->kind || strcmp(a.path, g->path) ||
		    strcmp(a.options, g->options) || a.nsid != g->nsid || strcmp(a.text, g->text))
			fail_msg("%s: %d, kind %d, path %s, options '%s', ns %u (%s)", g->text, ret,
				 a.kind, a.path, a.options, a.nsid, ret ? vroom_error() : "");
	}
}

static void bad_ones(void **state)
{
	static const struct {
		const char *text;
		int ret;
	} cases[] = {
		{ "", -EINVAL },
		{ NULL, -EINVAL },
		{ "file,ns=0", -EINVAL },
		{ "file,ns=", -EINVAL },
		{ "file,ns=x", -EINVAL },
		{ "file,ns=1x", -EINVAL },
		{ "file,ns=4294967295", -EINVAL },
		{ "file,ns=4294967297", -EINVAL },
		{ "file,ns=99999999999999999999", -EINVAL },
		{ "file,ns=-1", -EINVAL },
		{ "socket,lba=4096", -EINVAL },
		{ "fe:1f.7,lba=4096", -EINVAL },
		{ "empty", -EISDIR },
		{ "fifo", -ENODEV },
		{ "file/below", -ENOTDIR },
		{ "/dev/null", -ENODEV },
		{ "/dev/nvme77n1", -ENODEV },
		{ "/dev/nvme0n1p1", -EINVAL },
	};
	char *longest = malloc(PATH_MAX + 2);
	struct vroom_address a;

	(void)state;
	for (unsigned i = 0; i < VROOM_LENGTH(cases); i++) {
		int ret;

		vroom_fail(1, "nothing");
		ret = vroom_address_parse(cases[i].text, &a);
		if (ret != cases[i].ret || !strcmp(vroom_error(), "nothing"))
			fail_msg("%s: %d (%s)", cases[i].text, ret, vroom_error());
	}
	for (size_t length = PATH_MAX - 8; length <= PATH_MAX + 1; length++) {
		memset(longest, 'x', length);
		longest[length] = '\0';
		assert_int_not_equal(vroom_address_parse(longest, &a), 0);
	}
	free(longest);
}

/* One controller, one key, however it is written. */
static void keys(void **state)
{
	char *key = malloc(VROOM_ADDRESS_MAX), *other = malloc(VROOM_ADDRESS_MAX);
	char *path = malloc(VROOM_ADDRESS_MAX);
	uint32_t nsid;

	(void)state;
	assert_int_equal(vroom_address_key("file,ns=2", key, &nsid, path), 0);
	assert_int_equal(nsid, 2);
	assert_string_equal(path, "file");
	assert_int_equal(vroom_address_key("./empty/../file", other, &nsid, NULL), 0);
	assert_int_equal(nsid, 0);
	assert_string_equal(key, other);
	assert_int_equal(vroom_address_key("file,lba=4096", other, &nsid, path), 0);
	assert_string_not_equal(key, other);
	assert_int_equal(vroom_address_key("fe:1f.7", key, &nsid, path), 0);
	assert_string_equal(path, "");
	assert_int_equal(vroom_address_key("0000:fe:1f.7", other, &nsid, path), 0);
	assert_string_equal(key, other);
	free(key);
	free(other);
	free(path);
}

static void sizes(void **state)
{
	static const struct {
		const char *text;
		uint64_t bytes; /* UINT64_MAX: it is none */
	} cases[] = {
		{ "0", 0 },
		{ "512", 512 },
		{ "4k", 4096 },
		{ "4K", 4096 },
		{ "4KiB", 4096 },
		{ "4kb", 4096 },
		{ "0x100", 256 },
		{ "1G", 1ull << 30 },
		{ "2T", 2ull << 40 },
		{ "15P", 15ull << 50 },
		{ "", UINT64_MAX },
		{ "K", UINT64_MAX },
		{ "-1", UINT64_MAX },
		{ " 1", UINT64_MAX },
		{ "4KK", UINT64_MAX },
		{ "4x", UINT64_MAX },
		{ "1 K", UINT64_MAX },
		{ "16385P", UINT64_MAX },
		{ "99999999999999999999", UINT64_MAX },
	};

	(void)state;
	for (unsigned i = 0; i < VROOM_LENGTH(cases); i++) {
		uint64_t bytes = UINT64_MAX;
		bool good = vroom_parse_size(cases[i].text, &bytes);

		if (good != (cases[i].bytes != UINT64_MAX) || (good && bytes != cases[i].bytes))
			fail_msg("'%s'", cases[i].text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(good_ones),
		cmocka_unit_test(bad_ones),
		cmocka_unit_test(keys),
		cmocka_unit_test(sizes),
	};

	return cmocka_run_group_tests_name(__FILE__, tests, begin, end);
}
