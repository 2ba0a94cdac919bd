// Detects the processor's instruction sets and chooses the kernels to run.
#pragma once

#include <string>

namespace skipdec {

// From the simplest to the best of each architecture; each kernel family has a table for a set or
// falls back to the next simpler set.
enum class InstructionSet {
  kPortable,    // any processor
  kNeon,        // aarch64 with dot products (asimddp)
  kAvx2,        // x86-64-v3: AVX2, FMA, F16C
  kAvxVnni,     // kAvx2 with 256-bit VNNI
  kAvx512Vnni,  // AVX-512 F, BW, DQ, VL and VNNI
  kAmx,         // kAvx512Vnni with AMX int8 tiles, which Linux must grant
};

// Name in tables, variables and messages: portable, neon, avx2, avxvnni, avx512vnni, amx.
const char* name_of(InstructionSet set);

// Returns true if this processor and the operating system can run ``set``.
bool is_available(InstructionSet set);

// AMD's generations with AVX-512, by processor family.
enum class Zen { k4 = 25, k5 = 26 };

// Returns true on AMD's processors with AVX-512 from ``generation`` on, for kernels that read
// weights fastest there as one stream. A test build (scripts/kernels/emulated.sh) returns the
// opposite, so that tests run both ways of reading.
bool reads_streams(Zen generation);

// Returns the names of the available sets, best first, separated by spaces.
std::string available_instruction_sets();

// Returns the best available set, or the one that SKIPDEC_INSTRUCTION_SET names. The variable is
// read on each call, so that tests can force one session after another. Throws OperatorError for a
// name that is unknown or cannot run here.
InstructionSet chosen_instruction_set();

}  // namespace skipdec
