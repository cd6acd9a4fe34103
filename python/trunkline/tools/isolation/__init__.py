"""Processes that can be killed: isolated tools, and a sandbox for programs of models."""
