#include "processor/instruction_set.h"

#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "operators/context.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace skipdec {
namespace {

struct Entry {
  InstructionSet set;
  const char* name;
};

// A test build (scripts/kernels/emulated.sh) has AMX and AVX-VNNI on any processor with AVX-512
// VNNI.
#if defined(SKIPDEC_EMULATED)
constexpr bool kIsEmulated = true;
#else
constexpr bool kIsEmulated = false;
#endif

// Best first.
constexpr std::array<Entry, 6> kEntries{{
    {InstructionSet::kAmx, "amx"},
    {InstructionSet::kAvx512Vnni, "avx512vnni"},
    {InstructionSet::kAvxVnni, "avxvnni"},
    {InstructionSet::kAvx2, "avx2"},
    {InstructionSet::kNeon, "neon"},
    {InstructionSet::kPortable, "portable"},
}};

#if defined(__x86_64__)

struct Registers {
  std::uint32_t a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(std::uint32_t leaf, std::uint32_t subleaf) {
  Registers r;
  __get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d);
  return r;
}

constexpr bool has(std::uint32_t word, int bit) { return ((word >> bit) & 1U) != 0; }

// Register state that the system saves on a context switch (XCR0).
std::uint64_t saved_state() {
  if (!has(cpuid(1, 0).c, 27)) return 0;  // OSXSAVE
  std::uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<std::uint64_t>(high) << 32) | low;
}

bool saves(std::uint64_t mask) { return (saved_state() & mask) == mask; }

bool has_avx2() {
  const Registers basic = cpuid(1, 0), extended = cpuid(7, 0);
  constexpr std::uint64_t kYmm = 0x6;
  return saves(kYmm) && has(basic.c, 12) && has(basic.c, 29) && has(extended.b, 5);  // FMA, F16C
}

bool has_avx512_vnni() {
  const Registers extended = cpuid(7, 0);
  constexpr std::uint64_t kZmm = 0xe6;
  return has_avx2() && saves(kZmm) && has(extended.b, 16) && has(extended.b, 17) &&
         has(extended.b, 30) && has(extended.b, 31) && has(extended.c, 11);
}

// Linux grants a process the tiles' 8 KB of state only on request, once for all its threads.
bool is_granted_tiles() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
#else
  return false;
#endif
}

std::uint32_t amd_family() {
  constexpr std::uint32_t kAmd = 0x68747541;  // the first letters of AuthenticAMD
  const std::uint32_t signature = cpuid(1, 0).a;
  const std::uint32_t family = (signature >> 8 & 0xf) + (signature >> 20 & 0xff);
  return cpuid(0, 0).b == kAmd ? family : 0;
}

bool has_avx_vnni() {
  if (kIsEmulated) return has_avx512_vnni();
  return has_avx2() && has(cpuid(7, 1).a, 4);
}

bool has_amx() {
  if (kIsEmulated) return has_avx512_vnni();
  const Registers extended = cpuid(7, 0);
  constexpr std::uint64_t kTiles = 0x60000;
  return has_avx512_vnni() && saves(kTiles) && has(extended.d, 24) && has(extended.d, 25) &&
         is_granted_tiles();
}

bool detect(InstructionSet set) {
  switch (set) {
    case InstructionSet::kPortable:
      return true;
    case InstructionSet::kNeon:
      return false;
    case InstructionSet::kAvx2:
      return has_avx2();
    case InstructionSet::kAvxVnni:
      return has_avx_vnni();
    case InstructionSet::kAvx512Vnni:
      return has_avx512_vnni();
    case InstructionSet::kAmx:
      return has_amx();
  }
  return false;
}

#else

std::uint32_t amd_family() { return 0; }

bool detect(InstructionSet set) {
#if defined(__aarch64__) && defined(__linux__)
  constexpr unsigned long kDotProducts = 1UL << 20;  // HWCAP_ASIMDDP
  if (set == InstructionSet::kNeon) return (getauxval(AT_HWCAP) & kDotProducts) != 0;
#endif
  return set == InstructionSet::kPortable;
}

#endif

}  // namespace

const char* name_of(InstructionSet set) {
  for (const Entry& entry : kEntries) {
    if (entry.set == set) return entry.name;
  }
  return "";
}

bool is_available(InstructionSet set) {
  static const std::array<bool, kEntries.size()> available = [] {
    std::array<bool, kEntries.size()> found{};
    for (const Entry& entry : kEntries)
      found[static_cast<std::size_t>(entry.set)] = detect(entry.set);
    return found;
  }();
  return available[static_cast<std::size_t>(set)];
}

bool reads_streams(Zen generation) {
  static const std::uint32_t family = amd_family();
  return (family >= static_cast<std::uint32_t>(generation)) != kIsEmulated;
}

std::string available_instruction_sets() {
  std::string names;
  for (const Entry& entry : kEntries) {
    if (is_available(entry.set)) names += (names.empty() ? "" : " ") + std::string(entry.name);
  }
  return names;
}

InstructionSet chosen_instruction_set() {
  const char* variable = std::getenv("SKIPDEC_INSTRUCTION_SET");
  const std::string forced = variable == nullptr ? "" : variable;
  for (const Entry& entry : kEntries) {
    if (is_available(entry.set) && (forced.empty() || forced == entry.name)) return entry.set;
  }
  throw OperatorError("SKIPDEC_INSTRUCTION_SET is " + forced +
                      "; allowed here: " + available_instruction_sets());
}

}  // namespace skipdec
