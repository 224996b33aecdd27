"""Skip a test whose server is not installed."""

from .makes import binary


def needs(make: str) -> None:
    """Skip the test unless the binary of that server is installed. Under CI, fail the test."""
    binary(make)
