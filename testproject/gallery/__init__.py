"""How locks go wrong: common lock algorithms and ours, in the situation that breaks the common
one. ``manage.py gallery`` runs them. Each exhibit is a file in `exhibits`."""
