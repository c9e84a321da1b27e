// TLS, against OpenSSL's own client and a certificate made on the spot.
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <cstdio>

#include "server/server_fixture.h"

namespace kun {
namespace {

// Writes a self-signed certificate for localhost and its key.
void write_certificate(const std::string& certificate_file, const std::string& key_file) {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = X509_new();
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key);
  X509_NAME* name = X509_get_subject_name(certificate);
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("localhost"), -1, -1, 0);
  X509_set_issuer_name(certificate, name);
  ASSERT_GT(X509_sign(certificate, key, EVP_sha256()), 0);
  std::FILE* file = std::fopen(certificate_file.c_str(), "wb");
  ASSERT_NE(file, nullptr);
  PEM_write_X509(file, certificate);
  std::fclose(file);
  file = std::fopen(key_file.c_str(), "wb");
  ASSERT_NE(file, nullptr);
  PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr);
  std::fclose(file);
  X509_free(certificate);
  EVP_PKEY_free(key);
}

class TlsClient {
 public:
  explicit TlsClient(int port) : context_(SSL_CTX_new(TLS_client_method())) {
    fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ssl_ = SSL_new(context_);
    SSL_set_fd(ssl_, fd_);
    connected_ = SSL_connect(ssl_) == 1;
  }
  ~TlsClient() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
    ::close(fd_);
  }

  bool connected() const { return connected_; }
  void send(std::string_view text) {
    EXPECT_EQ(SSL_write(ssl_, text.data(), static_cast<int>(text.size())),
              static_cast<int>(text.size()));
  }
  // Until `end` has arrived or the connection has ended.
  std::string read_until(std::string_view end) {
    std::string text;
    char bytes[4096];
    while (text.find(end) == std::string::npos) {
      const int count = SSL_read(ssl_, bytes, sizeof(bytes));
      if (count <= 0) break;
      text.append(bytes, static_cast<std::size_t>(count));
    }
    return text;
  }
  bool closed_cleanly() {
    char byte = 0;
    return SSL_read(ssl_, &byte, 1) == 0 && SSL_get_error(ssl_, 0) == SSL_ERROR_ZERO_RETURN;
  }

 private:
  SSL_CTX* context_;
  SSL* ssl_ = nullptr;
  int fd_ = -1;
  bool connected_ = false;
};

class TlsTest : public ServerFixture {
 protected:
  void SetUp() override {
    const std::string base = ::testing::TempDir() + "kun_tls_" + std::to_string(::getpid());
    options_.tls.certificate_file = base + ".crt";
    options_.tls.key_file = base + ".key";
    write_certificate(options_.tls.certificate_file, options_.tls.key_file);
    options_.limits.header_timeout = std::chrono::milliseconds(500);
  }
  void TearDown() override {
    std::remove(options_.tls.certificate_file.c_str());
    std::remove(options_.tls.key_file.c_str());
  }

  static std::string request(std::string_view body, std::string_view headers = "") {
    return "POST /v1/completions HTTP/1.1\r\nHost: a\r\n" + std::string(headers) +
           "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + std::string(body);
  }
};

TEST_F(TlsTest, AnswersStreamsAndSaysGoodbye) {
  start();
  TlsClient client(server_->port());
  ASSERT_TRUE(client.connected());
  for (int i = 0; i < 3; ++i) {
    client.send(request(R"({"prompt":"x"})"));
    EXPECT_NE(client.read_until("miss_tokens\":1}}").find("Hello"), std::string::npos);
    client.send(request(R"({"prompt":"x","stream":true})"));
    EXPECT_NE(client.read_until("0\r\n\r\n").find("[DONE]"), std::string::npos);
  }
  client.send(request(R"({"prompt":"x"})", "Connection: close\r\n"));
  EXPECT_NE(client.read_until("miss_tokens\":1}}").find("Hello"), std::string::npos);
  EXPECT_TRUE(client.closed_cleanly());
}

TEST_F(TlsTest, AClientThatLeavesCancelsItsGeneration) {
  Script script;
  script.endless = true;
  generator_.play(script);
  start();
  {
    TlsClient client(server_->port());
    client.send(request(R"({"prompt":"x","stream":true,"max_tokens":4000,"ignore_eos":true})"));
    ASSERT_TRUE(eventually([&] { return generator_.running_count() == 1; }));
  }
  EXPECT_TRUE(eventually([&] { return generator_.dropped_count() == 1; }, 500));
}

TEST_F(TlsTest, WhoDoesNotSpeakTlsIsCutOff) {
  start();
  TestClient plain(server_->port());
  plain.send("GET /version HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_TRUE(plain.sees_close(3000));
  TestClient silent(server_->port());
  EXPECT_TRUE(silent.sees_close(3000));
  TlsClient proper(server_->port());
  EXPECT_TRUE(proper.connected());
}

}  // namespace
}  // namespace kun
