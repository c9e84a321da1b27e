// SHA-256, and git's blob id: SHA-1 of "blob SIZE\0" and the bytes. Both by OpenSSL.
#include "hub/digest.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>

#include "base/check.h"

namespace kun {

struct Digest::State {
  EVP_MD_CTX* context = nullptr;

  ~State() { EVP_MD_CTX_free(context); }
};

Digest::Digest(DigestKind kind, std::uint64_t bytes) : state_(std::make_unique<State>()) {
  if (kind == DigestKind::kNone) return;
  state_->context = EVP_MD_CTX_new();
  const EVP_MD* method = kind == DigestKind::kSha256 ? EVP_sha256() : EVP_sha1();
  CHECK(state_->context != nullptr && EVP_DigestInit_ex(state_->context, method, nullptr) == 1);
  if (kind == DigestKind::kGitBlob) {
    const std::string header = fmt::format("blob {}", bytes);
    update({header.c_str(), header.size() + 1});
  }
}

Digest::~Digest() = default;

void Digest::update(std::string_view piece) {
  if (state_->context == nullptr) return;
  CHECK(EVP_DigestUpdate(state_->context, piece.data(), piece.size()) == 1);
}

std::string Digest::finish() {
  if (state_->context == nullptr) return {};
  std::array<unsigned char, EVP_MAX_MD_SIZE> bytes = {};
  unsigned int size = 0;
  CHECK(EVP_DigestFinal_ex(state_->context, bytes.data(), &size) == 1);
  std::string text;
  for (unsigned int i = 0; i < size; ++i) text += fmt::format("{:02x}", bytes[i]);
  return text;
}

}  // namespace kun
