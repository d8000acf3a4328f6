"""Configuration: one file, the environment over it, flags over both."""
