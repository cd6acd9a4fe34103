"""Exports: the rollouts of a run as files that other programs read.

* :mod:`.export` is the function that does it, one task at a time, with the choice of records.
* :mod:`.target` is the file, which is there whole or not at all, the records, and JSON lines.
* :mod:`.formats` holds the formats that are lines, and :mod:`.parquet` the one that is a table.
"""
