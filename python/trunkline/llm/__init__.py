"""Everything between a turn and the model that makes it: messages, requests, transports, replies."""
