/* SPDX-License-Identifier: BSD-3-Clause */
/* outsider.c once more, as C++ has it: containers for the memory's description, threads, lambdas. */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include <vroom.h>

namespace
{

constexpr std::size_t bytes = 4u << 20, pieces = 64;

void check(bool holds, const char *what)
{
	if (!holds)
		throw std::runtime_error(std::string(what) + ": " + vroom_error());
}

using Controller = std::unique_ptr<vroom_ctrlr, decltype(&vroom_close)>;
using Queue = std::unique_ptr<vroom_qpair, decltype(&vroom_qpair_destroy)>;

void finish(vroom_qpair *qp, const vroom_io &io)
{
	vroom_completion done;
	int n;

	check(vroom_submit(qp, &io) == 0, "submit");
	vroom_ring(qp);
	while ((n = vroom_poll(qp, &done, 1)) == 0)
		;
	check(n == 1 && done.status == 0, "completion");
}

void work(vroom_ctrlr *ctrlr, unsigned char *memory, unsigned number)
{
	unsigned char *from = memory, *to = memory + bytes;
	std::vector<iovec> iov(pieces);
	vroom_qpair *qp = nullptr;
	vroom_ns ns;
	vroom_io io;

	check(vroom_namespace(ctrlr, 0, &ns, nullptr) == 0, "namespace");
	check(vroom_qpair_create(ctrlr, 16, &qp) == 0, "queue pair");
	Queue owner(qp, vroom_qpair_destroy);
	const std::uint64_t nlb = bytes >> ns.lba_shift, slba = number * nlb;

	for (std::size_t i = 0; i < bytes; i++)
		from[i] = static_cast<unsigned char>(i / 512 * 5 + i + number);
	for (std::size_t i = 0; i < pieces; i++)
		iov[i] = iovec{ from + (pieces - 1 - i) * (bytes / pieces), bytes / pieces };
	vroom_prep_writev(&io, &ns, iov.data(), pieces, slba, nlb, nullptr);
	finish(qp, io);
	for (std::size_t i = 0; i < pieces; i++)
		iov[i].iov_base = to + (pieces - 1 - i) * (bytes / pieces);
	vroom_prep_readv(&io, &ns, iov.data(), pieces, slba, nlb, nullptr);
	finish(qp, io);
	check(std::memcmp(from, to, bytes) == 0, "the same through vectors");
	vroom_prep_read(&io, &ns, to, slba, nlb, nullptr);
	finish(qp, io);
	check(std::memcmp(from, to + (pieces - 1) * (bytes / pieces), bytes / pieces) == 0,
	      "the first piece comes last");
}

} // namespace

int main(int, char **argv)
try {
	const int fd = memfd_create("outsider", MFD_CLOEXEC);
	vroom_ctrlr *ctrlr = nullptr;
	vroom_opts opts = {};

	check(fd >= 0 && ftruncate(fd, 4 * bytes) == 0, "memfd");
	void *mapped = mmap(nullptr, 4 * bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	check(mapped != MAP_FAILED, "mmap");
	auto *memory = static_cast<unsigned char *>(mapped);
	opts.io_timeout_ms = 10000;
	check(vroom_open(argv[1], &opts, &ctrlr) == 0, "open");
	Controller owner(ctrlr, vroom_close);
	check(vroom_dma_register(ctrlr, memory, 4 * bytes, fd, 0) == 0, "register");
	/* One for all: what a thread throws ends the program with its words. */
	std::thread first([&] { work(ctrlr, memory, 0); });
	std::thread second([&] { work(ctrlr, memory + 2 * bytes, 1); });
	first.join();
	second.join();
	check(vroom_dma_unregister(ctrlr, memory, 4 * bytes) == 0, "unregister");
	std::printf("as written, version %s\n", VROOM_VERSION);
	return 0;
} catch (const std::exception &failure) {
	std::fprintf(stderr, "%s\n", failure.what());
	return 1;
}
