"""The REST surface, the live stream, and who may use them."""
