"""Runs as a web page: the queries behind it, its server, and a page in one file."""
