# Third-party libraries, and which module may link which. A third-party type never appears in a
# header of src/, so a module's externals stay private to it.

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(CLI11 REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(Boost 1.81 REQUIRED COMPONENTS json)
find_package(simdjson REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
find_package(prometheus-cpp REQUIRED COMPONENTS core)
find_package(ZLIB REQUIRED)
find_package(CURL 7.85 REQUIRED)
pkg_check_modules(YAML_CPP REQUIRED IMPORTED_TARGET yaml-cpp)
include(cmake/bridge.cmake)

set(base_externals fmt::fmt spdlog::spdlog)
set(text_externals PkgConfig::PCRE2 PkgConfig::UTF8PROC bridge simdjson::simdjson)
set(hub_externals CURL::libcurl OpenSSL::Crypto simdjson::simdjson)
set(checkpoint_externals simdjson::simdjson)
set(runtime_externals simdjson::simdjson)
set(runtime_test_externals ZLIB::ZLIB)
# simdjson is header-only and has a define: who includes it without linking it breaks the one
# definition rule.
set(golden_test_externals simdjson::simdjson)
set(formats_test_externals simdjson::simdjson)
set(server_externals Boost::headers Boost::json OpenSSL::SSL OpenSSL::Crypto prometheus-cpp::core)

# Headers of other people do not have to pass our warnings.
foreach(target Boost::headers Boost::json simdjson::simdjson prometheus-cpp::core)
  get_target_property(includes ${target} INTERFACE_INCLUDE_DIRECTORIES)
  if(includes)
    set_target_properties(${target} PROPERTIES INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${includes}")
  endif()
endforeach()
