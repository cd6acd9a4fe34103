"""Exports: the rollouts of a run as files that other programs read.

* :mod:`.export` is the function that does it, one task at a time.
* :mod:`.leaves` says what becomes one record, and :mod:`.choice` which records are wanted.
* :mod:`.chat`, :mod:`.parallelmuse` and :mod:`.columns` are the formats; :mod:`.lines` writes the two that are lines.
* :mod:`.target` is the file, which is there whole or not at all.
"""
