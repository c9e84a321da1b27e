# The Python package: the extension module kun._kun over `runtime`, built where the program is
# built, so that its tests need no second compilation; pyproject.toml builds the same target into a
# wheel. build/python can be imported from as it is.

# All that the extension links must be position-independent. That is so in every build, whether or
# not it makes the extension: equal flags let ccache serve both. With hidden symbols nothing else
# changes (decision 0045).
function(set_position_independent)
  set_target_properties(${ARGN} PROPERTIES POSITION_INDEPENDENT_CODE ON
                                           CXX_VISIBILITY_PRESET hidden
                                           VISIBILITY_INLINES_HIDDEN ON)
endfunction()

foreach(layer IN LISTS layers)
  if(NOT layer MATCHES "^runtime *:(.*)$")
    continue()
  endif()
  separate_arguments(linked UNIX_COMMAND "runtime ${CMAKE_MATCH_1}")
endforeach()
list(APPEND linked backend_cpu cpu_avx2 cpu_avx512 cpu_amx cpu_neon cpu_neon_dot)
foreach(module IN LISTS linked)
  if(TARGET ${module})
    get_target_property(type ${module} TYPE)
    if(NOT type STREQUAL INTERFACE_LIBRARY)
      set_position_independent(${module})
    endif()
  endif()
endforeach()

if(NOT KUN_PYTHON)
  return()
endif()

# The interpreter that `python3` starts, unless somebody (scikit-build-core) names another.
if(NOT Python_EXECUTABLE)
  execute_process(COMMAND python3 -c "import sys; print(sys.executable)"
                  OUTPUT_VARIABLE Python_EXECUTABLE OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
find_package(Python 3.9 REQUIRED COMPONENTS Interpreter Development.Module)

# Nanobind comes from PyPI: in a wheel's build it is there already, elsewhere pip puts the version
# that pyproject.toml pins into the build folder.
set(python_tools ${CMAKE_BINARY_DIR}/python-tools)
if(SKBUILD)
  execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir
                  OUTPUT_VARIABLE nanobind_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE
                  COMMAND_ERROR_IS_FATAL ANY)
else()
  file(STRINGS pyproject.toml requirement REGEX "\"nanobind==")
  string(REGEX MATCH "nanobind==[0-9.]+" requirement "${requirement}")
  if(NOT EXISTS ${python_tools}/${requirement})
    file(REMOVE_RECURSE ${python_tools})
    execute_process(COMMAND ${Python_EXECUTABLE} -m pip install --quiet --no-deps
                            --disable-pip-version-check --target ${python_tools} ${requirement}
                    COMMAND_ERROR_IS_FATAL ANY)
    file(TOUCH ${python_tools}/${requirement})
  endif()
  set(nanobind_ROOT ${python_tools}/nanobind/cmake)
endif()
find_package(nanobind CONFIG REQUIRED)

file(GLOB python_sources CONFIGURE_DEPENDS python/src/*.cc)
nanobind_add_module(_kun NB_STATIC NB_SUPPRESS_WARNINGS ${python_sources})
target_include_directories(_kun PRIVATE python/src)
target_link_libraries(_kun PRIVATE runtime backend_cpu fmt::fmt)
target_compile_definitions(_kun PRIVATE KUN_VERSION="${PROJECT_VERSION}")
# Of what is linked in only the module's entry is visible, so that two copies of a library in one
# process do not mix.
target_link_options(_kun PRIVATE LINKER:--exclude-libs,ALL)
target_compile_options(nanobind-static PRIVATE -w)  # not ours to correct

set(python_package ${CMAKE_BINARY_DIR}/python/kun)
file(MAKE_DIRECTORY ${python_package})
set_target_properties(_kun PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${python_package})
file(GLOB python_files CONFIGURE_DEPENDS python/kun/*)
foreach(path IN LISTS python_files)
  get_filename_component(name ${path} NAME)
  if(NOT name STREQUAL __pycache__)
    file(CREATE_LINK ${path} ${python_package}/${name} SYMBOLIC)
  endif()
endforeach()
file(WRITE ${CMAKE_BINARY_DIR}/python/interpreter "${Python_EXECUTABLE}\n")

install(TARGETS _kun LIBRARY DESTINATION kun COMPONENT python)
