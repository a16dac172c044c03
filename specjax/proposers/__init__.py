"""Proposers: cheap guesses of the target's next tokens."""
