"""The package uses no private attribute of another package."""

import ast
from collections.abc import Iterator
from pathlib import Path

import django_redislock

PACKAGE = Path(django_redislock.__file__).parent
PUBLIC = {"_base_manager", "_meta", "_replace", "_state"}
"""Documented by Django and Python in spite of their underscore."""

NO_PUBLIC_WAY = {
    "_wrapped": "testing/embedded.py",
    # Celery's pools, proxies and wrapped functions.
    "_get_active_apps": "celery/framework.py",
    "_get_current_object": "celery/framework.py",
    "_pending": "celery/framework.py",
    "_set_current_app": "celery/framework.py",
    "_tls": "celery/framework.py",
}
"""Private attributes that have no public replacement, and where they are used."""

TREES = {path: ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def nodes(*kinds: type) -> Iterator[tuple[Path, ast.AST]]:
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, kinds):
                yield path, node


def defined() -> set[str]:
    """The private names that the package defines: functions, classes, variables, attributes."""
    names = set()
    for _, node in nodes(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef):
        names.add(node.name)
    for _, node in nodes(ast.Name, ast.Attribute):
        match node:
            case ast.Name(ctx=ast.Store(), id=name):
                names.add(name)
            case ast.Attribute(ctx=ast.Store(), value=ast.Name(id="self" | "cls"), attr=name):
                names.add(name)
    return set(filter(is_private, names))


def used() -> Iterator[tuple[str, str]]:
    """Each private attribute of an object other than `self` and `cls`, and where it is used."""
    for path, node in nodes(ast.Attribute, ast.Call):
        where = f"{path.relative_to(PACKAGE)}:{node.lineno}"
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                continue
            case ast.Attribute(attr=name):
                yield name, where
            case ast.Call(
                func=ast.Name(id="getattr" | "setattr" | "hasattr" | "delattr"),
                args=[_, ast.Constant(value=str(name)), *_],
            ):
                yield name, where


def test_no_private_attribute_of_another_package_is_used() -> None:
    known = defined() | PUBLIC
    assert [
        (name, where)
        for name, where in used()
        if is_private(name)
        and name not in known
        and not where.startswith(NO_PUBLIC_WAY.get(name, "nowhere"))
    ] == []
