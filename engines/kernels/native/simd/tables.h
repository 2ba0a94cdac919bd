// Tables of kernels on vectors of floats, one for each instruction set with a Vector.
#pragma once

#include "processor/instruction_set.h"

// Declares the tables portable_NAME(), avx2_NAME() … of this architecture, and defines NAME(set),
// the table of ``set`` or of the next simpler set that has one.
#if defined(__x86_64__)
#define SKIPDEC_TABLES(Table, name)                                          \
  Table portable_##name();                                                   \
  Table avx2_##name();                                                       \
  Table avx512_##name();                                                     \
  inline Table name(InstructionSet set) {                                    \
    if (set >= InstructionSet::kAvx512Vnni) return avx512_##name();          \
    return set >= InstructionSet::kAvx2 ? avx2_##name() : portable_##name(); \
  }
#elif defined(__aarch64__)
#define SKIPDEC_TABLES(Table, name)                                          \
  Table portable_##name();                                                   \
  Table neon_##name();                                                       \
  inline Table name(InstructionSet set) {                                    \
    return set == InstructionSet::kNeon ? neon_##name() : portable_##name(); \
  }
#else
#define SKIPDEC_TABLES(Table, name) \
  Table portable_##name();          \
  inline Table name(InstructionSet /*set*/) { return portable_##name(); }
#endif
