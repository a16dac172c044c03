"""Speed, measured: ours plain and speculative, and the peers, side by side."""
