"""Runs: options, checks before the first request, run and stream, resume, pools, results."""
