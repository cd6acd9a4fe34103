"""Exports: the rollouts of a run as files that other programs read.

* ``.export`` is the function that does it, one task at a time, with the choice of records.
* ``.target`` is the file, which is there whole or not at all, the records, and JSON lines.
* ``.formats`` holds the formats that are lines, and ``.parquet`` the one that is a table.
"""
