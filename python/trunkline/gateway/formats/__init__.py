"""Interfaces of model servers: reads what an agent asks, writes what it is answered."""
