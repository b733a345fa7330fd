"""Kernel timings of sampled steps: sources behind one interface, the sampler, and what is made of a trace."""
