"""What controller and workers say to each other."""
