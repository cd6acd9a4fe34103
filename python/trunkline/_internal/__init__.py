"""Argument checks, safe text, user code across processes, asyncio helpers, resources."""
