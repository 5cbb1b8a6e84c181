# A release build carries the checks that compiler, C library and loader offer for what a bug in it could be used for: canaries
# behind arrays on the stack, C library calls that know the size of their buffers, stacks that grow a page at a time, marked targets of
# indirect calls, addresses that differ from run to run, and tables of functions that are read-only before main. What they cost:
# docs/speed.md. Sanitizers bring checks of their own, so other configurations are left alone.
include(CheckCCompilerFlag)
include(CheckPIESupported)

check_pie_supported(LANGUAGES C)
foreach(flag -fstack-protector-strong -fstack-clash-protection -fcf-protection)
  string(MAKE_C_IDENTIFIER "MNEME_HAVE${flag}" known)
  check_c_compiler_flag(${flag} ${known})
  if(${known})
    add_compile_options($<$<CONFIG:Release>:${flag}>)
  endif()
endforeach()
add_compile_options($<$<CONFIG:Release>:-U_FORTIFY_SOURCE> $<$<CONFIG:Release>:-D_FORTIFY_SOURCE=3>)
add_link_options(-Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack)
