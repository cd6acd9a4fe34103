"""Running programs that nobody has read: in namespaces, under limits that the kernel keeps, gone at their deadline."""
