"""From a tree to a request, and from its reply to a turn."""
