import pytest

from django_redislock import AlreadyRunning


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (AlreadyRunning("sync", "a1", 2.5, "web-1:81"), "Lock 'sync' is held by task 'a1'"),
        (AlreadyRunning("sync", None, 2.5, "web-1:81"), "Lock 'sync' is held by web-1:81"),
        (AlreadyRunning("sync", "a1", 12.3, None, True), "Lock 'sync' is in cooldown for 12s"),
        (AlreadyRunning("sync"), "Lock 'sync' is already held"),
    ],
)
def test_already_running_says_who_holds_the_lock(error: AlreadyRunning, text: str) -> None:
    assert str(error) == text
    assert str(AlreadyRunning(*error.args)) == text
