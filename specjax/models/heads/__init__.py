"""Heads: small modules that draft from a target's own hidden states."""
