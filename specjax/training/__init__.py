"""Training proposers: data, losses, the loop."""
