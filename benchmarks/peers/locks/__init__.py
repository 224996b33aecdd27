"""The locks of five packages, each in processes of its own, where things go wrong.

`makes` says how a package's users make one, `user` is a process that has some, `place` is where a
case happens (a server, and a proxy before each user), `cases` are what is done.
"""
