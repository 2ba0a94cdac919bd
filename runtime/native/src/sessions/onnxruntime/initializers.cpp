#include "sessions/onnxruntime/initializers.h"

#include <functional>
#include <map>
#include <stdexcept>

namespace skipdec::runtime::onnxruntime {
namespace {

// Numbers of the fields of onnx.proto that this file reads.
constexpr std::uint64_t kModelGraph = 7, kGraphInitializer = 5;
constexpr std::uint64_t kTensorDims = 1, kTensorType = 2, kTensorName = 8, kTensorExternal = 13;
constexpr std::uint64_t kEntryKey = 1, kEntryValue = 2;

struct Field {
  std::uint64_t number = 0;
  bool is_bytes = false;
  std::uint64_t value = 0;
  std::string_view bytes;  // text, message or packed numbers
};

// Reads the fields of a serialised message.
class Message {
 public:
  explicit Message(std::string_view rest) : rest_(rest) {}

  bool is_at_end() const { return rest_.empty(); }

  // Reads a varint: seven bits per byte, lowest first.
  std::uint64_t varint() {
    std::uint64_t number = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(taken(1).front());
      number |= std::uint64_t{byte & 0x7FU} << shift;
      if ((byte & 0x80U) == 0) return number;
    }
    throw std::invalid_argument("a number of more than 64 bits");
  }

  Field field() {
    const std::uint64_t key = varint();
    Field field;
    field.number = key >> 3;
    switch (key & 7) {
      case 0:
        field.value = varint();
        break;
      case 1:
        taken(8);
        break;
      case 2:
        field.is_bytes = true;
        field.bytes = taken(varint());
        break;
      case 5:
        taken(4);
        break;
      default:
        throw std::invalid_argument("a field of kind " + std::to_string(key & 7));
    }
    return field;
  }

 private:
  std::string_view taken(std::uint64_t count) {
    if (count > rest_.size()) throw std::invalid_argument("a message that breaks off");
    const std::string_view part = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return part;
  }

  std::string_view rest_;
};

// Calls ``visit`` with each message or text of field ``number`` in ``message``.
void for_each(std::string_view message, std::uint64_t number,
              const std::function<void(std::string_view)>& visit) {
  for (Message rest(message); !rest.is_at_end();) {
    const Field field = rest.field();
    if (field.number == number && field.is_bytes) visit(field.bytes);
  }
}

std::int64_t dimension(std::uint64_t value) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 40;
  if (value > kMost) throw std::invalid_argument("a dimension of " + std::to_string(value));
  return static_cast<std::int64_t>(value);
}

std::uint64_t element_bytes(int type) {
  static const std::map<int, std::uint64_t> bytes{{1, 4}, {2, 1},  {3, 1}, {6, 4},
                                                  {7, 8}, {10, 2}, {16, 2}};
  const auto found = bytes.find(type);
  if (found == bytes.end())
    throw std::invalid_argument("weights of ONNX's type " + std::to_string(type));
  return found->second;
}

std::uint64_t number_of(const std::string& text) {
  constexpr std::size_t kMostDigits = 18;
  if (text.empty() || text.size() > kMostDigits ||
      text.find_first_not_of("0123456789") != std::string::npos)
    throw std::invalid_argument("the offset '" + text.substr(0, 2 * kMostDigits) + "'");
  return std::stoull(text);
}

std::uint64_t bytes_of(const ExternalTensor& tensor) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 40;
  std::uint64_t bytes = element_bytes(tensor.element_type);
  for (const std::int64_t size : tensor.shape) {
    if (size != 0 && bytes > kMost / static_cast<std::uint64_t>(size))
      throw std::invalid_argument("weights of more than " + std::to_string(kMost) + " bytes");
    bytes *= static_cast<std::uint64_t>(size);
  }
  return bytes;
}

void read_dimensions(const Field& field, std::vector<std::int64_t>& shape) {
  constexpr std::size_t kMostDimensions = 8;
  if (field.is_bytes) {
    for (Message numbers(field.bytes); !numbers.is_at_end() && shape.size() <= kMostDimensions;)
      shape.push_back(dimension(numbers.varint()));
  } else {
    shape.push_back(dimension(field.value));
  }
  if (shape.size() > kMostDimensions) throw std::invalid_argument("more than 8 dimensions");
}

ExternalTensor tensor_of(std::string_view message) {
  ExternalTensor tensor;
  std::map<std::string, std::string> entries;
  for (Message rest(message); !rest.is_at_end();) {
    const Field field = rest.field();
    if (field.number == kTensorDims) read_dimensions(field, tensor.shape);
    if (field.number == kTensorType) tensor.element_type = static_cast<int>(field.value);
    if (field.number == kTensorName) tensor.name = field.bytes;
    if (field.number != kTensorExternal) continue;
    std::string key, value;
    for_each(field.bytes, kEntryKey, [&key](std::string_view text) { key = text; });
    for_each(field.bytes, kEntryValue, [&value](std::string_view text) { value = text; });
    entries[key] = value;
  }
  if (entries.empty()) return tensor;
  tensor.file = entries["location"];
  if (tensor.file.empty()) throw std::invalid_argument("weights without a file");
  tensor.offset = entries.count("offset") == 0 ? 0 : number_of(entries["offset"]);
  tensor.size = bytes_of(tensor);
  return tensor;
}

}  // namespace

std::vector<ExternalTensor> external_tensors(std::string_view graph) {
  std::vector<ExternalTensor> tensors;
  for_each(graph, kModelGraph, [&tensors](std::string_view content) {
    for_each(content, kGraphInitializer, [&tensors](std::string_view message) {
      ExternalTensor tensor = tensor_of(message);
      if (!tensor.file.empty()) tensors.push_back(std::move(tensor));
    });
  });
  return tensors;
}

}  // namespace skipdec::runtime::onnxruntime
