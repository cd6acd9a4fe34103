"""What a client pays for model calls: Trunkline beside AsyncOpenAI and beside loops written by hand.

Every client plays the same conversations (:mod:`peers.loads`) and is one entry of :data:`peers.client.CLIENTS`.
"""
