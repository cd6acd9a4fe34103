"""Data sets in, run files out: one SQLite file for each run, made by one writer and open to any reader.

Deltas are the truth. Rows of trees and rollouts are derived from them, written in the same transaction as
the last delta of their task, and can be checked against them at any time.
"""
