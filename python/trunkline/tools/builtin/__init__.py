"""Tools that are ready to use: an interpreter, a shell and files in a sandbox, a calculator, and a fetch of pages."""
