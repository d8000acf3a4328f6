"""The demo: the main job, with the accidents that it is made for."""
