# Files that are linked into the program: an assembler file brings in the bytes.
set(MNEME_EMBEDDED_FILES config.json generation_config.json model.safetensors tokenizer.json tokenizer_config.json)

# The lines that put a file between SYMBOL_begin and SYMBOL_end, with a zero behind it.
function(mneme_incbin result symbol file)
  set(${result}
      "    .balign 64\n    .globl ${symbol}_begin\n    .globl ${symbol}_end\n    .hidden ${symbol}_begin\n    .hidden ${symbol}_end\n${symbol}_begin:\n    .incbin \"${file}\"\n${symbol}_end:\n    .byte 0\n"
      PARENT_SCOPE)
endfunction()

# usage: mneme_write_assembler(FILE LINES INPUT...)
function(mneme_write_assembler file lines)
  file(CONFIGURE OUTPUT "${file}" @ONLY CONTENT "    .section .rodata\n${lines}    .section .note.GNU-stack,\"\",%progbits\n")
  set_source_files_properties("${file}" PROPERTIES OBJECT_DEPENDS "${ARGN}")
endfunction()

# Adds one file to a list of sources.
function(mneme_embed_file sources symbol file)
  mneme_incbin(lines ${symbol} "${file}")
  set(assembler_file "${CMAKE_BINARY_DIR}/${symbol}.S")
  mneme_write_assembler("${assembler_file}" "${lines}" "${file}")
  set(${sources} ${${sources}} "${assembler_file}" PARENT_SCOPE)
endfunction()

# Links the files of a Hugging Face folder into a target; a C file lists them (src/model/embedded.h).
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
    mneme_incbin(lines ${symbol} "${folder}/${file}")
    string(APPEND assembler "${lines}")
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
  mneme_write_assembler("${assembler_file}" "${assembler}" ${inputs})
  file(CONFIGURE OUTPUT "${table_file}" @ONLY
       CONTENT "#include \"model/embedded.h\"\n${symbols}const embedded_file embedded_files[] = {\n${rows}    {0},\n};\nconst size_t n_embedded_files = ${count};\n")
  # A changed file changes its size in the table and the bytes in the object.
  set_property(DIRECTORY "${CMAKE_SOURCE_DIR}" APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${inputs})
  target_sources(${target} PRIVATE "${assembler_file}" "${table_file}")
endfunction()
