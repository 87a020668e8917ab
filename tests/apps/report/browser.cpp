// Chromium's debugging protocol over two pipes: JSON messages that end with a zero byte.
#include "tests/apps/report/browser.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tensor/base/error.h"

namespace brine::tests {
namespace {

using Json = nlohmann::json;

constexpr int kSeconds = 120;  // for one answer, on a loaded machine

}  // namespace

std::string from_base64(const std::string& text) {
  auto value = [](char c) -> int {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
  };
  std::string out;
  unsigned bits = 0;
  int count = 0;
  for (const char c : text) {
    if (value(c) < 0) continue;
    bits = bits << 6 | unsigned(value(c));
    count += 6;
    if (count >= 8) out += char(bits >> (count -= 8) & 255);
  }
  return out;
}

std::string Browser::program() {
  std::istringstream folders(std::getenv("PATH") ? std::getenv("PATH") : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    for (const char* name : {"chromium", "chromium-browser", "google-chrome"}) {
      const std::string path = folder + "/" + name;
      if (::access(path.c_str(), X_OK) == 0) return path;
    }
  }
  return "";
}

Browser::Browser(const std::string& file, int width, int height) : address_("file://" + file) {
  start();
  const std::string target =
      call("Target.createTarget", {{"url", "about:blank"}}).at("targetId").get<std::string>();
  session_ = call("Target.attachToTarget", {{"targetId", target}, {"flatten", true}})
                 .at("sessionId")
                 .get<std::string>();
  for (const char* domain : {"Page", "Runtime", "Log", "Network"})
    call(std::string(domain) + ".enable", Json::object());
  resize(width, height);
  loaded_ = false;
  call("Page.navigate", {{"url", address_}});
  while (!loaded_) note(read());
}

Browser::~Browser() {
  if (in_ >= 0) ::close(in_);  // the end of its input ends the browser
  if (out_ >= 0) ::close(out_);
  if (process_ <= 0) return;
  for (int i = 0; i < 100; ++i) {
    if (::waitpid(process_, nullptr, WNOHANG) == process_) return;
    ::usleep(50000);
  }
  ::kill(process_, SIGKILL);
  ::waitpid(process_, nullptr, 0);
}

void Browser::start() {
  ::signal(SIGPIPE, SIG_IGN);  // writing to a browser that has ended is an error, not the end
  int to[2], from[2];
  check(::pipe(to) == 0 && ::pipe(from) == 0, "browser: no pipes");
  const std::string path = program(), profile = "--user-data-dir=" + profile_.path().string();
  process_ = ::fork();
  check(process_ >= 0, "browser: cannot be started");
  if (process_ == 0) {
    // Above 3 and 4, which the pipes must become.
    const int in = ::fcntl(to[0], F_DUPFD, 10), out = ::fcntl(from[1], F_DUPFD, 10);
    ::dup2(in, 3);
    ::dup2(out, 4);
    for (int other = 5; other < 64; ++other) ::close(other);
    const int nothing = ::open("/dev/null", O_RDWR);
    for (int standard = 0; standard < 3; ++standard) ::dup2(nothing, standard);
    // Without a sandbox, since root has none; the test wrote the pages.
    ::execl(path.c_str(), path.c_str(), "--headless", "--no-sandbox", "--disable-gpu",
            "--remote-debugging-pipe", "--no-first-run", "--disable-extensions",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--disable-dev-shm-usage", "--hide-scrollbars", "--mute-audio", profile.c_str(),
            "about:blank", static_cast<char*>(nullptr));
    ::_exit(127);
  }
  ::close(to[0]);
  ::close(from[1]);
  in_ = to[1];
  out_ = from[0];
}

Json Browser::call(const std::string& method, const Json& parameters) {
  Json message = {{"id", ++calls_}, {"method", method}, {"params", parameters}};
  if (!session_.empty()) message["sessionId"] = session_;
  const std::string text = message.dump() + '\0';
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = ::write(in_, text.data() + at, text.size() - at);
    check(n > 0, "browser: ", method, " cannot be sent");
    at += size_t(n);
  }
  while (true) {
    const Json answer = read();
    if (answer.contains("id") && answer["id"] == calls_) {
      check(answer.contains("result"), "browser: ", method, ": ", answer.dump());
      return answer["result"];
    }
    note(answer);
  }
}

Json Browser::read() {
  while (true) {
    const size_t end = unread_.find('\0');
    if (end != std::string::npos) {
      const Json message = Json::parse(unread_.substr(0, end));
      unread_.erase(0, end + 1);
      return message;
    }
    pollfd ready{.fd = out_, .events = POLLIN, .revents = 0};
    check(::poll(&ready, 1, kSeconds * 1000) == 1, "browser: no answer in ", kSeconds, " seconds");
    char bytes[65536];
    const ssize_t n = ::read(out_, bytes, sizeof bytes);
    check(n > 0, "browser: has ended");
    unread_.append(bytes, size_t(n));
  }
}

void Browser::note(const Json& event) {
  const std::string method = event.value("method", "");
  const Json parameters = event.value("params", Json::object());
  if (method == "Page.loadEventFired") loaded_ = true;
  if (method == "Runtime.exceptionThrown") complaints_.push_back(parameters.dump());
  if (method == "Runtime.consoleAPICalled") {
    const std::string type = parameters.value("type", "");
    if (type == "error" || type == "warning" || type == "assert")
      complaints_.push_back(parameters.dump());
  }
  if (method == "Log.entryAdded") {
    const std::string level = parameters.at("entry").value("level", "");
    if (level == "error" || level == "warning") complaints_.push_back(parameters.dump());
  }
  if (method == "Network.requestWillBeSent") {
    const std::string url = parameters.at("request").value("url", "");
    const bool local = url == address_ || url.rfind("data:", 0) == 0 || url.rfind("blob:", 0) == 0;
    if (!local) requests_.push_back(url);
  }
}

Json Browser::evaluate(const std::string& expression) {
  const Json result = call("Runtime.evaluate", {{"expression", expression},
                                                {"awaitPromise", true},
                                                {"returnByValue", true},
                                                {"userGesture", true}});
  check(!result.contains("exceptionDetails"), "browser: ", expression, ": ",
        result.value("exceptionDetails", Json()).dump());
  return result.at("result").value("value", Json());
}

void Browser::resize(int width, int height) {
  call("Emulation.setDeviceMetricsOverride",
       {{"width", width}, {"height", height}, {"deviceScaleFactor", 1}, {"mobile", false}});
}

void Browser::prefer(const std::string& scheme) {
  const Json feature = {{"name", "prefers-color-scheme"}, {"value", scheme}};
  call("Emulation.setEmulatedMedia", {{"features", Json::array({feature})}});
}

void Browser::press(const std::string& key) {
  for (const char* type : {"keyDown", "keyUp"})
    call("Input.dispatchKeyEvent", {{"type", type}, {"key", key}, {"code", key}});
}

std::string Browser::screenshot() {
  return from_base64(
      call("Page.captureScreenshot", {{"format", "png"}, {"captureBeyondViewport", true}})
          .at("data")
          .get<std::string>());
}

std::string Browser::printed() {
  return from_base64(
      call("Page.printToPDF", {{"printBackground", true}}).at("data").get<std::string>());
}

}  // namespace brine::tests
