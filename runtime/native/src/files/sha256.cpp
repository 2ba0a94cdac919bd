#include "files/sha256.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace skipdec::runtime {
namespace {

// First 32 bits of the fractional parts of the cube roots of the first 64 primes.
alignas(16) constexpr std::array<std::uint32_t, 64> kRound{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

// First 32 bits of the fractional parts of the square roots of the first 8 primes.
constexpr std::array<std::uint32_t, 8> kStart{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                              0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

constexpr std::uint32_t rotated(std::uint32_t word, int bits) {
  return word >> bits | word << (32 - bits);
}

std::uint32_t big_endian(const std::uint8_t* bytes) {
  return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 |
         std::uint32_t{bytes[2]} << 8 | std::uint32_t{bytes[3]};
}

}  // namespace

Sha256::Sha256(bool may_use_extensions)
    : compress_(may_use_extensions && has_extensions() ? compress_extended : compress_portable),
      state_(kStart) {}

void Sha256::update(const void* data, std::size_t size) {
  const auto* bytes = static_cast<const std::uint8_t*>(data);
  const std::size_t held = total_ % kBlockBytes;
  total_ += size;
  if (held != 0) {
    const std::size_t taken = std::min(size, kBlockBytes - held);
    std::copy_n(bytes, taken, rest_.begin() + static_cast<std::ptrdiff_t>(held));
    if (held + taken < kBlockBytes) return;
    compress_(state_, rest_.data(), 1);
    bytes += taken;
    size -= taken;
  }
  compress_(state_, bytes, size / kBlockBytes);
  std::copy_n(bytes + size / kBlockBytes * kBlockBytes, size % kBlockBytes, rest_.begin());
}

std::string Sha256::hex_digest() {
  constexpr std::size_t kLengthBytes = 8;
  const std::uint64_t bits = total_ * 8;
  std::array<std::uint8_t, 2 * kBlockBytes> padding{0x80};
  // The padding is a one bit, zeros up to the last eight bytes of a block, and the length in bits.
  const std::size_t held = total_ % kBlockBytes;
  const std::size_t zeros_end =
      (held < kBlockBytes - kLengthBytes ? 1 : 2) * kBlockBytes - kLengthBytes - held;
  for (std::size_t i = 0; i < kLengthBytes; ++i)
    padding[zeros_end + i] = static_cast<std::uint8_t>(bits >> (56 - 8 * i));
  update(padding.data(), zeros_end + kLengthBytes);

  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::uint32_t word : state_)
    for (int shift = 28; shift >= 0; shift -= 4) text += kDigits[word >> shift & 0xF];
  return text;
}

void Sha256::compress_portable(State& state, const std::uint8_t* blocks, std::size_t count) {
  for (; count != 0; --count, blocks += kBlockBytes) {
    std::array<std::uint32_t, 64> words;
    for (std::size_t i = 0; i < 16; ++i) words[i] = big_endian(blocks + 4 * i);
    for (std::size_t i = 16; i < 64; ++i) {
      const std::uint32_t near = words[i - 2], far = words[i - 15];
      words[i] = words[i - 16] + (rotated(far, 7) ^ rotated(far, 18) ^ far >> 3) + words[i - 7] +
                 (rotated(near, 17) ^ rotated(near, 19) ^ near >> 10);
    }
    auto [a, b, c, d, e, f, g, h] = state;
    for (std::size_t i = 0; i < 64; ++i) {
      const std::uint32_t first = h + (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)) +
                                  ((e & f) ^ (~e & g)) + kRound[i] + words[i];
      const std::uint32_t second =
          (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + first;
      d = c, c = b, b = a, a = first + second;
    }
    const State added{a, b, c, d, e, f, g, h};
    for (std::size_t i = 0; i < state.size(); ++i) state[i] += added[i];
  }
}

#if defined(__x86_64__)

bool Sha256::has_extensions() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool has_sse = __builtin_cpu_supports("sse4.1");
  return has_sse && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ebx >> 29 & 1) != 0;
}

// Two registers hold the state, (a, b, e, f) and (c, d, g, h) from the highest lane down; four hold
// the last sixteen words of the message, and every four rounds consume one of them.
__attribute__((target("sha,sse4.1"))) void Sha256::compress_extended(State& state,
                                                                     const std::uint8_t* blocks,
                                                                     std::size_t count) {
  const auto lane = [&state](std::size_t i) { return static_cast<int>(state[i]); };
  const __m128i to_big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  __m128i abef = _mm_set_epi32(lane(0), lane(1), lane(4), lane(5));
  __m128i cdgh = _mm_set_epi32(lane(2), lane(3), lane(6), lane(7));
  for (; count != 0; --count, blocks += kBlockBytes) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i words[4];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      __m128i& now = words[i & 3];
      if (i < 4) {
        now = _mm_loadu_si128(reinterpret_cast<const __m128i*>(blocks) + i);
        now = _mm_shuffle_epi8(now, to_big_endian);
      } else {
        const __m128i last = words[(i + 3) & 3];
        const __m128i seventh = _mm_alignr_epi8(last, words[(i + 2) & 3], 4);
        now = _mm_add_epi32(_mm_sha256msg1_epu32(now, words[(i + 1) & 3]), seventh);
        now = _mm_sha256msg2_epu32(now, last);
      }
      const auto* constants = reinterpret_cast<const __m128i*>(kRound.data()) + i;
      const __m128i added = _mm_add_epi32(now, _mm_load_si128(constants));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, added);  // the old abef becomes cdgh
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(added, 0x0E));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  alignas(16) std::array<std::uint32_t, 4> upper, lower;
  _mm_store_si128(reinterpret_cast<__m128i*>(upper.data()), abef);
  _mm_store_si128(reinterpret_cast<__m128i*>(lower.data()), cdgh);
  state = {upper[3], upper[2], lower[3], lower[2], upper[1], upper[0], lower[1], lower[0]};
}

#else

bool Sha256::has_extensions() { return false; }

void Sha256::compress_extended(State& state, const std::uint8_t* blocks, std::size_t count) {
  compress_portable(state, blocks, count);
}

#endif

bool is_sha256(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string sha256_hex(std::string_view content) {
  Sha256 hash;
  hash.update(content.data(), content.size());
  return hash.hex_digest();
}

}  // namespace skipdec::runtime
