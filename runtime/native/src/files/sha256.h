// SHA-256 (FIPS 180-4), using the processor's SHA extensions if it has them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace skipdec::runtime {

class Sha256 {
 public:
  // Uses portable code if the extensions are missing or disabled.
  explicit Sha256(bool may_use_extensions = true);

  void update(const void* data, std::size_t size);
  // Returns 64 lower-case hexadecimal digits; `update` must not be called afterwards.
  std::string hex_digest();

  // True if this processor has SHA extensions that this code supports.
  static bool has_extensions();

 private:
  static constexpr std::size_t kBlockBytes = 64;
  using State = std::array<std::uint32_t, 8>;
  using Compress = void (*)(State& state, const std::uint8_t* blocks, std::size_t count);

  static void compress_portable(State& state, const std::uint8_t* blocks, std::size_t count);
  static void compress_extended(State& state, const std::uint8_t* blocks, std::size_t count);

  Compress compress_;
  State state_;
  std::array<std::uint8_t, kBlockBytes> rest_{};  // bytes since the last complete block
  std::uint64_t total_ = 0;                       // in bytes
};

std::string sha256_hex(std::string_view content);

// Returns true for 64 lower-case hexadecimal digits.
bool is_sha256(std::string_view text);

}  // namespace skipdec::runtime
