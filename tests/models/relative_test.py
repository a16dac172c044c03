"""Classes of distance, against a list worked out by hand."""

import jax.numpy as jnp
import numpy as np

from specjax.models import relative


def test_half_of_the_classes_are_of_one_distance_and_the_rest_grow():
  found = relative.classes(np.arange(24), buckets=8, furthest=20)
  # Beyond 4 a class ends at 4 * 5 ** (k / 4): 5.98, 8.94, 13.37, 20.
  expected = [0, 1, 2, 3, 4, 4, 5, 5, 5, *[6] * 5, *[7] * 10]
  np.testing.assert_array_equal(found, expected)


def test_the_widest_boundaries_fall_where_they_are_whole_numbers():
  # Of T5's own encoder: half of 32 classes, up to 128: 8, 16, 32, 64.
  found = relative.classes(np.asarray([8, 15, 16, 31, 32, 63, 64]), 16, 128)
  assert found.tolist() == [8, 9, 10, 11, 12, 13, 14]


def test_an_encoder_tells_keys_before_a_query_from_keys_behind_it():
  table = jnp.arange(16.0)[:, None] * jnp.asarray([1.0, 100.0])
  biases = relative.both_ways(table, furthest=20)
  assert biases.shape == (2, 41)
  np.testing.assert_array_equal(biases[1], 100 * biases[0])
  before, behind = biases[0, :20][::-1], biases[0, 21:]
  np.testing.assert_array_equal(behind, before + 8)
  assert biases[0, 20] == 0


def test_a_decoder_has_one_number_for_all_that_lies_further():
  biases = relative.causal(jnp.arange(8.0)[:, None], furthest=20)
  assert biases.shape == (1, 21) and biases[0, 20] == 7
