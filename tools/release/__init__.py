"""``make release``: builds what would be uploaded, looks at it, and says what is left to do.

It tags nothing and uploads nothing. `tree` is what is committed, `artefacts` what is made of it,
`installing` a new project that has it; each has functions that tell of problems, and `__main__`
asks them one after the other.
"""
