"""The server: every part of the system in one process, and what it tells over HTTP."""
