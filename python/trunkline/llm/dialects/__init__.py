"""Dialects: how tools appear in a request, how a reply becomes tool calls, and how results go back."""
