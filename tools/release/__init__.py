"""``make release``: build and check the files of a release, and print the remaining steps.

It does not tag or upload anything. `tree` checks the committed files, `artefacts` the sdist and
the wheel, and `installing` a new project that uses the wheel. `__main__` runs all checks.
"""
