"""The sharding laboratory: compile for a TPU that is not there, and count."""
