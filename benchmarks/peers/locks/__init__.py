"""The locks of five packages, each in processes of its own, where things go wrong.

`user` says how a package's users make one, and is a process that has some; `place` is where a case
happens (a server, and a proxy before each user); `cases` are what is done.
"""
