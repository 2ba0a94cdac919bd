// Unicode normalization form NFC, as the `tokenizers` package defines it.
#pragma once

#include <string>
#include <string_view>

namespace skipdec::runtime {

// Returns `text`, valid UTF-8, in canonical composition: "e" and U+0301 become "é". Takes n log n
// for n bytes.
std::string composed(std::string_view text);

}  // namespace skipdec::runtime
