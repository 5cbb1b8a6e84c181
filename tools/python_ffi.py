#!/usr/bin/env python3
"""Writes the declarations of include/mneme.h for Python's ctypes: python/mneme/_ffi.py. Needs a C preprocessor and pycparser.
usage: tools/python_ffi.py > python/mneme/_ffi.py"""
import pathlib
import subprocess
import tempfile

from pycparser import c_ast, c_parser

ROOT = pathlib.Path(__file__).resolve().parent.parent
NUMBERS = {"bool": "c_bool", "char": "c_char", "int": "c_int", "int32_t": "c_int32", "int64_t": "c_int64", "uint64_t": "c_uint64", "size_t": "c_size_t", "ptrdiff_t": "c_ssize_t",
           "float": "c_float", "double": "c_double"}
# The standard headers define nothing but these here: what the system's hold beside them is not C11.
STANDARD = "".join(f"typedef {kind} {name};\n" for name, kind in (
    ("bool", "_Bool"), ("size_t", "unsigned long"), ("int32_t", "int"), ("int64_t", "long"), ("uint64_t", "unsigned long"), ("ptrdiff_t", "long")))


def preprocess():
    with tempfile.TemporaryDirectory() as folder:
        for name in ("stdbool.h", "stddef.h", "stdint.h"):
            (pathlib.Path(folder) / name).write_text(STANDARD if name == "stdint.h" else "")
        return subprocess.run(["cc", "-E", "-P", "-U__GNUC__", "-nostdinc", "-I", folder, ROOT / "include/mneme.h"], check=True, capture_output=True,
                              text=True).stdout


class Interface:
    def __init__(self, tree):
        self.constants, self.structs, self.functions, self.callbacks = {}, {}, {}, {}
        self.opaque, self.enums = set(), set()
        for node in tree.ext:
            kind = node.type
            if isinstance(node, c_ast.Typedef) and isinstance(kind, c_ast.TypeDecl) and isinstance(kind.type, c_ast.Struct):
                if kind.type.decls:
                    self.structs[node.name] = kind.type.decls
                else:
                    self.opaque.add(node.name)
            elif isinstance(node, c_ast.Typedef) and isinstance(kind, c_ast.TypeDecl) and isinstance(kind.type, c_ast.Enum):
                self.enums.add(node.name)
                self.read_enum(kind.type)
            elif isinstance(node, c_ast.Typedef) and isinstance(kind, c_ast.PtrDecl) and isinstance(kind.type, c_ast.FuncDecl):
                self.callbacks[node.name] = self.prototype(kind.type)
            elif isinstance(node, c_ast.Decl) and isinstance(kind, c_ast.FuncDecl):
                self.functions[node.name] = self.prototype(kind, node.name)
            elif isinstance(node, c_ast.Decl) and isinstance(kind, c_ast.Enum):
                self.read_enum(kind)

    def read_enum(self, enum):
        for item in enum.values.enumerators:
            negative = isinstance(item.value, c_ast.UnaryOp)
            number = int((item.value.expr if negative else item.value).value)
            self.constants[item.name] = -number if negative else number

    def prototype(self, function, name=""):
        parameters = [p for p in function.args.params if not self.is_void(p.type)] if function.args else []
        return self.type_of(function.type), [self.member(name, p, p.type) for p in parameters]

    def is_void(self, node):
        return isinstance(node, c_ast.TypeDecl) and node.type.names == ["void"]

    # The type of a member or parameter; a pointer to a function gets a name of its own, <owner>_<name>.
    def member(self, owner, decl, kind, is_sized=False):
        if not (isinstance(kind, c_ast.PtrDecl) and isinstance(kind.type, c_ast.FuncDecl)):
            return self.type_of(kind, is_sized)
        name = f"{owner}_{decl.name}"
        self.callbacks[name] = self.prototype(kind.type)
        return name

    # ctypes' name of a type; None: void.
    def type_of(self, node, is_sized=False):
        if isinstance(node, c_ast.ArrayDecl):
            return f"{self.type_of(node.type)} * {node.dim.value}"
        if isinstance(node, c_ast.PtrDecl):
            inner = node.type
            name = " ".join(inner.type.names) if isinstance(inner, c_ast.TypeDecl) else None
            if name in self.opaque or name == "void":
                return "c_void_p"
            if name == "char":  # text that the caller owns is kept by its address, and so is text whose length is given
                return "c_void_p" if is_sized or "const" not in inner.quals else "c_char_p"
            return f"POINTER({self.type_of(inner)})"
        name = " ".join(node.type.names)
        if name == "void":
            return None
        if name in self.enums:
            return "c_int"
        if name in self.callbacks or name in self.structs:
            return name
        return NUMBERS[name]

    def members(self, struct, decls):
        names = {d.name for d in decls}
        return [(d.name, self.member(struct, d, d.type, f"n_{d.name}" in names)) for d in decls]


def write(interface):
    print('"""The declarations of mneme.h, for ctypes: written by tools/python_ffi.py, not by hand."""')
    print("from __future__ import annotations\n")
    used = ["CDLL", "CFUNCTYPE", "POINTER", "Structure", *sorted({*NUMBERS.values(), "c_char_p", "c_void_p"})]
    print(f"from ctypes import {', '.join(used[:9])}\nfrom ctypes import {', '.join(used[9:])}\nfrom typing import Any\n")
    for name, value in interface.constants.items():
        print(f"{name} = {value}")
    print()
    for name in interface.structs:
        print(f"\nclass {name}(Structure):\n    pass\n")
    print()
    members = {name: interface.members(name, decls) for name, decls in interface.structs.items()}
    for name, (result, parameters) in interface.callbacks.items():
        print(f"{name} = CFUNCTYPE({', '.join([str(result), *parameters])})")
    print()
    for name in interface.structs:
        print(f"{name}._fields_ = [")
        for member, kind in members[name]:
            print(f'    ("{member}", {kind}),')
        print("]")
    print("\n# The result and the parameters of each function.\nFUNCTIONS: dict[str, tuple[Any, list[Any]]] = {")
    for name, (result, parameters) in interface.functions.items():
        print(f'    "{name}": ({result}, [{", ".join(parameters)}]),')
    print("}\n\n\ndef declare(library: CDLL) -> None:\n    for name, (result, parameters) in FUNCTIONS.items():")
    print("        function = getattr(library, name)\n        function.restype = result\n        function.argtypes = parameters")


if __name__ == "__main__":
    write(Interface(c_parser.CParser().parse(preprocess())))
