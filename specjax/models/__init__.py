"""Target and draft models as pure functions of parameters, tokens and cache."""
