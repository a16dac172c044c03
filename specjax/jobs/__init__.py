"""Prompt files in, answers out: rows, errors, interruption."""
