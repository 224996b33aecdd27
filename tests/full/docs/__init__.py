"""Each code sample of README.md and docs/ is run, with one test for each page.

The samples of a page run in its order and share their names, as in one long session. Each page has
an empty Redis, an empty database and its own Django project (see `project`). `languages` says what
is done with a sample of each language.

A sample of Python that begins with `# shop/tasks.py` becomes that file of the project. A sample
that only assigns settings changes the settings for the rest of the page. The output below a
command of a `console` is compared with what it prints, except for times, processes (`vm:123`) and
fencing tokens; `...` stands for any text.

Code that a sample needs and does not show stands before it in a comment, and runs as well:

    <!-- invisible-code-block: python
    lock = locks.lock("invoice:42", timeout=30)
    -->

There `page` is the `page.Page`: servers for the addresses in samples (`page.instead`), a Celery
worker (`page.worker`), the text that a sample of text is compared with (`page.printed`), and
context managers that end with the page (`page.enter`).
"""
