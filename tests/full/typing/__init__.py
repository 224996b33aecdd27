"""Types as users see them: ``python -m tests.full.typing``, a part of ``make types``.

The package `shop` represents a user's code. It uses the public API with expected types, and in
`mistakes` what has to be refused. mypy (strict) and pyright (strict) read it in a folder where the
product is what the built wheel has.
"""
