"""What the messages of single-instance tasks carry with them, as headers."""

CONFLICTS = "redislock_conflicts"
"""How often a task was sent again because of a conflict."""

AGAIN = "redislock_again"
"""Whether an execution of the same task may have begun before it was sent again."""

PLACE = "redislock_place"
"""That a place was taken when the task was sent."""

DUPLICATE = "redislock_duplicate"
"""The id of the task, or "", that had the place when this one was sent all the same, because
somebody counts on its result: it is to end without having run."""
