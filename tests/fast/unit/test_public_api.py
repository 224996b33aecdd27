"""The package uses no private attribute of another package."""

import ast
from pathlib import Path

import django_redislock

PACKAGE = Path(django_redislock.__file__).parent

PUBLIC = {"_base_manager", "_meta", "_replace", "_state"}
"""Documented by Django and Python in spite of their underscore."""

NO_PUBLIC_WAY = {
    ("_wrapped", "testing/embedded.py"),
    # Celery's pools, proxies and wrapped functions.
    ("_get_active_apps", "celery/framework.py"),
    ("_get_current_object", "celery/framework.py"),
    ("_pending", "celery/framework.py"),
    ("_set_current_app", "celery/framework.py"),
    ("_tls", "celery/framework.py"),
}
"""Private attributes that have no public replacement, and where they are used."""

ACCESSORS = {"getattr", "setattr", "hasattr", "delattr"}


def test_no_private_attribute_of_another_package_is_used() -> None:
    defined = set(PUBLIC)
    used = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                    defined.add(name)
                case ast.Name(name, ast.Store()):
                    defined.add(name)
                case ast.Attribute(ast.Name("self" | "cls"), name, ast.Store()):
                    defined.add(name)
                case ast.Attribute(ast.Name("self" | "cls")):
                    pass
                case ast.Attribute(attr=name):
                    used.add((name, str(path.relative_to(PACKAGE))))
                case ast.Call(ast.Name(function), [_, ast.Constant(str(name)), *_]):
                    if function in ACCESSORS:
                        used.add((name, str(path.relative_to(PACKAGE))))
    private = {each for each in used if each[0][0] == "_" and not each[0].endswith("__")}
    assert {each for each in private - NO_PUBLIC_WAY if each[0] not in defined} == set()
