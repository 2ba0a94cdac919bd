#include "bundle/manifest.h"
#include "errors.h"
#include "fuzzing.h"
#include "sealed.h"

extern "C" int fuzz_manifest(const std::uint8_t* data, std::size_t size) {
  try {
    const auto text = skipdec::fuzzing::sealed({reinterpret_cast<const char*>(data), size});
    skipdec::runtime::Manifest::parse(text, "manifest.json");
  } catch (const skipdec::runtime::Error&) {
  }
  return 0;
}
