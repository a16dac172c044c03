"""The serving loop: slots, prefill, stop rules, streaming."""
