"""`make bench`: compare the speed of this package with others, without and with a network.

`figures` has a function for each figure. It returns lines with a target each. `contenders` has the
locks that are measured. `rounds` measures all of them in turn, so that a disturbance affects all
alike. `proxy` stands for a network. `report` writes the table, which has a column for each network
and in which every number is from one run.
"""
