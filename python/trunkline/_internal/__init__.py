"""Argument checks, safe text, child processes, user code across processes, asyncio helpers, resources."""
