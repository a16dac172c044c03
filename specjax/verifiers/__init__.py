"""Verification as pure functions of arrays; nothing here knows a model."""
