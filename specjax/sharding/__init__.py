"""Logical axes and (with the mesh) the rules that map them to mesh axes."""
