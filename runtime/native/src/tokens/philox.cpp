#include "tokens/philox.h"

#include <sys/random.h>

#include <cerrno>
#include <cstring>

#include "errors.h"

namespace skipdec::runtime {
namespace {

// Returns the 128 bits of a · b.
struct Product {
  std::uint64_t high, low;
};

Product product(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide wide = static_cast<Wide>(a) * b;
  return {static_cast<std::uint64_t>(wide >> 64), static_cast<std::uint64_t>(wide)};
}

}  // namespace

Philox::Block Philox::block_of(std::uint64_t counter, Key key) {
  Block x = {counter, 0, 0, 0};
  for (int round = 0; round < 10; ++round) {
    const Product first = product(0xD2E7470EE14C6C93U, x[0]);
    const Product second = product(0xCA5A826395121157U, x[2]);
    x = {second.high ^ x[1] ^ key[0], second.low, first.high ^ x[3] ^ key[1], first.low};
    key[0] += 0x9E3779B97F4A7C15U;
    key[1] += 0xBB67AE8584CAA73BU;
  }
  return x;
}

Philox Philox::of_entropy() {
  Key key{};
  ssize_t read;
  do {
    read = getrandom(key.data(), sizeof key, 0);  // so few bytes are always read at once
  } while (read < 0 && errno == EINTR);
  if (read != static_cast<ssize_t>(sizeof key)) {
    throw Error(Status::kEnvironment, "seed",
                std::string("is none, and the system gives no entropy: ") + std::strerror(errno) +
                    "; give a seed");
  }
  return Philox(key);
}

}  // namespace skipdec::runtime
