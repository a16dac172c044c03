"""Names of the logical axes of every array.

A name says what a dimension *is*; which mesh axis it is split over is a matter
of rules, decided elsewhere. `None` marks a dimension that is never split.
"""

VOCAB = "vocab"  # V
EMBED = "embed"  # D
HEADS = "heads"  # N
KV_HEADS = "kv_heads"  # K
HEAD_DIM = "head_dim"  # H
MLP = "mlp"  # F
POSITION = "position"  # learned positions, or classes of distances
LAYERS = "layers"  # L, the stacked axis of scanned layers
ROWS = "rows"  # B
CACHE_POSITIONS = "cache_positions"  # S

# Of parameters.
ALL = frozenset(
  {VOCAB, EMBED, HEADS, KV_HEADS, HEAD_DIM, MLP, POSITION, LAYERS}
)
# Of activations and caches, too.
EVERY = ALL | {ROWS, CACHE_POSITIONS}

# The mesh's own axes, as the strategies know them: what the rows are split
# over, and what the model is.
DATA, MODEL = "data", "model"
