from tests.quorums import all_five, five  # noqa: F401
