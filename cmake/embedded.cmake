# Links the files of a Hugging Face folder into a target: an assembler file brings in the bytes, a C file lists them
# (src/model/embedded.h).
set(MNEME_EMBEDDED_FILES config.json generation_config.json model.safetensors tokenizer.json tokenizer_config.json)

function(mneme_embed_model target folder)
  set(assembler "")
  set(symbols "")
  set(rows "")
  set(count 0)
  set(inputs "")
  foreach(file IN LISTS MNEME_EMBEDDED_FILES)
    if(NOT folder OR NOT EXISTS "${folder}/${file}")
      continue()
    endif()
    string(MAKE_C_IDENTIFIER "mn_embedded_${file}" symbol)
    string(APPEND assembler
           "    .balign 64\n    .globl ${symbol}_begin\n    .globl ${symbol}_end\n    .hidden ${symbol}_begin\n"
           "    .hidden ${symbol}_end\n${symbol}_begin:\n    .incbin \"${folder}/${file}\"\n${symbol}_end:\n    .byte 0\n")
    string(APPEND symbols "extern const unsigned char ${symbol}_begin[] __attribute__((visibility(\"hidden\")));\n")
    file(SIZE "${folder}/${file}" size)
    string(APPEND rows "    {\"${file}\", ${symbol}_begin, ${size}},\n")
    math(EXPR count "${count} + 1")
    list(APPEND inputs "${folder}/${file}")
  endforeach()
  if(folder AND count EQUAL 0)
    message(FATAL_ERROR "MNEME_EMBEDDED_MODEL is '${folder}', which holds none of: ${MNEME_EMBEDDED_FILES}")
  endif()
  set(assembler_file "${CMAKE_BINARY_DIR}/embedded_model.S")
  set(table_file "${CMAKE_BINARY_DIR}/embedded_model.c")
  file(CONFIGURE OUTPUT "${assembler_file}" @ONLY
       CONTENT "    .section .rodata\n${assembler}    .section .note.GNU-stack,\"\",%progbits\n")
  file(CONFIGURE OUTPUT "${table_file}" @ONLY
       CONTENT "#include \"model/embedded.h\"\n${symbols}const embedded_file embedded_files[] = {\n${rows}    {0},\n};\nconst size_t n_embedded_files = ${count};\n")
  # A changed file changes its size in the table and the bytes in the object.
  set_property(DIRECTORY "${CMAKE_SOURCE_DIR}" APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${inputs})
  set_source_files_properties("${assembler_file}" PROPERTIES OBJECT_DEPENDS "${inputs}")
  target_sources(${target} PRIVATE "${assembler_file}" "${table_file}")
endfunction()
