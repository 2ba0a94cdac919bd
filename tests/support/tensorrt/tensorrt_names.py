"""Find the names of TensorRT's Python API that source code uses, without TensorRT.

TensorRT's objects are untyped in our code, so a name is attributed to a class by these rules:

1. ``trt`` and ``library.module`` are the module: ``trt.X.Y`` is the name ``Y`` of its class ``X``.
2. ``VARIABLES`` gives the class of a variable, parameter or attribute by its name, unless the
   function annotates it with a type of ours.
3. ``RETURNS`` gives the class that a call or property of such an object returns.
4. A variable to which such an object is assigned has the same class.
5. The public methods of a class that derives from ``trt.X`` override methods of ``X``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

MODULE = ""  # the class of ``trt`` itself

VARIABLES = {
    "trt": MODULE,
    "builder": "Builder",
    "cache": "ITimingCache",
    "config": "IBuilderConfig",
    "context": "IExecutionContext",
    "dtype": "DataType",
    "engine": "ICudaEngine",
    "layer": "ILayer",
    "merged": "ITimingCache",
    "network": "INetworkDefinition",
    "parser": "OnnxParser",
    "plan": "IHostMemory",
    "profile": "IOptimizationProfile",
    "runtime": "Runtime",
    "settings": "IRuntimeConfig",
    "tensor": "ITensor",
}
RETURNS = {
    "build_serialized_network": "IHostMemory",
    "create_builder_config": "IBuilderConfig",
    "create_execution_context": "IExecutionContext",
    "create_network": "INetworkDefinition",
    "create_optimization_profile": "IOptimizationProfile",
    "create_runtime_config": "IRuntimeConfig",
    "create_timing_cache": "ITimingCache",
    "deserialize_cuda_engine": "ICudaEngine",
    "dtype": "DataType",
    "get_error": "ParserError",
    "get_input": "ITensor",
    "get_layer": "ILayer",
    "get_output": "ITensor",
    "get_tensor_dtype": "DataType",
    "get_tensor_mode": "TensorIOMode",
    "type": "LayerType",
}


@dataclass(frozen=True, order=True)
class Use:
    """A use of ``name`` of TensorRT's class ``owner``, with its place in the source."""

    owner: str  # MODULE for a name of the module itself
    name: str
    function: str = field(compare=False)  # qualified, or "" outside of functions
    line: int = field(compare=False)

    def __str__(self) -> str:
        return f"line {self.line}: trt.{self.owner}{'.' if self.owner else ''}{self.name}"


def find_uses(source: str) -> Iterator[Use]:
    """Return every use of a TensorRT name in the text of a module."""
    finder = _Finder()
    finder.visit(ast.parse(source))
    yield from finder.uses


class _Finder(ast.NodeVisitor):
    def __init__(self) -> None:
        self.uses: list[Use] = []
        self._scopes: list[str] = []
        self._held: list[dict[str, str | None]] = [{}]  # by variable, innermost function last

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._scopes.append(node.name)
        for base in node.bases:
            owner = self._class_of(base)
            if owner:
                methods = [item for item in node.body if isinstance(item, ast.FunctionDef)]
                for method in methods:
                    if not method.name.startswith("_"):
                        self._add(owner, method.name, method)
        self.generic_visit(node)
        self._scopes.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        arguments = (*node.args.args, *node.args.kwonlyargs)
        ours = {
            argument.arg: None
            for argument in arguments
            if argument.annotation and ast.unparse(argument.annotation) not in ("Any", "ModuleType")
        }
        self._scopes.append(node.name)
        self._held.append({**self._held[-1], **ours})
        self.generic_visit(node)
        self._held.pop()
        self._scopes.pop()

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            if isinstance(target, ast.Name):
                owner = self._class_of(node.value)
                if owner is not None:
                    self._held[-1][target.id] = owner

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.generic_visit(node)
        owner = self._class_of(node.value)
        if owner is not None and not node.attr.startswith("__"):
            self._add(owner, node.attr, node)

    def _add(self, owner: str, name: str, node: ast.AST) -> None:
        line = getattr(node, "lineno", 0)
        self.uses.append(Use(owner, name, ".".join(self._scopes), line))

    def _class_of(self, node: ast.expr) -> str | None:
        """Return the TensorRT class that an expression names or is an instance of, or None."""
        match node:
            case ast.Name(id=name):
                return self._held[-1].get(name, VARIABLES.get(name))
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                return VARIABLES.get(name.lstrip("_")) if name.startswith("_") else None
            case ast.Attribute(value=value, attr="module") if _is_library(value):
                return MODULE
            case ast.Attribute(value=value, attr=name):
                owner = self._class_of(value)
                if owner is None:
                    return None
                if name in RETURNS:
                    return RETURNS[name]
                # Classes are capitalised, as are members of enums, which are instances.
                return (
                    f"{owner}.{name}".lstrip(".")
                    if name[0].isupper() and not name.isupper()
                    else None
                )
            case ast.Call(func=ast.Attribute(value=value, attr=name)):
                owner = self._class_of(value)
                if owner == MODULE:
                    return name
                return RETURNS.get(name) if owner is not None else None
        return None


def _is_library(node: ast.expr) -> bool:
    """Recognise ``library``, ``self._library`` and ``self.library``."""
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
    return name.lstrip("_") == "library"
