"""The server: every service of the system in one process, its REST API, its pages and its metrics."""
