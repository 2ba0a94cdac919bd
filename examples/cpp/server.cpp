// A small HTTP service for a bundle: POST /v1/completions as in OpenAI's API, and GET /health.
//
//   server opt-1.3b-int8 8080
//   curl -N localhost:8080/v1/completions -d '{"prompt": "Hello", "stream": true}'
//
// After SIGTERM or Ctrl-C, running requests finish.
#include <httplib.h>
#include <signal.h>

#include <atomic>
#include <charconv>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <skipdec/skipdec.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using nlohmann::json;

constexpr std::size_t kMaxBody = std::size_t{1} << 20;  // bytes
constexpr std::size_t kMaxAnswers = 64;                 // concurrent, one thread each
constexpr skipdec::Seconds kPatience{0.1};  // interval at which a silent stream checks its client

// ---- requests ----

struct Body {
  std::string prompt;
  bool stream = false;
  skipdec::Params params;
};

std::int64_t integer(const json& value) {
  if (!value.is_number_integer()) throw skipdec::Error(SKIPDEC_USAGE, "an integer");
  return value.get<std::int64_t>();
}

double number(const json& value) {
  if (!value.is_number()) throw skipdec::Error(SKIPDEC_USAGE, "a number");
  return value.get<double>();
}

std::string text(const json& value) {
  if (!value.is_string()) throw skipdec::Error(SKIPDEC_USAGE, "a text");
  return value.get<std::string>();
}

bool truth(const json& value) {
  if (!value.is_boolean()) throw skipdec::Error(SKIPDEC_USAGE, "true or false");
  return value.get<bool>();
}

std::uint64_t seed(const json& value) {
  if (!value.is_number_unsigned()) throw skipdec::Error(SKIPDEC_USAGE, "an integer from 0");
  return value.get<std::uint64_t>();
}

using Field = std::function<void(Body&, const json&)>;

// Only checks types; the library checks the values.
const std::map<std::string, Field>& fields() {
  static const std::map<std::string, Field> all = {
      {"prompt", [](Body& body, const json& value) { body.prompt = text(value); }},
      {"stream", [](Body& body, const json& value) { body.stream = truth(value); }},
      {"max_tokens", [](Body& body, const json& v) { body.params.max_tokens(integer(v)); }},
      {"temperature", [](Body& body, const json& v) { body.params.temperature(number(v)); }},
      {"top_k", [](Body& body, const json& v) { body.params.top_k(integer(v)); }},
      {"top_p", [](Body& body, const json& v) { body.params.top_p(number(v)); }},
      {"seed", [](Body& body, const json& v) { body.params.seed(seed(v)); }},
      {"schedule", [](Body& body, const json& v) { body.params.schedule(text(v)); }},
  };
  return all;
}

skipdec::Error refusal(const std::string& problem) { return {SKIPDEC_USAGE, "body | " + problem}; }

void require_known(const std::string& name) {
  if (fields().count(name) != 0) return;
  std::string allowed;
  for (const auto& known : fields()) allowed += " " + known.first;
  throw refusal(name + " is unknown; allowed:" + allowed);
}

// Refuses unknown and repeated names and nested values as soon as they are read, so that
// memory is bounded by the text's size.
json parse_fields(const std::string& content) {
  using Event = json::parse_event_t;
  std::set<std::string> names;
  std::string name;
  const auto check = [&](int depth, Event event, const json& read) {
    if (event == Event::key) {
      name = read.get<std::string>();
      require_known(name);
      if (!names.insert(name).second) throw refusal(name + " is given twice; give it once");
    } else if (event == Event::array_start || event == Event::object_start) {
      if (depth > 0) throw refusal(name + " is an array or object; allowed: one value");
      if (event == Event::array_start) throw refusal("is an array; give an object with a prompt");
    }
    return true;
  };
  json document = json::parse(content, check, false);
  if (!document.is_object()) throw refusal("is no JSON object; give one with a prompt");
  return document;
}

Body read_body(const std::string& content) {
  const json document = parse_fields(content);
  Body body;
  for (const auto& [name, value] : document.items()) {
    try {
      fields().at(name)(body, value);
    } catch (const skipdec::Error& error) {
      const std::string given = value.is_number() ? value.dump() : value.type_name();
      throw refusal(name + " is " + given + "; allowed: " + error.what());
    }
  }
  if (body.prompt.empty()) throw refusal("gives no prompt");
  return body;
}

// ---- responses ----

int http_status(skipdec_status status) {
  static const std::map<skipdec_status, int> codes = {
      {SKIPDEC_USAGE, 400}, {SKIPDEC_SCHEDULE, 400}, {SKIPDEC_CAPACITY, 400},
      {SKIPDEC_BUSY, 429},  {SKIPDEC_CLOSED, 503},
  };
  const auto found = codes.find(status);
  return found == codes.end() ? 500 : found->second;
}

json error_document(const std::string& message) { return {{"error", {{"message", message}}}}; }

json choice_of(std::int64_t index, const std::string& text,
               const std::optional<std::string>& finish_reason) {
  return {{"index", index},
          {"text", text},
          {"finish_reason", finish_reason ? json(*finish_reason) : json(nullptr)}};
}

// The layers that ran, by their number.
json layer_sets(const skipdec::Request& request, const skipdec::Completion& completion) {
  json found = json::object();
  for (const std::int64_t count : completion.layers) {
    const std::string key = std::to_string(count);
    if (!found.contains(key)) found[key] = request.layers(count);
  }
  return found;
}

