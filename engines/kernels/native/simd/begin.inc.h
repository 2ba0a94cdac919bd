// Begins code of one instruction set, which the source file names: SKIPDEC_PORTABLE, SKIPDEC_NEON,
// SKIPDEC_NEON_DOT, SKIPDEC_AVX2, SKIPDEC_AVXVNNI, SKIPDEC_AVX512, SKIPDEC_AVX512VNNI or
// SKIPDEC_AMX.
//
// Include it after all headers that other code shares, which would otherwise be compiled for the
// set, and simd/end.inc.h after the code. It defines the set's Vector, and SKIPDEC_NAMED(table) as
// the name of the set's table, e.g. avx2_table.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <type_traits>
#include <utility>

#include "simd/element.h"
#include "simd/intrinsics.h"

#if defined(__clang__)
#define SKIPDEC_PRAGMA(...) _Pragma(#__VA_ARGS__)
#define SKIPDEC_TARGET(set) \
  SKIPDEC_PRAGMA(clang attribute push(__attribute__((target(set))), apply_to = function))
#if defined(SKIPDEC_AVX2)
SKIPDEC_TARGET("avx2,fma,f16c")
#elif defined(SKIPDEC_AVXVNNI)
SKIPDEC_TARGET("avx2,avxvnni,fma,f16c")
#elif defined(SKIPDEC_AVX512)
SKIPDEC_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#elif defined(SKIPDEC_AVX512VNNI)
SKIPDEC_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")
#elif defined(SKIPDEC_AMX)
SKIPDEC_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,amx-tile,amx-int8")
#elif defined(SKIPDEC_NEON_DOT)
SKIPDEC_TARGET("dotprod")
#endif
#else
#pragma GCC push_options
#if defined(SKIPDEC_AVX2)
#pragma GCC target("avx2,fma,f16c")
#elif defined(SKIPDEC_AVXVNNI) && defined(SKIPDEC_EMULATED)
#pragma GCC target("avx2,avx512vl,avx512vnni,fma,f16c")
#elif defined(SKIPDEC_AVXVNNI)
#pragma GCC target("avx2,avxvnni,fma,f16c")
#elif defined(SKIPDEC_AVX512)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#elif defined(SKIPDEC_AVX512VNNI)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")
#elif defined(SKIPDEC_AMX)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,amx-tile,amx-int8")
#elif defined(SKIPDEC_NEON_DOT)
#pragma GCC target("arch=armv8.2-a+dotprod")
#endif
#endif

#if defined(SKIPDEC_AVX2)
#define SKIPDEC_NAMED(table) avx2_##table
#include "simd/vector_avx2.inc.h"
#elif defined(SKIPDEC_AVXVNNI)
#define SKIPDEC_NAMED(table) avxvnni_##table
#include "simd/vector_avx2.inc.h"
#elif defined(SKIPDEC_AVX512)
#define SKIPDEC_NAMED(table) avx512_##table
#include "simd/vector_avx512.inc.h"
#elif defined(SKIPDEC_AVX512VNNI)
#define SKIPDEC_NAMED(table) avx512vnni_##table
#include "simd/vector_avx512.inc.h"
#elif defined(SKIPDEC_AMX)
#define SKIPDEC_NAMED(table) amx_##table
#include "simd/vector_avx512.inc.h"
#elif defined(SKIPDEC_NEON) || defined(SKIPDEC_NEON_DOT)
#define SKIPDEC_NAMED(table) neon_##table
#include "simd/vector_neon.inc.h"
#else
#define SKIPDEC_NAMED(table) portable_##table
#include "simd/vector_portable.inc.h"
#endif

#include "simd/lanes.inc.h"
