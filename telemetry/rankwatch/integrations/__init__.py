"""Frameworks and other people's interfaces, each in a module of its own that is imported only by who uses it."""
