"""Teams that come with the library, each of one file: to be used, and to be read by whoever writes another."""
