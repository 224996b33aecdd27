"""Types as a user sees them: ``python -m tests.full.typing``, a part of ``make types``.

The package `shop` is a user's. It uses the public API with types that have to come out, and in
`mistakes` what has to be refused. mypy (strict) and pyright (strict) read it in a folder where the
product is what the built wheel has.
"""
