"""Names of the logical axes that stand beside every parameter.

A name says what a dimension *is*; which mesh axis it is split over is a matter
of rules, decided elsewhere. `None` marks a dimension that is never split.
"""

VOCAB = "vocab"  # V
EMBED = "embed"  # D
HEADS = "heads"  # N
KV_HEADS = "kv_heads"  # K
HEAD_DIM = "head_dim"  # H
MLP = "mlp"  # F
POSITION = "position"  # learned positions
LAYERS = "layers"  # L, the stacked axis of scanned layers

ALL = frozenset(
  {VOCAB, EMBED, HEADS, KV_HEADS, HEAD_DIM, MLP, POSITION, LAYERS}
)
