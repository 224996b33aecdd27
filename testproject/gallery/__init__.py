"""How locks go wrong: algorithms that articles teach, each beside ours in the situation that
breaks it. ``manage.py gallery`` lets them happen; an exhibit is a file in `exhibits`."""
