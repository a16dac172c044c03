"""Sizes of the tiny random models, for make_goldens.py alone."""

import transformers

# Sizes keep every file far under 300 kB. They are uneven on purpose: equal
# ones would let two swapped axes pass unseen.
TINY = {
  # A head of its own; three layers, so that a draft can drop one.
  "llama_untied": dict(
    vocab_size=97,
    hidden_size=32,
    intermediate_size=56,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    rms_norm_eps=1e-5,
    tie_word_embeddings=False,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
  ),
  # The embedding is the head; one key/value head per query head; an
  # epsilon so large that ignoring it moves the logits.
  "llama_tied": dict(
    vocab_size=128,
    hidden_size=40,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    rms_norm_eps=1e-2,
    tie_word_embeddings=True,
    rope_parameters={"rope_type": "default", "rope_theta": 500.0},
  ),
  # Llama-3 scaling. Wavelengths are 6.3 11 20 35 63 112 199 353; those below
  # 64/4 stay, those above 64/1 are stretched by 8, three lie between.
  "llama_rope3": dict(
    vocab_size=113,
    hidden_size=64,
    intermediate_size=72,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    rms_norm_eps=1e-5,
    tie_word_embeddings=True,
    rope_parameters={
      "rope_type": "llama3",
      "rope_theta": 100.0,
      "factor": 8.0,
      "low_freq_factor": 1.0,
      "high_freq_factor": 4.0,
      "original_max_position_embeddings": 64,
    },
  ),
  # Grouped heads whose size (12) is not hidden_size / heads (8).
  "llama_head_dim": dict(
    vocab_size=101,
    hidden_size=48,
    intermediate_size=60,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=12,
    rms_norm_eps=1e-6,
    tie_word_embeddings=False,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
  ),
}
_MISTRAL = dict(
  vocab_size=61,
  hidden_size=24,
  intermediate_size=36,
  num_hidden_layers=2,
  num_attention_heads=4,
  num_key_value_heads=2,
  head_dim=8,
  rms_norm_eps=1e-5,
  tie_word_embeddings=False,
  rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
)
_DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 500.0}
_GEMMA3 = dict(
  vocab_size=67,
  hidden_size=32,
  intermediate_size=40,
  num_hidden_layers=4,
  num_attention_heads=4,
  num_key_value_heads=1,
  head_dim=12,
  rms_norm_eps=1e-3,
  query_pre_attn_scalar=20,
  sliding_window=5,
  layer_types=[
    "sliding_attention",
    "sliding_attention",
    "full_attention",
    "sliding_attention",
  ],
  rope_parameters={
    "full_attention": {
      "rope_type": "linear",
      "factor": 4.0,
      "rope_theta": 900.0,
    },
    "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
  },
)
_T5 = dict(
  vocab_size=61,
  d_model=24,
  d_kv=6,
  d_ff=40,
  num_layers=2,
  num_heads=3,
  layer_norm_epsilon=1e-3,
  decoder_start_token_id=0,
)
# Encoder-decoders: name -> (configuration, sizes, whether the head is the
# embedding, tokens of the sources). Sources reach the last class of distances,
# and in one case several 128-wide blocks.
SOURCED = {
  "t5": (
    transformers.T5Config,
    dict(
      _T5,
      num_decoder_layers=3,
      feed_forward_proj="relu",
      relative_attention_num_buckets=8,
      relative_attention_max_distance=20,
    ),
    True,
    (48, 31),
  ),
  "t5_v1_1": (
    transformers.T5Config,
    dict(_T5, feed_forward_proj="gated-gelu"),
    False,
    (300, 7),
  ),
  "mt5": (
    transformers.MT5Config,
    dict(
      _T5,
      num_heads=4,
      d_kv=8,
      feed_forward_proj="gated-gelu",
      relative_attention_num_buckets=12,
      relative_attention_max_distance=33,
    ),
    False,
    (1, 50),
  ),
  # ByT5's encoder is three times as deep as its decoder.
  "byt5": (
    transformers.T5Config,
    dict(
      _T5,
      num_layers=3,
      num_decoder_layers=1,
      feed_forward_proj="gated-gelu",
      relative_attention_num_buckets=16,
      relative_attention_max_distance=40,
    ),
    False,
    (64, 63),
  ),
}
# The other families: name -> (configuration, sizes). Windows are narrower than
# the text, soft-caps low enough to bend scores and logits.
FAMILIES = {
  "llama_bias": (
    transformers.LlamaConfig,
    dict(
      vocab_size=59,
      hidden_size=32,
      intermediate_size=40,
      num_hidden_layers=2,
      num_attention_heads=4,
      num_key_value_heads=2,
      rms_norm_eps=1e-5,
      tie_word_embeddings=True,
      attention_bias=True,
      mlp_bias=True,
      rope_parameters={**_DEFAULT_ROPE, "rope_type": "linear", "factor": 3.0},
    ),
  ),
  "mistral": (transformers.MistralConfig, dict(_MISTRAL, sliding_window=7)),
  "mistral_wide": (
    transformers.MistralConfig,
    dict(_MISTRAL, sliding_window=130),
  ),
  "qwen2": (
    transformers.Qwen2Config,
    dict(
      vocab_size=71,
      hidden_size=32,
      intermediate_size=40,
      num_hidden_layers=3,
      num_attention_heads=4,
      num_key_value_heads=2,
      rms_norm_eps=1e-6,
      tie_word_embeddings=True,
      use_sliding_window=True,
      sliding_window=9,
      max_window_layers=1,
      rope_parameters=_DEFAULT_ROPE,
    ),
  ),
  "qwen3": (
    transformers.Qwen3Config,
    dict(
      vocab_size=73,
      hidden_size=32,
      intermediate_size=40,
      num_hidden_layers=2,
      num_attention_heads=4,
      num_key_value_heads=2,
      head_dim=12,
      rms_norm_eps=1e-3,
      tie_word_embeddings=False,
      rope_parameters=_DEFAULT_ROPE,
    ),
  ),
  "gemma2": (
    transformers.Gemma2Config,
    dict(
      vocab_size=67,
      hidden_size=32,
      intermediate_size=40,
      num_hidden_layers=3,
      num_attention_heads=4,
      num_key_value_heads=2,
      head_dim=12,
      rms_norm_eps=1e-3,
      query_pre_attn_scalar=20,
      sliding_window=6,
      attn_logit_softcapping=2.0,
      final_logit_softcapping=3.0,
      rope_parameters=_DEFAULT_ROPE,
    ),
  ),
  "gemma3": (transformers.Gemma3TextConfig, _GEMMA3),
  # The same text model beside one that reads images, which we leave out.
  "gemma3_vision": (
    transformers.Gemma3Config,
    dict(
      text_config={**_GEMMA3, "max_position_embeddings": 512},
      vision_config=dict(
        model_type="siglip_vision_model",
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        image_size=28,
        patch_size=14,
        vision_use_head=False,
      ),
      mm_tokens_per_image=4,
    ),
  ),
  "gpt2": (
    transformers.GPT2Config,
    dict(
      vocab_size=61,
      n_embd=24,
      n_layer=2,
      n_head=3,
      n_inner=40,
      n_positions=64,
      layer_norm_epsilon=1e-3,
    ),
  ),
}
