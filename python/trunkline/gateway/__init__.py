"""The endpoint that agents of other frameworks ask, and the interfaces that it speaks."""
