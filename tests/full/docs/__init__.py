"""Every code sample of README.md and docs/ is run: a test for each, named by page and line.

The samples of a page run in its order and share what they define, as in one long session; each
page has an empty Redis, an empty database and a project of its own (see `project`). `languages`
tells what is done with a sample of each language; one that is not there fails.

A sample of Python that begins with `# shop/tasks.py` is that file of the project; one that gives
nothing but settings has them for the rest of the page, and locks are had with them. What claims
an answer or an error is a `pycon`. What a `console` shows below a command is what it prints, where
times, processes (`vm:123`) and fencing tokens may differ, and `...` is any text.

What a sample needs and does not show stands before it in a comment, and is run as well:

    <!-- invisible-code-block: python
    lock = locks.lock("invoice:42", timeout=30)
    -->

There `page` is what `page.Page` has to offer: servers in place of the addresses that a sample
names (`page.instead`), a Celery worker (`page.worker`), what a sample of text is compared with
(`page.printed`), a place for what is to end with the page (`page.enter`).
"""
