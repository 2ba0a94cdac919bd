// Which instructions this processor has, and so which kernels run.
#pragma once

#include <string>

namespace skipdec {

// From the plainest to the best on each make; each kernel family has a table for all or falls back
// to the next plainer one.
enum class InstructionSet {
  kPortable,    // any processor
  kNeon,        // aarch64 with dot products (asimddp)
  kAvx2,        // x86-64-v3: AVX2, FMA, F16C
  kAvxVnni,     // kAvx2 with 256-bit VNNI
  kAvx512Vnni,  // AVX-512 F, BW, DQ, VL and VNNI
  kAmx,         // kAvx512Vnni with AMX int8 tiles, which the kernel must grant
};

// What a table, a variable or a person calls it: portable, neon, avx2, avxvnni, avx512vnni, amx.
const char* name_of(InstructionSet set);

// Whether this processor, and the system's kernel, can run it.
bool is_available(InstructionSet set);

// The names of the available ones, the best first, with a space between.
std::string available_instruction_sets();

// The best available one, or what SKIPDEC_INSTRUCTION_SET names: read on each call, so that tests
// can force one session after another. Throws OperatorError for a name that is unknown or can't run
// here.
InstructionSet chosen_instruction_set();

}  // namespace skipdec
