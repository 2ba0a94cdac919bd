// read_bundles: reads paths of bundles, one per line, and answers each with a line: "open", or
// "refused", the code and the reason. Loads neither engines nor ONNX Runtime.
#include <skipdec/skipdec.h>

#include <algorithm>
#include <iostream>
#include <optional>
#include <string>

#include "bundle/bundle.h"
#include "constants.h"
#include "errors.h"
#include "scheduling/drafting/ngrams/known_ngrams.h"
#include "tokenizer/file/unsupported.h"
#include "tokenizer/tokenizer.h"

namespace {

using namespace skipdec::runtime;

void read(const std::string& path) {
  const auto bundle = Bundle::open(path, Verify::kFull);
  bundle->await_weights();
  known_ngrams(*bundle);
  const Manifest& manifest = bundle->manifest();
  if (!manifest.tokenizer) return;
  try {
    Tokenizer::parse(bundle->read(*manifest.tokenizer, skipdec::constants::kMaxTokenizerBytes),
                     path + "/" + *manifest.tokenizer, manifest.prompt_template);
  } catch (const UnsupportedTokenizer&) {  // such a bundle runs on token ids
  }
}

}  // namespace

int main() {
  for (std::string path; std::getline(std::cin, path);) {
    std::string answer = "open";
    try {
      read(path);
    } catch (const Error& error) {
      answer = std::string("refused ") +
               skipdec_status_name(static_cast<skipdec_status>(error.status())) + ": " +
               error.what();
      std::replace(answer.begin(), answer.end(), '\n', ' ');
    }
    std::cout << answer << std::endl;
  }
}
