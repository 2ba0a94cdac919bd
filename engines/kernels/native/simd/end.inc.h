// Ends what simd/begin.inc.h begins.
#if !defined(__clang__)
#pragma GCC pop_options
#elif !defined(SKIPDEC_PORTABLE) && !defined(SKIPDEC_NEON)
#pragma clang attribute pop
#endif
