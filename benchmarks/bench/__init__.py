"""`make bench`: how fast this package is beside its peers, and how near to what the client and the
server allow.

`figures` has a function for each figure; it measures, and returns lines, each of which has a
goal. `contenders` are the locks that are measured, `rounds` how (all contenders in turn, so that
what disturbs the machine disturbs all of them alike), `report` what becomes of it. Whatever stands
in the table was measured in the run that printed it.
"""
