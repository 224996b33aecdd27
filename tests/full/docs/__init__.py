"""Each code sample of README.md and docs/ is run, with one test for each page.

The samples of a page run in order and share their names, as in one long session. Each page has an
empty Redis, an empty database and its own Django project (see `project`). `languages` has the
runner of each language.

A sample of Python that begins with `# shop/tasks.py` becomes that file of the project. A sample
that only assigns settings changes the settings for the rest of the page. The output below a
command of a `console` is compared with what it prints, except for times, processes (`vm:123`) and
fencing tokens; `...` stands for any text.

A reader sees and copies only the visible code, so it must run alone. Hidden code, in a comment of
the page, tests what the samples do. It sees the names of the page, but its own names, even its
imports, do not exist in the page:

    <!-- invisible-code-block: python
    with locks.lock("invoice:42"):
        assert pay(None, 42).status_code == 409
    -->

In this code, `page` is the `page.Page`. It has servers for the addresses in samples
(`page.instead`), a Celery worker (`page.worker`), and context managers that end with the page
(`page.enter`).
"""
