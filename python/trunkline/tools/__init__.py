"""Tools a model may call: the decorator, their schemas, and the runner that survives them."""
