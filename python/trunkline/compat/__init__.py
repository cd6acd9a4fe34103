"""The library under names and signatures that other projects' examples use."""