json document_of(const skipdec::Request& request) {
  const skipdec::Completion completion = request.completion();
  return {{"object", "text_completion"},
          {"schedule", request.schedule()},
          {"choices", json::array({choice_of(0, completion.text, completion.finish_reason)})},
          {"layers", completion.layers},
          {"layer_sets", layer_sets(request, completion)},
          {"usage",
           {{"prompt_tokens", request.prompt_token_ids().size()},
            {"completion_tokens", completion.token_ids.size()}}}};
}

// Replaces bytes of the client's input that are not UTF-8.
std::string text_of(const json& document) {
  return document.dump(-1, ' ', false, json::error_handler_t::replace);
}

bool write_event(httplib::DataSink& sink, const std::string& data) {
  const std::string event = "data: " + data + "\n\n";
  return sink.write(event.data(), event.size());
}

// Sends the next event of a stream; returns false if the client has disconnected, which also
// cancels the request.
bool send_next(skipdec::Request& request, httplib::DataSink& sink) try {
  const std::optional<skipdec::Delta> delta = request.next(kPatience);
  if (delta) {
    const json choice = choice_of(delta->index, delta->text, delta->finish_reason);
    const json event = {{"object", "text_completion"}, {"choices", json::array({choice})}};
    return write_event(sink, text_of(event));
  }
  if (!request.has_ended()) return sink.is_writable();
  if (write_event(sink, "[DONE]")) sink.done();
  return true;
} catch (const skipdec::Error& error) {
  write_event(sink, text_of(error_document(error.what())));
  return false;
}

// Counts responses in flight.
class Answers {
 public:
  // Adds a response, which ends when the last copy of the return value is destroyed.
  std::shared_ptr<void> begin() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++count_;
    return {this, [](Answers* answers) { answers->end(); }};
  }

  void wait_for_all() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return count_ == 0; });
  }

 private:
  void end() {
    const std::lock_guard<std::mutex> lock(mutex_);
    --count_;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

class Service {
 public:
  explicit Service(const std::string& bundle) : engine_(bundle) {
    server_.new_task_queue = [] { return new httplib::ThreadPool(kMaxAnswers); };
    server_.set_payload_max_length(kMaxBody);
    server_.set_keep_alive_timeout(1);
    server_.Get("/health", [this](const httplib::Request&, httplib::Response& response) {
      answer_health(response);
    });
    server_.Post("/v1/completions",
                 [this](const httplib::Request& asked, httplib::Response& response) {
                   complete(asked, response);
                 });
  }

  // Serves until a signal arrives and running requests have finished. Returns false if it could not
  // listen.
  bool serve(int port, const sigset_t& signals) {
    if (port == 0) {
      port = server_.bind_to_any_port("127.0.0.1");
    } else if (!server_.bind_to_port("127.0.0.1", port)) {
      return false;
    }
    std::cout << "listening on http://127.0.0.1:" << port << std::endl;
    std::thread drainer([this, signals] {
      int number = 0;
      sigwait(&signals, &number);
      is_draining_ = true;
      engine_.drain();
      answers_.wait_for_all();  // stopping would cut them off
      server_.stop();
    });
    server_.listen_after_bind();
    drainer.join();
    return true;
  }

 private:
  static void answer(httplib::Response& response, int status, const json& document) {
    response.status = status;
    response.set_content(text_of(document), "application/json");
  }

  void answer_health(httplib::Response& response) const {
    const skipdec::Stats stats = engine_.stats();
    answer(response, is_draining_ ? 503 : 200,
           {{"status", is_draining_ ? "draining" : "ok"},
            {"running", stats.running},
            {"waiting", stats.waiting},
            {"aborted", stats.aborted}});
  }

  void complete(const httplib::Request& asked, httplib::Response& response) {
    const std::shared_ptr<void> running = answers_.begin();
    try {
      const Body body = read_body(asked.body);
      auto request = std::make_shared<skipdec::Request>(engine_.submit(body.prompt, body.params));
      if (body.stream) {
        response.set_chunked_content_provider(
            "text/event-stream", [running, request](std::size_t, httplib::DataSink& sink) {
              return send_next(*request, sink);
            });
        return;
      }
      request->wait();
      answer(response, 200, document_of(*request));
    } catch (const skipdec::Error& error) {
      answer(response, http_status(error.status()), error_document(error.what()));
    }
  }

  skipdec::Engine engine_;
  Answers answers_;
  std::atomic<bool> is_draining_{false};
  httplib::Server server_;
};

// Parses a port; 0 is any that is free.
int port_of(const std::string& text) {
  std::uint16_t port = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, port);
  if (error != std::errc() || stop != end) {
    throw skipdec::Error(SKIPDEC_USAGE, "port | is '" + text + "'; allowed: 0 to 65535");
  }
  return port;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) throw skipdec::Error(SKIPDEC_USAGE, "usage: server BUNDLE PORT");
  const int port = port_of(argv[2]);
  sigset_t signals;  // blocked in this thread and those that it starts
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);  // raised when clients disconnect
  Service service(argv[1]);
  if (!service.serve(port, signals)) {
    throw skipdec::Error(SKIPDEC_ENVIRONMENT, std::string("port ") + argv[2] + " can't be used");
  }
  return EXIT_SUCCESS;
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << '\n';
  return EXIT_FAILURE;
}
