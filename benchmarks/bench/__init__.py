"""`make bench`: compare the speed of this package with other packages and with the limits of
client and server.

`figures` has a function for each figure. It returns lines with a target each. `contenders` has the
locks that are measured. `rounds` measures all of them in turn, so that a disturbance affects all
alike. `report` writes the table, in which every number is from one run.
"""
