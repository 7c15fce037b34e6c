/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * SCIF from C++: endpoints that close themselves, failures as exceptions, and a connection within
 * one thread, which a non-blocking connect makes possible.
 */
#include <scif.h>

#include <fcntl.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace {

template <typename T> T checked(T value, const char *what)
{
	if (value < 0)
		throw std::system_error(errno, std::generic_category(), what);
	return value;
}

class Endpoint {
public:
	Endpoint() : epd_(checked(scif_open(), "scif_open")) {}
	explicit Endpoint(scif_epd_t epd) : epd_(epd) {}
	Endpoint(Endpoint &&other) noexcept : epd_(std::exchange(other.epd_, SCIF_OPEN_FAILED)) {}
	Endpoint(const Endpoint &) = delete;
	Endpoint &operator=(const Endpoint &) = delete;
	~Endpoint()
	{
		if (epd_ != SCIF_OPEN_FAILED)
			scif_close(epd_);
	}

	std::uint16_t listen(int backlog)
	{
		auto port = static_cast<std::uint16_t>(checked(scif_bind(epd_, 0), "scif_bind"));
		checked(scif_listen(epd_, backlog), "scif_listen");
		return port;
	}

	/* Begins to connect; `finish` returns once somebody has accepted. */
	void begin(scif_portID to)
	{
		checked(fcntl(scif_get_fd(epd_), F_SETFL, O_NONBLOCK), "fcntl");
		if (scif_connect(epd_, &to) != -1 || errno != EINPROGRESS)
			throw std::system_error(errno, std::generic_category(), "scif_connect");
		to_ = to;
	}

	void finish()
	{
		scif_pollepd entry = { epd_, SCIF_POLLOUT, 0 };
		checked(scif_poll(&entry, 1, -1), "scif_poll");
		checked(scif_connect(epd_, &to_), "scif_connect");
	}

	Endpoint accept()
	{
		scif_portID from;
		scif_epd_t fresh;
		checked(scif_accept(epd_, &from, &fresh, SCIF_ACCEPT_SYNC), "scif_accept");
		return Endpoint(fresh);
	}

	void send(const std::string &text)
	{
		auto bytes = static_cast<int>(text.size());
		std::vector<char> copy(text.begin(), text.end());
		checked(scif_send(epd_, &bytes, sizeof(bytes), SCIF_SEND_BLOCK), "scif_send");
		checked(scif_send(epd_, copy.data(), bytes, SCIF_SEND_BLOCK), "scif_send");
	}

	std::string receive()
	{
		int bytes = 0;
		checked(scif_recv(epd_, &bytes, sizeof(bytes), SCIF_RECV_BLOCK), "scif_recv");
		std::string text(static_cast<std::size_t>(bytes), ' ');
		checked(scif_recv(epd_, text.data(), bytes, SCIF_RECV_BLOCK), "scif_recv");
		return text;
	}

private:
	scif_epd_t epd_;
	scif_portID to_ = {};
};

} // namespace

int main()
try {
	std::uint16_t nodes[16], self = 0;
	checked(scif_get_nodeIDs(nodes, 16, &self), "scif_get_nodeIDs");
	Endpoint listener;
	scif_portID here = { self, listener.listen(1) };
	Endpoint one;
	one.begin(here);
	Endpoint other = listener.accept();
	one.finish();
	one.send("question");
	std::string question = other.receive();
	other.send(question + " and answer");
	std::string answer = one.receive();
	std::printf("talk: %s\n", answer.c_str());
	{
		Endpoint gone(std::move(other));
	}
	try {
		one.receive();
		return 1;
	} catch (const std::system_error &error) {
		std::printf("talk: %s\n", error.what());
		return answer == "question and answer" && error.code().value() == ECONNRESET ? 0 : 1;
	}
} catch (const std::exception &error) {
	std::fprintf(stderr, "talk: %s\n", error.what());
	return 1;
}
